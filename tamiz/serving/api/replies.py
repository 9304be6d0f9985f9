"""Pieces that replies of several routes have in common."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from starlette.responses import StreamingResponse

from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.errors import ApiError
from tamiz.serving.requests import End
from tamiz.serving.tool_calls import Call

#: The two forms of a reply with text, for the description of the API.
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/json": {}, "text/event-stream": {}}}
}


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


def now() -> int:
    """Seconds since 1970."""
    return int(time.time())


def usage(ends: Sequence[End]) -> dict[str, Any]:
    """The tokens that the answers to one prompt took."""
    prompt, completion = ends[0].prompt_tokens, sum(end.completion_tokens for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": ends[0].cached_tokens},
        "completion_tokens_details": {
            "reasoning_tokens": sum(end.reasoning_tokens for end in ends)
        },
    }


def tool_calls(calls: Sequence[Call], first: int | None = None) -> list[dict[str, Any]]:
    """Calls of tools; numbered from `first` on in a stream."""
    written = []
    for number, call in enumerate(calls):
        function = {"name": call.name, "arguments": call.arguments}
        index = {} if first is None else {"index": first + number}
        written.append({**index, "id": call.id, "type": "function", "function": function})
    return written


def logprobs(tokens: Sequence[TokenLogprob], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Logprobs of tokens."""

    def one(token: int, value: float) -> dict[str, Any]:
        text = tokenizer.decode([token], special=True)
        return {"token": text, "logprob": value, "bytes": list(text.encode())}

    return [
        {**one(t.token, t.logprob), "top_logprobs": [one(*other) for other in t.top]}
        for t in tokens
    ]


def stream(parts: AsyncIterator[dict[str, Any]]) -> StreamingResponse:
    """Server-sent events, ended by ``[DONE]``; an error that comes later is an event, too."""
    return StreamingResponse(_lines(parts), media_type="text/event-stream", headers=_HEADERS)


#: Proxies must pass events on as they come.
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def _lines(parts: AsyncIterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    try:
        async for part in parts:
            yield b"data: " + orjson.dumps(part) + b"\n\n"
    except ApiError as error:
        yield b"data: " + orjson.dumps(error.body) + b"\n\n"
    yield b"data: [DONE]\n\n"
