"""A turn of a conversation, whatever API requests it: from messages to the parts of an answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tamiz.files.errors import TamizError
from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.chat_template import encode_chat
from tamiz.serving import harmony
from tamiz.serving.catalog import ServedDecoder
from tamiz.serving.engine import Engine, OverloadedError
from tamiz.serving.errors import ApiError, bad_request, overloaded
from tamiz.serving.grammar import Matcher
from tamiz.serving.harmony import HarmonyParts
from tamiz.serving.parts import REASONING, Part, Parts, joined
from tamiz.serving.requests import End, Event, Failure, Job
from tamiz.serving.tool_calls import Call, ToolChoice

GrammarKind = Literal["json_schema", "lark", "gbnf", "regex"]


@dataclass(frozen=True)
class Wish:
    """What every API may say of an answer.

    Attributes:
        sampling: How tokens are drawn.
        max_tokens: Largest number of tokens; None for what the context leaves.
        stop: Strings that end the answer.
        top_logprobs: Most probable tokens beside each; None for no logprobs.
        grammar: Kind and contents of the grammar that the answer follows.
        seconds: Time limit; None for none.
        scope: Whose earlier tokens may be used.
    """

    sampling: Sampling
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    grammar: tuple[GrammarKind, Any] | None = None
    seconds: float | None = None
    scope: bytes = b""


@dataclass(frozen=True)
class Turn:
    """The prompt of an assistant's message, and what it may do.

    Attributes:
        prompt: Token ids.
        tools: What the model may call, and whether it has to.
        parallel: Whether an answer may have several calls. None: as many as the model makes, but
            one where it has to call, as a small model that has to call goes on calling.
        reasoning: Whether the prompt ends inside of reasoning.
        harmony: Whether the answer is a message of the harmony form.
    """

    prompt: list[int]
    tools: ToolChoice = field(default_factory=ToolChoice)
    parallel: bool | None = None
    reasoning: bool = False
    harmony: bool = False


@dataclass(frozen=True)
class Delta:
    """What has come of an answer.

    Attributes:
        parts: Text by its kind.
        calls: Calls that are complete now.
        tokens: Logprobs of its tokens, where requested.
    """

    parts: tuple[Part, ...] = ()
    calls: tuple[Call, ...] = ()
    tokens: tuple[TokenLogprob, ...] = ()


def read_turn(
    served: ServedDecoder,
    messages: list[dict[str, Any]],
    tools: ToolChoice,
    parallel: bool | None,
    variables: Mapping[str, Any],
) -> Turn:
    """Renders messages with the model's chat template.

    Args:
        served: The model.
        messages: The conversation, oldest message first.
        tools: See `Turn`.
        parallel: See `Turn`.
        variables: Variables of the template, such as ``enable_thinking``.

    Raises:
        ApiError: The template refuses them.
    """
    if served.harmony:
        messages = harmony.adapted(messages)
    try:
        prompt = encode_chat(
            served.tokenizer,
            served.template,
            messages,
            tools=[tool.described for tool in tools.shown] or None,
            variables=variables,
        )
        ending = served.tokenizer.decode(prompt[-8:], special=True).rstrip()
    except TamizError as error:
        raise bad_request(str(error), "messages") from error
    reasoning = served.reasons and ending.endswith(REASONING[0])
    return Turn(prompt, tools, parallel, reasoning, served.harmony)


async def answer(served: ServedDecoder, turn: Turn, wish: Wish) -> AsyncIterator[Delta | End]:
    """The answer of a model, part by part; the last item is its end.

    Raises:
        ApiError: The request cannot be served, or fails on its way.
    """
    most_calls = 1 if turn.parallel is False else None
    turn, parts = _begin(served, turn, wish, most_calls)
    calls = thoughts = count = 0
    async with aclosing(events(served.engine, make_job(served, turn, wish))) as stream:
        async for event in stream:
            if isinstance(event, Failure):
                raise ApiError(event.status, event.message)
            if isinstance(event, End):
                rest = parts.end()
                yield Delta(tuple(rest), tuple(parts.calls[calls:]))
                thoughts = event.completion_tokens if parts.reasoning else thoughts
                yield replace(event, reasoning_tokens=thoughts)
                return
            found = list[Part]()
            for count, text in enumerate(event.texts, event.count - len(event.texts) + 1):
                thinking = parts.reasoning
                found += parts.push(text)
                thoughts = count if thinking or parts.reasoning else thoughts
                if len(parts.calls) == most_calls:
                    break
            yield Delta(joined(found), tuple(parts.calls[calls:]), event.tokens)
            calls = len(parts.calls)
            if calls == most_calls:
                yield End("stop", len(turn.prompt), event.cached, count, thoughts)
                return


def _begin(
    served: ServedDecoder, turn: Turn, wish: Wish, most_calls: int | None
) -> tuple[Turn, Parts | HarmonyParts]:
    """The turn as its answer begins, and what sorts the answer's text."""
    allowed = turn.tools.allowed
    if not turn.harmony:
        return turn, Parts(served.form, allowed, turn.reasoning, most_calls)
    final = wish.grammar is not None and not turn.tools.required
    if final:  # the grammar is that of a message's text, so the prompt has the message's head
        head = served.tokenizer.encode(harmony.FINAL, bos=False, control_tokens=True)
        turn = replace(turn, prompt=turn.prompt + head)
    return turn, HarmonyParts(allowed, most_calls, final)


