"""An HTTP service for one bundle, with the standard library.

    python examples/service/service.py BUNDLE --port 8000 --threads 2
    curl localhost:8000/generate -d '{"prompt": "What is a sieve?", "max_new_tokens": 16}'

`POST /generate` takes a JSON object and answers with one: the text, and the tokens per second.
`GET /health` answers once the model is loaded. A model runs one sequence at a time, so requests
wait for each other. Start a process for each group of cores to serve several users.
"""

from __future__ import annotations

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat
from tamiz.runtime.text.stream import Speed, generate_text
from tamiz.runtime.text.tokenizer import Tokenizer

MOST_BYTES = 1 << 20
#: What a request may hold beside `prompt`, and its value by default.
DEFAULTS = {"max_new_tokens": 128, "temperature": 0.0, "seed": None}


class Service:
    """One model, and the lock that lets one request run at a time."""

    def __init__(self, bundle: Path, threads: int) -> None:
        self.model = Model.load(bundle, threads)
        self.tokenizer = Tokenizer(self.model.bundle)
        self.lock = threading.Lock()

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Generates; raises TamizError where the request cannot be served."""
        prompt = request.pop("prompt", None)
        if not isinstance(prompt, str):
            raise TamizError("prompt: expected a string")
        if unknown := set(request) - set(DEFAULTS):
            raise TamizError(f"found {min(unknown)}, expected prompt, {', '.join(DEFAULTS)}")
        wanted = {**DEFAULTS, **request}
        count = wanted["max_new_tokens"]
        if type(count) is not int or count < 1:
            raise TamizError(f"max_new_tokens: found {count!r}, expected a positive number")
        try:
            sampling = Sampling(temperature=wanted["temperature"], seed=wanted["seed"])
        except TypeError as error:
            raise TamizError("temperature and seed: expected numbers") from error
        speed = Speed()
        with self.lock:
            ids = self._encode(prompt)
            pieces = generate_text(self.model, self.tokenizer, ids, sampling, count, speed=speed)
            text = "".join(pieces)
        return {"text": text, "tokens": speed.tokens, "decode_tok_s": speed.decode_tok_s}

    def _encode(self, prompt: str) -> list[int]:
        settings = self.tokenizer.settings
        if not settings.get("chat_template"):
            return self.tokenizer.encode(prompt)
        messages = [{"role": "user", "content": prompt}]
        return encode_chat(self.tokenizer, ChatTemplate(settings), messages)


class Handler(BaseHTTPRequestHandler):
    """Requests and answers in JSON."""

    service: Service

    def do_GET(self) -> None:
        if self.path == "/health":
            self.reply(200, {"status": "ok"})
        else:
            self.reply(404, {"error": "expected GET /health or POST /generate"})

    def do_POST(self) -> None:
        if self.path != "/generate":
            self.reply(404, {"error": "expected GET /health or POST /generate"})
            return
        try:
            length = int(self.headers.get("Content-Length", ""))
            if not 0 < length <= MOST_BYTES:
                raise ValueError(f"the request has {length} bytes, expected 1 to {MOST_BYTES}")
            request = json.loads(self.rfile.read(length))
            if not isinstance(request, dict):
                raise ValueError("expected a JSON object")
            answer = self.service.answer(request)
        except (TamizError, ValueError) as error:
            self.reply(400, {"error": str(error)})
        else:
            self.reply(200, answer)

    def reply(self, code: int, value: dict[str, Any]) -> None:
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--host", default="127.0.0.1", help="Address; others are reachable.")
    parser.add_argument("--port", type=int, default=8000, help="0 takes a free one.")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    Handler.service = Service(arguments.bundle, arguments.threads)
    server = ThreadingHTTPServer((arguments.host, arguments.port), Handler)
    print(f"http://{arguments.host}:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
