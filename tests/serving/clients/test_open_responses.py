"""The cases of Open Responses' compliance suite, by their names.

The suite (``bin/compliance-test.ts`` of openresponses/openresponses) needs a model that ends its
answers and calls tools by itself. Here a grammar ends the answers of a tiny model, which has to
call a tool where the suite hopes for a call. The replies are checked with the types that
`openresponses-types` generates from the specification.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kit.patience import PATIENCE

types = pytest.importorskip("openresponses_types", reason="pip install openresponses-types")

pytestmark = pytest.mark.slow

USER: dict[str, Any] = {"type": "message", "role": "user", "content": "Name one color."}
TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a place.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "maxLength": 20}},
        "required": ["place"],
    },
}
CALL = {"type": "function", "name": "get_weather"}
#: What every request has: an answer that comes to its end.
BASE: dict[str, Any] = {
    "model": "tiny",
    "temperature": 0,
    "max_output_tokens": 200,
    "grammar": {"type": "regex", "value": "[a-z ]{1,20}"},
}
Ask = Callable[..., dict[str, Any]]


def _type_of_events() -> dict[str, Any]:
    """The types of events by the value of their field `type`."""
    found = {}
    for name in dir(types):
        if name.endswith("StreamingEvent"):
            kind = getattr(types, name).model_fields["type"].annotation
            assert issubclass(kind, enum.Enum)
            found.update({member.value: getattr(types, name) for member in kind})
    return found


def valid(response: dict[str, Any]) -> dict[str, Any]:
    types.ResponseResource.model_validate(response)
    return response


@pytest.fixture(scope="module")
def ask(url: str) -> Ask:
    def request(**body: Any) -> dict[str, Any]:
        reply = httpx.post(f"{url}/v1/responses", json=BASE | body, timeout=PATIENCE)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"] == "application/json"
        return valid(reply.json())

    return request


def stream(url: str, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each valid."""
    reply = httpx.post(f"{url}/v1/responses", json=BASE | {"stream": True} | body, timeout=PATIENCE)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *blocks, end = reply.text.strip().split("\n\n")
    assert end == "data: [DONE]"
    events = [json.loads(block.split("\n")[1].removeprefix("data: ")) for block in blocks]
    known = _type_of_events()
    for event in events:
        known[event["type"]].model_validate(event)
    return events


def text(response: dict[str, Any]) -> str:
    assert response["status"] == "completed"
    assert response["completed_at"] >= response["created_at"]
    (item,) = response["output"]
    found: str = item["content"][0]["text"]
    return found


def test_basic_response(ask: Ask) -> None:
    assert text(ask(input=[USER]))


def test_streaming_response(ask: Ask, url: str) -> None:
    events = stream(url, input=[USER])
    assert events[-1]["type"] == "response.completed"
    assert text(events[-1]["response"]) == text(ask(input=[USER]))


def test_system_prompt(ask: Ask) -> None:
    system = {"type": "message", "role": "system", "content": "Answer in one word."}
    response = ask(input=[system, USER])
    assert text(response)
    plain = ask(input=[USER], instructions="Answer in one word.")
    assert text(plain) == text(response)


def test_tool_calling(ask: Ask) -> None:
    (item,) = ask(input=[USER], tools=[TOOL], tool_choice="required")["output"]
    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert isinstance(json.loads(item["arguments"])["place"], str)


def test_tool_calling_streaming(url: str) -> None:
    events = stream(url, input=[USER], tools=[TOOL], tool_choice=CALL)
    kinds = [event["type"] for event in events]
    for kind in ("output_item.added", "output_item.done"):
        (event,) = [e for e in events if e["type"] == f"response.{kind}"]
        assert event["item"]["type"] == "function_call"
    assert "response.function_call_arguments.delta" in kinds
    assert "response.function_call_arguments.done" in kinds


def test_function_call_roundtrip(ask: Ask) -> None:
    first = ask(input="How is the weather in Rome?", tools=[TOOL], tool_choice=CALL)
    (call,) = first["output"]
    output = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "18 degrees, clear",
    }
    assert text(ask(previous_response_id=first["id"], input=[output]))


def test_multi_turn(ask: Ask) -> None:
    turns = [("user", "My name is Ada."), ("assistant", "Hello Ada!"), ("user", "My name?")]
    assert text(
        ask(input=[{"type": "message", "role": role, "content": said} for role, said in turns])
    )


def test_previous_response_id(ask: Ask) -> None:
    first = ask(input="My name is Ada.")
    second = ask(input="What is my name?", previous_response_id=first["id"])
    turns = [("user", "My name is Ada."), ("assistant", text(first)), ("user", "What is my name?")]
    whole = ask(input=[{"role": role, "content": said} for role, said in turns])
    assert text(second) == text(whole)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": "data:application/pdf;base64,JQ==",
        },
    ],
    ids=["image-input", "file-input"],
)
def test_what_a_model_of_text_cannot_read_is_refused(url: str, part: dict[str, Any]) -> None:
    body = {"model": "tiny", "input": [{"type": "message", "role": "user", "content": [part]}]}
    reply = httpx.post(f"{url}/v1/responses", json=body, timeout=PATIENCE)
    assert reply.status_code == 400
    assert f"'{part['type']}' is not supported, only text" in reply.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["file_search", "web_search"])
def test_a_tool_that_the_server_would_run_is_refused(url: str, kind: str) -> None:
    body = {"model": "tiny", "input": "hello", "tools": [{"type": kind}]}
    reply = httpx.post(f"{url}/v1/responses", json=body, timeout=PATIENCE)
    assert reply.status_code == 400
    assert "expected a tool of the type function" in reply.json()["error"]["message"]


def test_other_fields_that_the_specification_has(ask: Ask, url: str) -> None:
    tools = [TOOL, {**TOOL, "name": "get_time"}]
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [CALL]}
    (item,) = ask(input=[USER], tools=tools, tool_choice=allowed)["output"]
    assert item["name"] == "get_weather"
    include = ["message.output_text.logprobs"]
    events = stream(url, input=[USER], include=include, top_logprobs=3)
    (message,) = events[-1]["response"]["output"]
    assert len(message["content"][0]["logprobs"][0]["top_logprobs"]) == 3
    cut = stream(url, input=[USER], max_output_tokens=1)
    assert cut[-1]["type"] == "response.incomplete"