def make_job(served: ServedDecoder, turn: Turn, wish: Wish) -> Job:
    """The job of an answer.

    Raises:
        ApiError: The prompt leaves no room, or the grammar is malformed.
    """
    room = served.engine.most_tokens - len(turn.prompt)
    if room < 1:
        raise ApiError(
            400,
            f"the prompt has {len(turn.prompt)} tokens, but the context has"
            f" {served.engine.most_tokens}, prompt and answer together",
            "messages",
            "context_length_exceeded",
        )
    return Job(
        prompt=turn.prompt,
        sampling=wish.sampling,
        max_tokens=min(room, wish.max_tokens or room),
        deliver=lambda event: None,
        stop=wish.stop,
        top_logprobs=wish.top_logprobs,
        matcher=_matcher(served, turn, wish),
        scope=wish.scope,
        shown=_tags(served, turn),
        deadline=None if wish.seconds is None else time.monotonic() + wish.seconds,
    )


def _tags(served: ServedDecoder, turn: Turn) -> frozenset[str]:
    """Names of the tokens by which the answer's text is sorted."""
    if turn.harmony:
        return harmony.TAGS
    return served.form.tags if turn.tools.allowed else frozenset()


def _matcher(served: ServedDecoder, turn: Turn, wish: Wish) -> Matcher | None:
    try:
        if turn.tools.required:
            tools, ids = turn.tools.allowed, served.tokenizer.ids_of(_tags(served, turn))
            if turn.harmony:
                return served.grammars.lark(harmony.grammar(tools, ids))
            return served.grammars.lark(served.form.grammar(tools, turn.parallel is True, ids))
        if wish.grammar is None:
            return None
        kind, contents = wish.grammar
        matcher: Matcher = getattr(served.grammars, kind)(contents)
        return matcher
    except TamizError as error:
        param = "tools" if turn.tools.required else "response_format"
        raise bad_request(str(error), param) from error


async def events(engine: Engine, job: Job) -> AsyncGenerator[Event, None]:
    """Submits a job; its events as they come. Leaving the loop cancels the job.

    Raises:
        ApiError: The job is refused.
    """
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event] = asyncio.Queue()

    def deliver(event: Event) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(queue.put_nowait, event)

    job.deliver = deliver
    try:
        engine.submit(job)
    except OverloadedError as error:
        raise overloaded(str(error)) from error
    except TamizError as error:
        raise bad_request(str(error)) from error
    try:
        while True:
            event = await queue.get()
            yield event
            if isinstance(event, (End, Failure)):
                return
    finally:
        engine.cancel(job)
