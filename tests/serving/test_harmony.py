"""gpt-oss' channels; the transcripts are as its chat template and its documentation write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from kit.tagged import ids_of, tagged
from tamiz.runtime.model import Model
from tamiz.runtime.text.chat_template import ChatTemplate
from tamiz.serving import harmony
from tamiz.serving.api.served import State
from tamiz.serving.app import make_app
from tamiz.serving.catalog import Catalog, ServedDecoder
from tamiz.serving.engine import Limits
from tamiz.serving.harmony import HarmonyParts
from tamiz.serving.settings import Settings
from tamiz.serving.tool_calls import parse_tools

SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome"]}}, "required": ["city"]}
CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOLS = parse_tools([TOOL])
THOUGHT = "<|channel|>analysis<|message|>The user asks\nfor <Rome>.<|end|>"
ROME = '{"city": "Rome"}'
CALL = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{ROME}<|call|>"
#: The same call as the template writes it into the prompt of the next turn.
TEMPLATE_CALL = f" to=functions.weather<|channel|>commentary json<|message|>{ROME}<|call|>"
FINAL = "<|channel|>final<|message|>Sunny, 20 < 30.<|return|>"
THEN = "<|start|>assistant"

#: A transcript after `<|start|>assistant`: reasoning, content, and the arguments of its calls.
TRANSCRIPTS = {
    "final": (FINAL, "", "Sunny, 20 < 30.", []),
    "reasoning, final": (
        THOUGHT + THEN + FINAL,
        "The user asks\nfor <Rome>.",
        "Sunny, 20 < 30.",
        [],
    ),
    "reasoning, call": (THOUGHT + THEN + CALL, "The user asks\nfor <Rome>.", "", [ROME]),
    "call of the template": (
        THOUGHT + THEN + TEMPLATE_CALL,
        "The user asks\nfor <Rome>.",
        "",
        [ROME],
    ),
    "preamble, call": (
        f"<|channel|>commentary<|message|>Let me look.<|end|>{THEN}{CALL}",
        "",
        "Let me look.",
        [ROME],
    ),
    "two calls": (CALL + THEN + CALL, "", "", [ROME, ROME]),
    "call without arguments": (CALL.replace(ROME, ""), "", "", ["{}"]),
    "stop tokens are not shown": (
        (THOUGHT + THEN + CALL).removesuffix("<|call|>"),
        "The user asks\nfor <Rome>.",
        "",
        [ROME],
    ),
    "an end is missing": (
        (THOUGHT + THEN + FINAL).replace("<|end|>", ""),
        "The user asks\nfor <Rome>.",
        "Sunny, 20 < 30.",
        [],
    ),
    "end and start are missing": (
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>Yes.",
        "Hm.",
        "Yes.",
        [],
    ),
    "cut in reasoning": ("<|channel|>analysis<|message|>The <|en", "The <|en", "", []),
    "cut in a head": (THOUGHT + THEN + "<|channel|>fin", "The user asks\nfor <Rome>.", "", []),
    "cut in the recipient": (" to=functions.wea", "", "", []),
    "cut in a call": (CALL.replace('"Rome"}<|call|>', ""), "", '{"city": ', []),
    "no JSON": (CALL.replace(ROME, "Rome"), "", "Rome", []),
    "no object": (CALL.replace(ROME, "[1]"), "", "[1]", []),
    "a function that is not there": (CALL.replace("weather", "other"), "", ROME, []),
    "a tool of its own": (
        "<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        "print(1)",
        "",
        [],
    ),
    "no form": ("Hello.", "", "Hello.", []),
    "empty": ("", "", "", []),
}


def read(parts: HarmonyParts, pieces: list[str]) -> tuple[str, str, list[str]]:
    found = [part for piece in pieces for part in parts.push(piece)] + parts.end()
    reasoning, content = (
        "".join(part.text for part in found if part.kind == kind)
        for kind in ("reasoning", "content")
    )
    return reasoning, content, [call.arguments for call in parts.calls]


@pytest.mark.parametrize("name", TRANSCRIPTS)
@pytest.mark.parametrize("size", [1, 3, 1000], ids=["by character", "by three", "whole"])
def test_channels_are_sorted(name: str, size: int) -> None:
    text, *expected = TRANSCRIPTS[name]
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    parts = HarmonyParts(TOOLS)
    assert read(parts, pieces) == tuple(expected)
    assert all(call.name == "weather" for call in parts.calls)
    assert len({call.id for call in parts.calls}) == len(parts.calls)


def test_text_comes_before_its_message_ends() -> None:
    parts = HarmonyParts(TOOLS)
    assert parts.push("<|channel|>analysis<|mess") == []
    assert [part.text for part in parts.push("age|>Why <")] == ["Why "]
    assert parts.reasoning
    assert [part.text for part in parts.push("not?<|end|>")] == ["<not?"]
    assert not parts.reasoning


def test_only_so_many_calls_are_taken() -> None:
    assert read(HarmonyParts(TOOLS, most_calls=1), [CALL + THEN + CALL]) == ("", "", [ROME])


def test_an_answer_may_begin_in_its_final_message() -> None:
    assert read(HarmonyParts(TOOLS, final=True), ['{"a": 1}']) == ("", '{"a": 1}', [])


def test_without_tools_a_call_is_content() -> None:
    assert read(HarmonyParts([]), [CALL]) == ("", ROME, [])


#: What gpt-oss' template does with the messages of an assistant, in few words.
TEMPLATE = """\
{%- for message in messages -%}
{%- if message.tool_calls -%}
{%- if message.content and message.thinking -%}
{{ raise_exception("Cannot pass both content and thinking") }}
{%- endif -%}
<|start|>assistant<|channel|>analysis<|message|>{{ message.thinking or message.content }}<|end|>
{%- set call = message.tool_calls[0].function -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
<|start|>assistant"""


def test_reasoning_and_calls_of_earlier_turns_reach_the_template() -> None:
    function = {"name": "weather", "arguments": {"city": "Rome"}}
    said = {
        "role": "assistant",
        "content": "Let me look.",
        "reasoning_content": "The user asks\nfor <Rome>.",
        "tool_calls": [{"type": "function", "function": function}],
    }
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Weather?"}, said]
    template = ChatTemplate({"chat_template": TEMPLATE})
    text = template.render(harmony.adapted(messages))
    assert text == f"<|start|>user<|message|>Weather?<|end|>{THEN}{THOUGHT}{THEN}" + (
        f"{TEMPLATE_CALL}{THEN}"
    )
    assert harmony.adapted(messages[:1]) == messages[:1]


#: Tokens of the form in the tiny model's vocabulary.
IDS = ids_of(harmony.TAGS)


@pytest.fixture(scope="module", params=[True, False], ids=["control tokens", "shown tokens"])
def client(
    request: pytest.FixtureRequest, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """A server of a tiny model whose vocabulary has the form's tokens in place of some bytes."""
    place = tmp_path_factory.mktemp("harmony") / "tiny"
    folder = tagged(tiny, place, harmony.TAGS, request.param, TEMPLATE)
    catalog = Catalog()
    catalog.add(ServedDecoder.start("tiny", Model.load(folder, 2), Limits(2048)))
    with TestClient(make_app(State(catalog, Settings()))) as served:
        yield served
    catalog.close(0)


ASK: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Weather?"}],
    "max_tokens": 200,
    "seed": 1,
}


