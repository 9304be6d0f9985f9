"""How models write calls of tools, and how their text is read.

A model was trained on one form, which its chat template shows. `ToolForm.of` recognises it. Where
a call is required, a grammar of the same form makes sure that the text is a valid call.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamiz.files.errors import TamizError
from tamiz.serving.grammar import JSON_STYLE, literal


@dataclass(frozen=True)
class Tool:
    """A function that a model may call.

    Attributes:
        name: Its name.
        parameters: JSON schema of its arguments.
        described: The tool as OpenAI's API describes it, for the chat template.
    """

    name: str
    parameters: dict[str, Any]
    described: dict[str, Any]


@dataclass(frozen=True)
class ToolChoice:
    """What a request says of tools.

    Attributes:
        shown: The tools that the prompt describes.
        allowed: Those of them that the model may call.
        required: Whether the answer has to be a call.
    """

    shown: tuple[Tool, ...] = ()
    allowed: tuple[Tool, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class Call:
    """A call of a tool.

    Attributes:
        id: A made-up id, by which the client says what came of the call.
        name: The function.
        arguments: Its arguments, as JSON text.
    """

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolForm:
    """A form of calls.

    Attributes:
        name: Its usual name.
        shown_by: Text of a chat template that shows it.
        begin: What stands before a call, or before a list of calls.
        end: What stands after it.
        arguments: The key of the arguments.
        is_list: Whether the calls of an answer stand in one JSON list.
    """

    name: str
    shown_by: str
    begin: str
    end: str
    arguments: str = "arguments"
    is_list: bool = False

    @staticmethod
    def of(template: str) -> ToolForm:
        """The form that a chat template shows; that of Hermes and Qwen where it shows none."""
        return next((form for form in FORMS if form.shown_by in template), FORMS[0])

    @property
    def tags(self) -> frozenset[str]:
        """What stands around a call; many vocabularies have a token for each tag."""
        return frozenset(tag for tag in (self.begin.strip(), self.end.strip()) if tag)

    def grammar(self, tools: Sequence[Tool], several: bool, ids: Mapping[str, int]) -> str:
        """A grammar, in llguidance's form of Lark, of an answer that is one call, or several.

        Args:
            tools: What may be called.
            several: Whether more calls may follow.
            ids: Tokens of the form's tags, by name; a tag that is no token is written as text.
        """
        call: dict[str, Any] = {"anyOf": [self._schema(tool) for tool in tools]}
        if self.is_list:
            call = {"type": "array", "items": call, "minItems": 1}
            call |= {} if several else {"maxItems": 1}
        call["x-guidance"] = JSON_STYLE
        begin, end = literal(self.begin, ids), literal(self.end, ids)
        one = f"{begin} call {end}" if self.begin else "call"
        more = f' ("\\n" {one})*' if several and self.begin and not self.is_list else ""
        return f"start: {one}{more}\ncall: %json {json.dumps(call)}\n"

    def _schema(self, tool: Tool) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"name": {"const": tool.name}, self.arguments: closed(tool.parameters)},
            "required": ["name", self.arguments],
            "additionalProperties": False,
        }

    def read(self, text: str, tools: Sequence[Tool]) -> list[Call]:
        """The calls in text between `begin` and `end`; none where it is not a valid call."""
        decoder = json.JSONDecoder()
        names = {tool.name for tool in tools}
        calls: list[Call] = []
        rest = text.strip()
        while rest:
            try:
                value, length = decoder.raw_decode(rest)
            except ValueError:
                return []
            for call in value if isinstance(value, list) else [value]:
                if not isinstance(call, dict) or call.get("name") not in names:
                    return []
                arguments = call.get("arguments", call.get("parameters", {}))
                written = json.dumps(arguments, ensure_ascii=False)
                calls.append(Call(f"call_{secrets.token_hex(12)}", call["name"], written))
            rest = rest[length:].lstrip(" \n;,")
        return calls


def closed(parameters: dict[str, Any]) -> dict[str, Any]:
    """A schema of arguments that allows no others, unless it says so: small models make some up."""
    return {"properties": {}, "additionalProperties": False, **parameters}


FORMS = (
    ToolForm("hermes", "<tool_call>", "<tool_call>\n", "\n</tool_call>"),
    ToolForm("mistral", "[TOOL_CALLS]", "[TOOL_CALLS]", "", is_list=True),
    ToolForm("phi", "<|tool_call|>", "<|tool_call|>", "<|/tool_call|>", is_list=True),
    ToolForm("llama", '"parameters":', "", "", arguments="parameters"),
)


def parse_tools(described: Sequence[dict[str, Any]]) -> list[Tool]:
    """Tools of a request.

    Raises:
        TamizError: One is no function, has no name, or its parameters are no schema.
    """
    tools = []
    for number, tool in enumerate(described):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise TamizError(f"tools[{number}]: expected a tool of the type function")
        name, parameters = function.get("name"), function.get("parameters") or {"type": "object"}
        if not isinstance(name, str) or not name or not isinstance(parameters, dict):
            raise TamizError(f"tools[{number}].function: expected a name and a JSON schema")
        tools.append(Tool(name, parameters, tool))
    return tools
