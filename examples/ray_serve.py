"""A bundle behind Ray Serve.

    pip install "ray[serve]" tamiz
    python examples/ray_serve.py small                  # runs here until Ctrl-C
    serve run examples.ray_serve:app bundle=/models/small threads=4

    curl localhost:8000 -H 'Content-Type: application/json' -d '{"prompt": "A sieve is"}'

One replica holds one model and answers one request at a time. More replicas serve more users.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from ray import serve

from tamiz import LanguageModel


@serve.deployment(max_ongoing_requests=1)
class Sieve:
    """One model."""

    def __init__(self, bundle: str, threads: int) -> None:
        self.model = LanguageModel.load(bundle, threads=threads)

    async def __call__(self, request: Any) -> dict[str, str]:
        """Takes an HTTP request whose body is an object with `prompt` and `max_new_tokens`."""
        body = await request.json()
        count = int(body.get("max_new_tokens", 128))
        return {"text": self.model.generate(body["prompt"], raw=True, max_new_tokens=count).text}


def app(arguments: dict[str, str]) -> Any:
    """The application, also for `serve run`."""
    threads = int(arguments.get("threads", "2"))
    deployment: Any = Sieve  # the decorator has made it one
    deployment = deployment.options(ray_actor_options={"num_cpus": threads})
    return deployment.bind(os.path.abspath(arguments["bundle"]), threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundle")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--port", type=int, default=8000)
    arguments = parser.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": arguments.port})
    serve.run(app({"bundle": arguments.bundle, "threads": arguments.threads}), blocking=True)


if __name__ == "__main__":
    main()