@pytest.mark.parametrize("logprobs", [False, True], ids=["forced tokens together", "one by one"])
def test_a_required_call_is_valid(client: TestClient, logprobs: bool) -> None:
    body = {**ASK, "tools": [TOOL], "tool_choice": "required", "logprobs": logprobs}
    reply = client.post(CHAT, json=body).json()
    (choice,) = reply["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert call["function"] == {"name": "weather", "arguments": ROME}
    assert choice["message"]["content"] is None
    if logprobs:
        tokens = [token["token"] for token in choice["logprobs"]["content"]]
        assert "".join(tokens) == CALL.removesuffix("<|call|>")
        assert tokens[0] == "<|channel|>"


def test_a_schema_is_that_of_the_final_message(client: TestClient) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}
    body = {**ASK, "response_format": form}
    reply = client.post(CHAT, json=body).json()
    assert reply["choices"][0]["message"]["content"] == ROME
    plain = client.post(CHAT, json={**ASK, "max_tokens": 1}).json()
    head = len(client.post("/tokenize", json={"content": "final"}).json()["tokens"]) + 2
    assert reply["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] + head


def test_a_stream_has_reasoning_and_content_apart(client: TestClient) -> None:
    """A grammar makes the model write messages of two channels."""
    end, start, channel, message = (
        f"<[{IDS[f'<|{name}|>']}]>" for name in ("end", "start", "channel", "message")
    )
    analysis, final = (
        f'{start} "assistant" {channel} "{name}" {message}' for name in ("analysis", "final")
    )
    text = f'start: "Let me see. " {end} {analysis} "Why?" {end} {final} "Yes."'
    body = {**ASK, "grammar": {"type": "lark", "value": text}}
    reply = client.post(CHAT, json=body).json()
    said = reply["choices"][0]["message"]
    assert said["reasoning_content"] == "Why?"
    assert said["content"] == "Let me see. Yes."
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    deltas = []
    with client.stream("POST", CHAT, json={**body, "stream": True}) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                deltas.append(json.loads(line.removeprefix("data: "))["choices"][0]["delta"])
    for key in ("reasoning_content", "content"):
        assert "".join(delta.get(key, "") for delta in deltas) == said[key]
    request = {"input": "Weather?", "grammar": body["grammar"], "seed": 1}
    items = client.post("/v1/responses", json=request).json()["output"]
    texts = [(item["type"], item["content"][0]["text"]) for item in items]
    assert texts == [("message", "Let me see. "), ("reasoning", "Why?"), ("message", "Yes.")]
