"""``/v1/responses`` as the Open Responses specification describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.api.response_bodies import ResponseBody
from tamiz.serving.api.response_writer import Writer
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.chat import Delta
from tamiz.serving.engine import Limits
from tamiz.serving.errors import ApiError
from tamiz.serving.parts import Part
from tamiz.serving.requests import End
from tamiz.serving.settings import Settings
from tamiz.serving.tool_calls import Call

ROUTE = "/v1/responses"
ASK: dict[str, Any] = {"input": "hello", "max_output_tokens": 4, "seed": 1}
TOOLS = [
    {
        "type": "function",
        "name": name,
        "parameters": {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}},
    }
    for name in ("first", "second")
]


def ask(client: TestClient, **more: Any) -> dict[str, Any]:
    reply = client.post(ROUTE, json=ASK | more)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def events(client: TestClient, **more: Any) -> list[dict[str, Any]]:
    """The events of a stream; each is named by its type, and the last one is followed by [DONE]."""
    reply = client.post(ROUTE, json=ASK | more | {"stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    *blocks, end = reply.text.strip().split("\n\n")
    assert end == "data: [DONE]"
    found = []
    for block in blocks:
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_an_answer_that_is_cut_is_incomplete_in_all_places(client: TestClient) -> None:
    response = ask(client)
    assert response["status"] == response["output"][-1]["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["completed_at"] is None
    assert events(client)[-1]["type"] == "response.incomplete"


def test_ids_begin_as_openais(client: TestClient) -> None:
    response = ask(client)
    assert response["id"].startswith("resp_")
    assert response["output"][0]["id"].startswith("msg_")


def test_a_field_that_is_null_has_its_default(client: TestClient) -> None:
    names = (
        *("model", "previous_response_id", "tools", "tool_choice", "metadata", "text"),
        *("temperature", "top_p", "presence_penalty", "frequency_penalty", "instructions"),
        *("parallel_tool_calls", "stream_options", "reasoning", "top_logprobs"),
        *("safety_identifier", "prompt_cache_key", "store", "include", "background"),
    )
    response = ask(client, **dict.fromkeys(names))
    plain = ask(client)
    for varies in ("id", "created_at", "output", "usage"):
        del response[varies], plain[varies]
    assert response == plain


def test_what_is_not_supported_is_refused_in_one_sentence(client: TestClient) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA=="}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": "AA=="}
    bad: list[tuple[dict[str, Any], str]] = [
        ({"background": True}, "answers are not made in the background, try stream"),
        ({"input": [{"role": "user", "content": [image]}]}, "'input_image' is not supported"),
        ({"input": [{"role": "user", "content": [file]}]}, "'input_file' is not supported"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' is not supported"),
        ({"input": [{"type": "reasoning", "summary": ["x"]}]}, "reasoning is malformed"),
        ({"tools": [{"type": "web_search"}]}, "expected a tool of the type function"),
        ({"previous_response_id": "resp_x"}, "there is no response resp_x"),
    ]
    for body, message in bad:
        reply = client.post(ROUTE, json=ASK | body)
        assert reply.status_code in (400, 404)
        assert message in reply.json()["error"]["message"]


def test_logprobs_are_those_of_the_chat_api(client: TestClient) -> None:
    form = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    (item,) = ask(client, **form)["output"]
    found = item["content"][0]["logprobs"]
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        **{"max_tokens": 4, "seed": 1, "logprobs": True, "top_logprobs": 2},
    }
    reply = client.post("/v1/chat/completions", json=body).json()
    assert found == reply["choices"][0]["logprobs"]["content"]
    stream = events(client, **form)
    deltas = [e for e in stream if e["type"] == "response.output_text.delta"]
    assert [one for event in deltas for one in event["logprobs"]] == found
    (done,) = [e for e in stream if e["type"] == "response.output_text.done"]
    assert done["logprobs"] == found


@pytest.mark.parametrize("route", [ROUTE, "/v1/chat/completions"])
def test_only_allowed_tools_are_called_but_all_are_shown(client: TestClient, route: str) -> None:
    chat = route != ROUTE
    one: dict[str, Any]
    choice: dict[str, Any]
    if chat:
        one = {"type": "function", "function": {"name": "second"}}
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [one]}}
        tools = [{"type": "function", "function": tool} for tool in TOOLS]
        ask_chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200}
    else:
        one = {"type": "function", "name": "second"}
        choice = {"type": "allowed_tools", "mode": "required", "tools": [one]}
    names = set()
    for seed in range(4):
        if chat:
            body = {**ask_chat, "tools": tools, "tool_choice": choice, "seed": seed}
            message = client.post(route, json=body).json()["choices"][0]["message"]
            names |= {call["function"]["name"] for call in message["tool_calls"]}
        else:
            form = {"tools": TOOLS, "tool_choice": choice, "max_output_tokens": 200, "seed": seed}
            response = ask(client, **form)
            assert [tool["name"] for tool in response["tools"]] == ["first", "second"]
            names |= {item["name"] for item in response["output"]}
    assert names == {"second"}


def test_a_missing_tool_is_named(client: TestClient) -> None:
    choice = {"type": "allowed_tools", "tools": [{"type": "function", "name": "third"}]}
    reply = client.post(ROUTE, json=ASK | {"tools": TOOLS, "tool_choice": choice})
    assert reply.status_code == 400
    assert "tools has no function third" in reply.json()["error"]["message"]


def test_items_of_one_turn_are_one_message() -> None:
    body = ResponseBody.model_validate(
        {
            "input": [
                {"role": "user", "content": "hello"},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                {"type": "message", "role": "assistant", "content": "I look."},
                {"type": "function_call", "call_id": "1", "name": "first", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "second", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [{"type": "input_text", "text": "done"}],
                },
            ]
        }
    )
    user, assistant, tool = body.messages()
    assert user == {"role": "user", "content": "hello"}
    assert (assistant["reasoning_content"], assistant["content"]) == ("hm", "I look.")
    assert [call["id"] for call in assistant["tool_calls"]] == ["1", "2"]
    assert tool == {"role": "tool", "tool_call_id": "1", "content": "done"}


@pytest.fixture
def writer(tiny: Path) -> Writer:
    body = ResponseBody.model_validate(ASK)
    return Writer(body, "tiny", Tokenizer(Model.load(tiny).bundle))


def test_reasoning_text_and_calls_are_items_in_their_order(writer: Writer) -> None:
    found = writer.begin()
    found += writer.write(Delta((Part("reasoning", "h"), Part("reasoning", "m"))))
    found += writer.write(Delta((Part("content", "Hello"),)))
    found += writer.write(Delta(calls=(Call("call_1", "first", '{"x": "a"}'),)))
    found += writer.write(End("stop", 3, 0, 9, 4))
    response = writer.response
    kinds = ["reasoning", "message", "function_call"]
    assert [item["type"] for item in response["output"]] == kinds
    added = [e for e in found if e["type"] == "response.output_item.added"]
    done = [e for e in found if e["type"] == "response.output_item.done"]
    assert [event["output_index"] for event in added + done] == [0, 1, 2, 0, 1, 2]
    assert [event["item"] for event in done] == response["output"]
    assert {item["status"] for item in response["output"]} == {"completed"}
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    message = writer.message()
    assert (message["reasoning_content"], message["content"]) == ("hm", "Hello")
    assert message["tool_calls"][0]["function"] == {"name": "first", "arguments": {"x": "a"}}


def test_an_answer_without_text_is_an_empty_message(writer: Writer) -> None:
    writer.write(End("stop", 3, 0, 1))
    (item,) = writer.response["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "")


def test_a_failure_in_a_stream_is_an_event_and_a_state(writer: Writer) -> None:
    writer.begin()
    error, failed = writer.fail(ApiError(408, "too late"))
    assert (error["type"], error["error"]["message"], error["message"]) == (
        *("error", "too late", "too late"),
    )
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "invalid_request_error", "message": "too late"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_before_the_first_token_has_a_status_code(tiny: Path, stream: bool) -> None:
    catalog = Catalog()
    catalog.add(ServedDecoder.start("tiny", Model.load(tiny), Limits(512)))
    client = TestClient(make_app(State(catalog, Settings(seconds=1e-9))))
    reply = client.post(ROUTE, json=ASK | {"stream": stream})
    assert reply.status_code == 408
    catalog.close(0)


@pytest.mark.parametrize("route", [ROUTE, "/v1/chat/completions"])
def test_templates_know_how_much_to_reason(tiny: Path, route: str) -> None:
    catalog = Catalog()
    served = ServedDecoder.start("tiny", Model.load(tiny), Limits(512))
    served.tokenizer.settings["chat_template"] = (
        "{{ reasoning_effort }} {{ enable_thinking }}{{ messages[0].content }}"
    )
    catalog.add(served)
    client = TestClient(make_app(State(catalog, Settings())))
    for effort, text in (("high", "high Truehello"), ("none", "none Falsehello")):
        if route == ROUTE:
            usage = ask(client, reasoning={"effort": effort})["usage"]
            count = usage["input_tokens"]
        else:
            messages = [{"role": "user", "content": "hello"}]
            body = {"messages": messages, "max_tokens": 1, "reasoning_effort": effort}
            count = client.post(route, json=body).json()["usage"]["prompt_tokens"]
        assert count == len(served.tokenizer.encode(text))
    catalog.close(0)


def test_tokens_of_reasoning_are_counted(tiny: Path) -> None:
    catalog = Catalog()
    served = ServedDecoder.start("tiny", Model.load(tiny), Limits(512))
    served.tokenizer.settings["chat_template"] = "{{ messages[0].content }}<think>{# </think> #}"
    catalog.add(served)
    client = TestClient(make_app(State(catalog, Settings())))
    response = ask(client, max_output_tokens=20, grammar='root ::= "hm hm</think>hello"')
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert response["output"][0]["content"][0]["text"] == "hm hm"
    thoughts = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert 0 < thoughts < response["usage"]["output_tokens"]
    catalog.close(0)
