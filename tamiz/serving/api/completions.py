"""``/v1/completions``: text that follows text, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from tamiz.files.errors import TamizError
from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.api.bodies import Generation, Whole
from tamiz.serving.api.replies import STREAMED, new_id, now, stream, usage
from tamiz.serving.api.served import reply, started, state_of
from tamiz.serving.catalog import ServedDecoder
from tamiz.serving.chat import Delta, Turn, answer
from tamiz.serving.errors import bad_request
from tamiz.serving.merge import merge
from tamiz.serving.requests import End

router = APIRouter()
#: Prompts of one request.
MOST_PROMPTS = 64
Token = Annotated[Whole, Field(ge=0, lt=2**31)]


class CompletionBody(Generation):
    """A request of ``/v1/completions``."""

    prompt: str | list[str] | list[Token] | list[list[Token]]
    max_tokens: Annotated[Whole, Field(ge=1)] | None = 16
    logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Whole | None = None

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The token ids of each prompt.

        Raises:
            ApiError: A prompt cannot be encoded, or there are too many or none.
        """
        for name in ("echo", "suffix"):
            if getattr(self, name):
                raise bad_request(f"{name} is not supported", name)
        if self.best_of not in (None, self.n or 1):
            raise bad_request("best_of is not supported, try n", "best_of")
        prompts: list[Any] = [self.prompt] if isinstance(self.prompt, str) else self.prompt
        if prompts and isinstance(prompts[0], int):
            prompts = [prompts]
        if not 0 < len(prompts) <= MOST_PROMPTS:
            raise bad_request(
                f"found {len(prompts)} prompts, expected 1 to {MOST_PROMPTS}", "prompt"
            )
        try:
            return [tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
        except TamizError as error:
            raise bad_request(str(error), "prompt") from error


@router.post("/v1/completions", responses=STREAMED)
async def completions(body: CompletionBody, request: Request) -> Response:
    """Text that follows each prompt."""
    state = state_of(request)
    served = state.catalog.decoder(body.model)
    state.check_fields(body)
    answers, count = [], body.n or 1
    for prompt in body.prompts(served.tokenizer):
        for index in range(count):
            wish = replace(body.wish(index), max_tokens=body.max_tokens, top_logprobs=body.logprobs)
            made = answer(served, Turn(prompt), state.complete(wish, request))
            answers.append(state.metrics.follow(made))
    head = {
        "id": new_id("cmpl-"),
        "object": "text_completion",
        "created": now(),
        "model": served.name,
    }
    merged = merge(answers)
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        return stream(await started(_chunks(served, head, merged, count, with_usage)))
    choices = [_Choice() for _ in answers]
    async for index, event in merged:
        choices[index].add(event)
    replies = [c.reply(number, served.tokenizer) for number, c in enumerate(choices)]
    ends = [choice.end for choice in choices if choice.end]
    return reply({**head, "choices": replies, "usage": _usage(ends, count)})


def _usage(ends: list[End], count: int) -> dict[str, Any]:
    """The tokens of all answers; each prompt counts once, whatever its number of choices."""
    total = usage(ends)
    first = ends[::count]
    total["prompt_tokens"] = sum(end.prompt_tokens for end in first)
    total["total_tokens"] = total["prompt_tokens"] + total["completion_tokens"]
    cached = sum(end.cached_tokens for end in first)
    total["prompt_tokens_details"] = {"cached_tokens": cached}
    return total


@dataclass
class _Choice:
    """One answer, collected."""

    text: str = ""
    tokens: list[TokenLogprob] = field(default_factory=list)
    end: End | None = None

    def add(self, event: Delta | End) -> None:
        if isinstance(event, End):
            self.end = event
            return
        self.text += "".join(part.text for part in event.parts)
        self.tokens += event.tokens

    def reply(self, index: int, tokenizer: Tokenizer) -> dict[str, Any]:
        return {
            "index": index,
            "text": self.text,
            "logprobs": _logprobs(self.tokens, tokenizer, 0) if self.tokens else None,
            "finish_reason": self.end.reason if self.end else None,
        }


def _logprobs(
    tokens: list[TokenLogprob] | tuple[TokenLogprob, ...], tokenizer: Tokenizer, offset: int
) -> dict[str, Any]:
    """Logprobs in the older form of this route; offsets are of the text of the tokens."""

    def text(token: int) -> str:
        return tokenizer.decode([token], special=True)

    texts = [text(t.token) for t in tokens]
    offsets = [offset + sum(map(len, texts[:place])) for place in range(len(texts))]
    return {
        "tokens": texts,
        "token_logprobs": [t.logprob for t in tokens],
        "top_logprobs": [{text(token): value for token, value in t.top} for t in tokens],
        "text_offset": offsets,
    }


async def _chunks(
    served: ServedDecoder,
    head: dict[str, Any],
    answers: AsyncIterator[tuple[int, Delta | End]],
    count: int,
    with_usage: bool,
) -> AsyncIterator[dict[str, Any]]:
    ends: dict[int, End] = {}
    lengths: dict[int, int] = {}
    async for index, event in answers:
        text, reason, logprobs = "", None, None
        if isinstance(event, End):
            ends[index], reason = event, event.reason
        else:
            text = "".join(part.text for part in event.parts)
            if event.tokens:
                logprobs = _logprobs(event.tokens, served.tokenizer, lengths.get(index, 0))
            lengths[index] = lengths.get(index, 0) + len(text)
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        yield {**head, "choices": [choice]}
    if with_usage:
        ordered = [ends[index] for index in sorted(ends)]
        yield {**head, "choices": [], "usage": _usage(ordered, count)}
