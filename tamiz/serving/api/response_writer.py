"""Writes a response of ``/v1/responses``, and the events of its stream, while its answer comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.api.replies import logprobs, new_id, now
from tamiz.serving.api.response_bodies import ResponseBody
from tamiz.serving.chat import Delta
from tamiz.serving.errors import ApiError
from tamiz.serving.requests import End
from tamiz.serving.tool_calls import Call

Event = dict[str, Any]


@dataclass
class _Item:
    """An item of the output that grows."""

    item: dict[str, Any]
    text: str = ""
    logprobs: list[dict[str, Any]] = field(default_factory=list)


class Writer:
    """Writes one response.

    Attributes:
        body: The request.
        response: The response so far.
    """

    def __init__(
        self, body: ResponseBody, model: str, tokenizer: Tokenizer, mark: str = ""
    ) -> None:
        """Starts without output.

        Args:
            body: The request.
            model: Name of the model.
            tokenizer: Its tokenizer.
            mark: Part of the response's id; see `Settings`.
        """
        self.body = body
        self.response = {"id": new_id(f"resp_{mark}"), **_empty(body, model)}
        self._tokenizer = tokenizer
        self._open: _Item | None = None
        self._tokens: list[TokenLogprob] = []
        self._number = 0

    def begin(self) -> list[Event]:
        """The first events."""
        kinds = ("response.created", "response.in_progress")
        return [self._event(kind, response={**self.response}) for kind in kinds]

    def write(self, part: Delta | End) -> list[Event]:
        """The events of what came of the answer."""
        if isinstance(part, End):
            return self._end(part)
        self._tokens += part.tokens
        events: list[Event] = []
        for text in part.parts:
            kind = "reasoning" if text.kind == "reasoning" else "message"
            events += self._text(kind, text.text)
        for call in part.calls:
            events += self._close() + self._call(call)
        return events

    def fail(self, error: ApiError) -> list[Event]:
        """The events of an answer that does not go on."""
        said = error.body["error"]
        code = said["code"] or said["type"]
        self.response |= {"status": "failed", "error": {"code": code, "message": said["message"]}}
        # OpenAI has the fields in the event, Open Responses in `error`.
        fields = {key: said[key] for key in ("code", "message", "param")}
        return [
            self._event("error", error=said, **fields),
            self._event("response.failed", response=self.response),
        ]

    def message(self) -> dict[str, Any]:
        """The answer as a message of a chat."""
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        for item in self.response["output"]:
            if item["type"] == "function_call":
                function = {"name": item["name"], "arguments": orjson.loads(item["arguments"])}
                call = {"id": item["call_id"], "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
                continue
            key = "content" if item["type"] == "message" else "reasoning_content"
            text = "".join(part["text"] for part in item["content"])
            message[key] = message.get(key, "") + text
        return message

    def _end(self, end: End) -> list[Event]:
        kind = self._open.item["type"] if self._open else None
        nothing = kind is None and not self.response["output"]
        events: list[Event] = []
        if nothing or (kind == "message" and self._tokens):
            events += self._text("message", "")
        cut = end.reason == "length"
        status = "incomplete" if cut else "completed"
        events += self._close(status)
        self.response |= {
            "status": status,
            "completed_at": None if cut else now(),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(end),
        }
        return [*events, self._event(f"response.{status}", response=self.response)]

    def _text(self, kind: str, text: str) -> list[Event]:
        """Text of an item of a kind, which is opened where another one is open."""
        events: list[Event] = []
        if self._open is None or self._open.item["type"] != kind:
            events += self._close()
            item = {"type": kind, "status": "in_progress", **_fields(kind), "content": []}
            self._open = _Item(item)
            events.append(self._item_event("response.output_item.added", item=item))
            part = _part(kind, "", [])
            events.append(self._part_event("response.content_part.added", part=part))
        tokens, self._tokens = self._tokens, []
        found = logprobs(tokens, self._tokenizer)
        self._open.text += text
        self._open.logprobs += found
        more = _more(kind, found)
        return [*events, self._part_event(f"{_STREAM[kind]}.delta", delta=text, **more)]

    def _close(self, status: str = "completed") -> list[Event]:
        """Ends the item that is open."""
        if self._open is None:
            return []
        item, text, found = self._open.item, self._open.text, self._open.logprobs
        kind = item["type"]
        part = _part(kind, text, found)
        done = {**item, "status": status, "content": [part]}
        events = [
            self._part_event(f"{_STREAM[kind]}.done", text=text, **_more(kind, found)),
            self._part_event("response.content_part.done", part=part),
            self._item_event("response.output_item.done", item=done),
        ]
        self.response["output"].append(done)
        self._open = None
        return events

    def _call(self, call: Call) -> list[Event]:
        self._tokens = []  # logprobs are those of text
        item = {
            "type": "function_call",
            "id": new_id("fc_"),
            "call_id": call.id,
            "name": call.name,
            "arguments": call.arguments,
            "status": "completed",
        }
        started = {**item, "arguments": "", "status": "in_progress"}
        name, kind = {"item_id": item["id"]}, "response.function_call_arguments"
        events = [
            self._item_event("response.output_item.added", item=started),
            self._item_event(f"{kind}.delta", delta=call.arguments, **name),
            self._item_event(f"{kind}.done", name=call.name, arguments=call.arguments, **name),
            self._item_event("response.output_item.done", item=item),
        ]
        self.response["output"].append(item)
        return events

    def _event(self, kind: str, **values: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **values}

    def _item_event(self, kind: str, **values: Any) -> Event:
        return self._event(kind, output_index=len(self.response["output"]), **values)

    def _part_event(self, kind: str, **values: Any) -> Event:
        assert self._open is not None
        name = self._open.item["id"]
        return self._item_event(kind, item_id=name, content_index=0, **values)


_STREAM = {"message": "response.output_text", "reasoning": "response.reasoning_text"}


def _fields(kind: str) -> dict[str, Any]:
    """What only items of a kind have."""
    if kind == "reasoning":
        return {"id": new_id("rs_"), "summary": []}
    return {"id": new_id("msg_"), "role": "assistant"}


def _more(kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    return {"logprobs": found} if kind == "message" else {}


def _part(kind: str, text: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": found}


def _empty(body: ResponseBody, model: str) -> dict[str, Any]:
    """A response before its answer."""
    effort = body.reasoning.effort if body.reasoning else None
    return {
        "object": "response",
        "created_at": now(),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": body.text.format.described()},
        "tool_choice": body.model_dump()["tool_choice"],
        "tools": [_TOOL | tool for tool in body.tools or []],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "truncation": "disabled",
        "usage": None,
        "metadata": body.metadata or {},
    }


#: Fields of a tool that a request may leave out.
_TOOL = {"description": None, "parameters": None, "strict": None}


def _usage(end: End) -> dict[str, Any]:
    return {
        "input_tokens": end.prompt_tokens,
        "input_tokens_details": {"cached_tokens": end.cached_tokens},
        "output_tokens": end.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": end.prompt_tokens + end.completion_tokens,
    }
