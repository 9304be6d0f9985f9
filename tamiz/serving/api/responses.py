"""``/v1/responses``: OpenAI's newer API of text, with responses that later ones continue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response, StreamingResponse

from tamiz.serving.api.replies import STREAMED, new_id, now
from tamiz.serving.api.response_bodies import ResponseBody
from tamiz.serving.api.served import State, reply, started, state_of
from tamiz.serving.chat import Delta, answer, read_turn
from tamiz.serving.errors import ApiError
from tamiz.serving.kept_responses import Kept
from tamiz.serving.requests import End
from tamiz.serving.tool_calls import Call

router = APIRouter()
Events = AsyncIterator[dict[str, Any]]


@router.post("/v1/responses", responses=STREAMED)
async def respond(body: ResponseBody, request: Request) -> Response:
    """A response to an input, which may continue an earlier one."""
    state = state_of(request)
    state.check_fields(body)
    writer = _Writer(state, body, request)
    if body.stream:
        events = await started(writer.events())
        return StreamingResponse(_lines(events), media_type="text/event-stream")
    async for _ in writer.events():
        pass
    return reply(writer.response)


@router.get("/v1/responses/{name}")
async def kept(name: str, request: Request) -> Response:
    """A response that was made before."""
    state = state_of(request)
    return reply(state.kept.find(name, state.scope(request)).response)


@router.delete("/v1/responses/{name}")
async def forget(name: str, request: Request) -> Response:
    """Forgets a response."""
    state = state_of(request)
    state.kept.remove(name, state.scope(request))
    return reply({"id": name, "object": "response", "deleted": True})


async def _lines(events: Events) -> AsyncIterator[bytes]:
    try:
        async for event in events:
            yield f"event: {event['type']}\ndata: ".encode() + orjson.dumps(event) + b"\n\n"
    except ApiError as error:
        failed = {"type": "error", **error.body["error"]}
        yield b"event: error\ndata: " + orjson.dumps(failed) + b"\n\n"


@dataclass
class _Item:
    """An item of the output that grows."""

    item: dict[str, Any]
    text: str = ""


@dataclass
class _Writer:
    """Writes a response while its answer comes.

    Attributes:
        response: The response; complete when `events` has ended.
    """

    state: State
    body: ResponseBody
    request: Request
    response: dict[str, Any] = field(init=False)
    _open: _Item | None = field(init=False, default=None)
    _number: int = field(init=False, default=0)

    async def events(self) -> Events:
        """The events of a stream."""
        state, body = self.state, self.body
        served = state.catalog.decoder(body.model)
        scope = state.scope(self.request)
        messages = body.messages()
        if body.previous_response_id is not None:
            messages = state.kept.find(body.previous_response_id, scope).messages + messages
        prompt = messages
        if body.instructions:
            prompt = [{"role": "system", "content": body.instructions}, *messages]
        several = body.parallel_tool_calls is True
        turn = read_turn(served, prompt, body.chosen_tools(), body.must_call, several, {})
        wish = state.complete(body.response_wish(), self.request)
        self.response = _empty(body, served.name)
        for kind in ("created", "in_progress"):
            yield self._event(f"response.{kind}", response={**self.response})
        async for event in state.metrics.follow(answer(served, turn, wish)):
            for written in self._write(event):
                yield written
        self._keep(messages, scope)
        yield self._event(f"response.{self.response['status']}", response=self.response)

    def _write(self, event: Delta | End) -> list[dict[str, Any]]:
        if isinstance(event, End):
            events = self._close()
            cut = event.reason == "length"
            self.response["status"] = "incomplete" if cut else "completed"
            self.response["incomplete_details"] = {"reason": "max_output_tokens"} if cut else None
            self.response["usage"] = _usage(event)
            return events
        events = []
        for part in event.parts:
            events += self._text("reasoning" if part.kind == "reasoning" else "message", part.text)
        for call in event.calls:
            events += self._close() + self._call(call)
        return events

    def _text(self, kind: str, text: str) -> list[dict[str, Any]]:
        """Text of an item of a kind, which is opened where another one is open."""
        events = []
        if self._open is None or self._open.item["type"] != kind:
            events += self._close()
            item: dict[str, Any] = {"type": kind, "id": new_id(kind[:3]), "status": "in_progress"}
            item |= _FIELDS[kind]
            self._open = _Item({**item, "content": []})
            events.append(self._item_event("response.output_item.added", item=self._open.item))
            part = _part(kind, "")
            events.append(self._part_event("response.content_part.added", part=part))
        self._open.text += text
        events.append(self._part_event(f"{_STREAM[kind]}.delta", delta=text, **_more(kind)))
        return events

    def _close(self) -> list[dict[str, Any]]:
        """Ends the item that is open."""
        if self._open is None:
            return []
        item, text = self._open.item, self._open.text
        kind = item["type"]
        part = _part(kind, text)
        done = {**item, "status": "completed", "content": [part]}
        events = [
            self._part_event(f"{_STREAM[kind]}.done", text=text, **_more(kind)),
            self._part_event("response.content_part.done", part=part),
            self._item_event("response.output_item.done", item=done),
        ]
        self.response["output"].append(done)
        self._open = None
        return events

    def _call(self, call: Call) -> list[dict[str, Any]]:
        item = {
            "type": "function_call",
            "id": new_id("fc"),
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        started_item = {**item, "arguments": "", "status": "in_progress"}
        name = {"item_id": item["id"]}
        events = [
            self._item_event("response.output_item.added", item=started_item),
            self._item_event(
                "response.function_call_arguments.delta", delta=call.arguments, **name
            ),
            self._item_event(
                "response.function_call_arguments.done", arguments=call.arguments, **name
            ),
            self._item_event("response.output_item.done", item=item),
        ]
        self.response["output"].append(item)
        return events

    def _keep(self, messages: list[dict[str, Any]], scope: bytes) -> None:
        if self.body.store is False:
            return
        answered: dict[str, Any] = {"role": "assistant", "content": ""}
        for item in self.response["output"]:
            if item["type"] == "message":
                answered["content"] += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                arguments = orjson.loads(item["arguments"])
                function = {"name": item["name"], "arguments": arguments}
                call = {"id": item["call_id"], "type": "function", "function": function}
                answered.setdefault("tool_calls", []).append(call)
        self.state.kept.add(Kept(scope, [*messages, answered], self.response))

    def _event(self, kind: str, **values: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **values}

    def _item_event(self, kind: str, **values: Any) -> dict[str, Any]:
        return self._event(kind, output_index=len(self.response["output"]), **values)

    def _part_event(self, kind: str, **values: Any) -> dict[str, Any]:
        assert self._open is not None
        name = self._open.item["id"]
        return self._item_event(kind, item_id=name, content_index=0, **values)


_FIELDS: dict[str, dict[str, Any]] = {
    "message": {"role": "assistant"},
    "reasoning": {"summary": []},
}
_STREAM = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


def _more(kind: str) -> dict[str, Any]:
    return {"logprobs": []} if kind == "message" else {}


def _part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _empty(body: ResponseBody, model: str) -> dict[str, Any]:
    """A response before its answer."""
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": now(),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "store": body.store is not False,
        "temperature": body.temperature,
        "text": body.text.model_dump(by_alias=True) if body.text else {"format": {"type": "text"}},
        "tool_choice": body.model_dump()["tool_choice"] or "auto",
        "tools": body.tools or [],
        "top_p": body.top_p,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }


def _usage(end: End) -> dict[str, Any]:
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.cached_tokens},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }
