"""``/v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.api.chat_bodies import ChatBody
from tamiz.serving.api.replies import STREAMED, logprobs, new_id, now, stream, tool_calls, usage
from tamiz.serving.api.served import reply, started, state_of
from tamiz.serving.catalog import ServedDecoder
from tamiz.serving.chat import Delta, answer
from tamiz.serving.merge import merge
from tamiz.serving.requests import End
from tamiz.serving.tool_calls import Call

router = APIRouter()


@router.post("/v1/chat/completions", responses=STREAMED)
async def chat_completions(body: ChatBody, request: Request) -> Response:
    """An assistant's message that follows a conversation."""
    state = state_of(request)
    served = state.catalog.decoder(body.model)
    state.check_fields(body)
    turn = body.turn(served)
    wishes = [state.complete(body.chat_wish(index), request) for index in range(body.n or 1)]
    follow = state.metrics.follow
    answers = merge([follow(answer(served, turn, wish)) for wish in wishes])
    head = {"id": new_id("chatcmpl-"), "created": now(), "model": served.name}
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return stream(await started(_chunks(served, head, answers, len(wishes), with_usage)))
    choices = [_Choice() for _ in wishes]
    async for index, event in answers:
        choices[index].add(event)
    return reply(
        {
            **head,
            "object": "chat.completion",
            "choices": [c.reply(number, served.tokenizer) for number, c in enumerate(choices)],
            "usage": usage([choice.end for choice in choices if choice.end]),
        }
    )


@dataclass
class _Choice:
    """One answer, collected."""

    texts: dict[str, str] = field(default_factory=lambda: {"reasoning": "", "content": ""})
    calls: list[Call] = field(default_factory=list)
    tokens: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None

    def add(self, event: Delta | End) -> None:
        if isinstance(event, End):
            self.end = event
            return
        for part in event.parts:
            self.texts[part.kind] += part.text
        self.calls += event.calls
        self.tokens += event.tokens

    def reply(self, index: int, tokenizer: Tokenizer) -> dict[str, Any]:
        assert self.end is not None
        content = self.texts["content"]
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        message["content"] = None if self.calls and not content.strip() else content
        if self.calls:
            message["tool_calls"] = tool_calls(self.calls)
        if self.texts["reasoning"]:
            message["reasoning_content"] = self.texts["reasoning"]
        return {
            "index": index,
            "message": message,
            "logprobs": {"content": logprobs(self.tokens, tokenizer), "refusal": None}
            if self.tokens
            else None,
            "finish_reason": finish_reason(self.end, bool(self.calls)),
        }


def finish_reason(end: End, called: bool) -> str:
    """Why an answer ended; a complete call of a tool is an end of its own."""
    return "tool_calls" if called and end.reason == "stop" else end.reason


async def _chunks(
    served: ServedDecoder,
    head: dict[str, Any],
    answers: AsyncIterator[tuple[int, Delta | End]],
    count: int,
    with_usage: bool,
) -> AsyncIterator[dict[str, Any]]:
    head = {**head, "object": "chat.completion.chunk", **({"usage": None} if with_usage else {})}

    def chunk(index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        return {**head, "choices": [choice]}

    begun: set[int] = set()
    calls, ends = [0] * count, list[End]()
    async for index, event in answers:
        if index not in begun:
            begun.add(index)
            yield chunk(index, {"role": "assistant", "content": ""})
        if isinstance(event, End):
            ends.append(event)
            yield chunk(index, {}, finish_reason=finish_reason(event, calls[index] > 0))
            continue
        tokens = event.tokens
        for part in event.parts:
            key = "content" if part.kind == "content" else "reasoning_content"
            yield chunk(index, {key: part.text}, **_logprobs(tokens, served.tokenizer))
            tokens = ()
        if event.calls:
            delta = {"tool_calls": tool_calls(event.calls, calls[index])}
            calls[index] += len(event.calls)
            yield chunk(index, delta, **_logprobs(tokens, served.tokenizer))
            tokens = ()
        if tokens:
            yield chunk(index, {"content": ""}, **_logprobs(tokens, served.tokenizer))
    if with_usage:
        yield {**head, "choices": [], "usage": usage(ends)}


def _logprobs(tokens: tuple[TokenLogprob, ...], tokenizer: Tokenizer) -> dict[str, Any]:
    return {"logprobs": {"content": logprobs(tokens, tokenizer)}} if tokens else {}
