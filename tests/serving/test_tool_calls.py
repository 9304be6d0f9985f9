"""Forms of tool calls; the texts are those that the models' own templates write."""

import json
from typing import Any

import pytest

from tamiz.files.errors import TamizError
from tamiz.serving.parts import Part, Parts
from tamiz.serving.tool_calls import FORMS, Call, Tool, ToolForm, parse_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
DESCRIBED = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TOOLS = parse_tools([DESCRIBED])
FORM = {form.name: form for form in FORMS}

#: Calls as Qwen 2.5, Mistral v3, Phi-4-mini and Llama 3.1 write them.
WRITTEN = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]',
    "phi": '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome"}}]<|/tool_call|>',
    "llama": '{"name": "weather", "parameters": {"city": "Rome"}}',
}


def read(form: ToolForm, pieces: list[str], tools: list[Tool] = TOOLS) -> tuple[str, list[Call]]:
    parts = Parts(form, tools, reasoning=False)
    found = [part for piece in pieces for part in parts.push(piece)] + parts.end()
    return "".join(part.text for part in found if part.kind == "content"), parts.calls


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "by character"])
def test_a_call_is_read_in_each_form(name: str, whole: bool) -> None:
    text = WRITTEN[name]
    content, calls = read(FORM[name], [text] if whole else list(text))
    assert content == ""
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", {"city": "Rome"})
    ]


def test_several_calls_and_text_before_them() -> None:
    text = "Let me look.\n" + WRITTEN["hermes"] + "\n" + WRITTEN["hermes"].replace("Rome", "Oslo")
    content, calls = read(FORM["hermes"], list(text))
    assert content.strip() == "Let me look."
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Rome", "Oslo"]
    assert calls[0].id != calls[1].id


@pytest.mark.parametrize("name", WRITTEN)
def test_no_more_calls_are_taken_than_are_allowed(name: str) -> None:
    call = '{"name": "weather", "arguments": {"city": "Rome"}}'
    form = FORM[name]
    text = f"[{call}, {call}]" if form.is_list else f"{call}; {call}"
    for most in (1, None):
        parts = Parts(form, TOOLS, reasoning=False, most_calls=most)
        rest = parts.push(f"{form.begin}{text}{form.end}") + parts.end()
        assert len(parts.calls) == (most or 2)
        assert rest == []


def test_a_call_is_complete_at_its_last_tag() -> None:
    parts = Parts(FORM["hermes"], TOOLS, reasoning=False)
    parts.push(WRITTEN["hermes"])
    assert len(parts.calls) == 1


@pytest.mark.parametrize(
    "text",
    ['<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>', "<tool_call>nonsense"],
)
def test_what_is_no_call_stays_text(text: str) -> None:
    content, calls = read(FORM["hermes"], list(text))
    assert calls == []
    assert content == text.removeprefix("<tool_call>").removesuffix("</tool_call>")


def test_text_that_looks_like_a_call_is_text_without_tools() -> None:
    assert read(FORM["hermes"], [WRITTEN["hermes"]], []) == (WRITTEN["hermes"], [])


@pytest.mark.parametrize("name", ["mistral", "phi"])
def test_tags_that_are_control_tokens_may_be_missing(name: str) -> None:
    text = WRITTEN[name].replace(FORM[name].begin, "").replace(FORM[name].end or "\0", "")
    content, calls = read(FORM[name], list(text))
    assert content == ""
    assert [call.name for call in calls] == ["weather"]


def test_json_that_is_no_call_is_content() -> None:
    assert read(FORM["llama"], list('{"a": 1}')) == ('{"a": 1}', [])


def test_reasoning_is_kept_apart() -> None:
    parts = Parts(FORM["hermes"], TOOLS, reasoning=True)
    found = parts.push("why</think>" + WRITTEN["hermes"]) + parts.end()
    assert found == [Part("reasoning", "why")]
    assert len(parts.calls) == 1


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", "hermes"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<|tool_call|>", "phi"),
        ('{"name": function name, "parameters": dictionary}', "llama"),
        ("no tools", "hermes"),
    ],
)
def test_the_template_shows_the_form(template: str, name: str) -> None:
    assert ToolForm.of(template).name == name


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "retrieval"}, r"tools\[0\]: expected a tool of the type function"),
    ({"type": "function", "function": {}}, r"tools\[0\]\.function: expected a name"),
    ({"type": "function", "function": {"name": "f", "parameters": 3}}, "and a JSON schema"),
]


@pytest.mark.parametrize(("tool", "message"), BAD)
def test_a_malformed_tool_is_refused(tool: dict[str, Any], message: str) -> None:
    with pytest.raises(TamizError, match=message):
        parse_tools([tool])
