"""Bodies of chat requests, and what they mean: messages, tools, forms of answers."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from tamiz.files.errors import TamizError
from tamiz.serving.api.bodies import Body, Generation, Whole
from tamiz.serving.catalog import ServedDecoder
from tamiz.serving.chat import GrammarKind, Turn, Wish, read_turn
from tamiz.serving.errors import bad_request
from tamiz.serving.tool_calls import ToolChoice, parse_tools

#: How much a model reasons; ``none`` switches reasoning off where its template can.
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class NamedFunction(Body):
    """The name of a function."""

    name: str


class NamedTool(Body):
    """A tool that has to be called."""

    type: Literal["function"] = "function"
    function: NamedFunction


class AllowedFunctions(Body):
    """Some of the tools, and whether one of them has to be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[NamedTool]


class AllowedTools(Body):
    """The tools that may be called."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedFunctions


class JsonSchema(Body):
    """A JSON schema by name."""

    name: str = ""
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")


class ChatBody(Generation):
    """A request of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def turn(self, served: ServedDecoder) -> Turn:
        """The prompt and the tools.

        Raises:
            ApiError: A message or a tool is malformed, or a tool is required that is not there.
        """
        return read_turn(
            served,
            [plain_message(message) for message in self.messages],
            self._tools(),
            self.parallel_tool_calls,
            {**effort_variables(self.reasoning_effort), **(self.chat_template_kwargs or {})},
        )

    def _tools(self) -> ToolChoice:
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            return choose_tools(self.tools, "required", [choice.function.name])
        if isinstance(choice, AllowedTools):
            allowed = choice.allowed_tools
            names = [tool.function.name for tool in allowed.tools]
            return choose_tools(self.tools, allowed.mode, names)
        return choose_tools(self.tools, choice or "auto")

    def chat_wish(self, index: int = 0) -> Wish:
        """What the request says of an answer."""
        wish = self.wish(index)
        grammar = wish.grammar or format_grammar(self.response_format)
        top = (self.top_logprobs or 0) if self.logprobs else None
        return Wish(
            wish.sampling,
            self.max_completion_tokens or self.max_tokens,
            wish.stop,
            top,
            grammar,
        )


def choose_tools(
    described: list[dict[str, Any]] | None, mode: str, names: list[str] | None = None
) -> ToolChoice:
    """The tools of a request.

    Args:
        described: All tools.
        mode: ``none``, ``auto`` or ``required``.
        names: The tools that may be called; None for all.

    Raises:
        ApiError: One is malformed, or one that is named or required is missing.
    """
    try:
        tools = parse_tools(described or [])
    except TamizError as error:
        raise bad_request(str(error), "tools") from error
    if mode == "none":
        return ToolChoice()
    missing = set(names or ()) - {tool.name for tool in tools}
    if missing:
        raise bad_request(f"tools has no function {min(missing)}", "tool_choice")
    allowed = [tool for tool in tools if names is None or tool.name in names]
    if mode == "required" and not allowed:
        raise bad_request("required, but there are no tools", "tool_choice")
    return ToolChoice(tuple(tools), tuple(allowed), mode == "required")


def effort_variables(effort: str | None) -> dict[str, Any]:
    """Variables of chat templates that say how much to reason."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort, "enable_thinking": effort != "none"}


def format_grammar(wanted: ResponseFormat | None) -> tuple[GrammarKind, Any] | None:
    """The grammar of a form of answers.

    Raises:
        ApiError: A schema is missing.
    """
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return "json_schema", wanted.schema_ or {"type": "object"}
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise bad_request("json_schema.schema is missing", "response_format")
    return "json_schema", wanted.json_schema.schema_


def plain_message(message: Message) -> dict[str, Any]:
    """A message as chat templates take it.

    Raises:
        ApiError: It has a part that is no text.
    """
    plain = message.model_dump(exclude_none=True)
    if message.role == "developer":
        plain["role"] = "system"
    if message.content is None:
        plain["content"] = ""
    elif not isinstance(message.content, str):
        plain["content"] = "".join(map(_text, message.content))
    for call in plain.get("tool_calls", ()):
        _read_arguments(call)
    return plain


#: Parts of a message that are text, and the field that has it.
_TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


def _text(part: dict[str, Any]) -> str:
    kind = part.get("type")
    text = part.get(_TEXTS.get(kind, "")) if isinstance(kind, str) else None
    if not isinstance(text, str):
        raise bad_request(f"a part of the type {kind!r} is not supported, only text", "messages")
    return text


def _read_arguments(call: dict[str, Any]) -> None:
    """Turns the arguments of a call from text into values: templates write them as JSON."""
    function = call.get("function")
    if isinstance(function, dict) and isinstance(function.get("arguments"), str):
        try:
            function["arguments"] = json.loads(function["arguments"])
        except ValueError as error:
            raise bad_request(f"arguments of a call are no JSON: {error}", "messages") from error
