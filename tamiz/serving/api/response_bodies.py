"""Bodies of ``/v1/responses``, as messages, tools and forms of the chat API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tamiz.serving.api.bodies import Body, Generation, Whole
from tamiz.serving.api.chat_bodies import (
    Effort,
    JsonSchema,
    Message,
    ResponseFormat,
    choose_tools,
    effort_variables,
    format_grammar,
    plain_message,
)
from tamiz.serving.chat import Wish
from tamiz.serving.errors import bad_request
from tamiz.serving.tool_calls import ToolChoice


class TextFormat(Body):
    """The form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    def described(self) -> dict[str, Any]:
        """The form as a response tells it."""
        if self.type != "json_schema":
            return {"type": self.type}
        return self.model_dump(by_alias=True) | {"strict": self.strict is True}


class Text(Body):
    """How an answer's text is written."""

    format: TextFormat = Field(default_factory=lambda: TextFormat.model_validate({}))


class NamedChoice(Body):
    """A function that has to be called."""

    type: Literal["function"]
    name: str


class AllowedChoice(Body):
    """The functions that may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["none", "auto", "required"] = "auto"
    tools: list[NamedChoice]


class Reasoning(Body):
    """How much the model reasons."""

    effort: Effort | None = None


class ResponseBody(Generation):
    """A request of ``/v1/responses``."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool = True
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    include: list[str] = Field(default_factory=list)
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    text: Text = Field(default_factory=Text)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | AllowedChoice = "auto"
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    background: bool = False
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The input as messages of a chat.

        Raises:
            ApiError: An item is of an unknown kind.
        """
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for item in self.input:
            _append(messages, plain_message(_message(item)))
        return messages

    def chosen_tools(self) -> ToolChoice:
        """The tools, and which the model may call."""
        described = []
        for tool in self.tools or []:
            function = {k: v for k, v in tool.items() if k not in ("type", "strict")}
            described.append({"type": tool.get("type"), "function": function})
        choice = self.tool_choice
        if isinstance(choice, NamedChoice):
            return choose_tools(described, "required", [choice.name])
        if isinstance(choice, AllowedChoice):
            return choose_tools(described, choice.mode, [tool.name for tool in choice.tools])
        return choose_tools(described, choice)

    def variables(self) -> dict[str, Any]:
        """Variables of the chat template."""
        return effort_variables(self.reasoning.effort if self.reasoning else None)

    def response_wish(self) -> Wish:
        """What the request says of an answer.

        Raises:
            ApiError: It is to be made in the background, or a value is out of its range.
        """
        if self.background:
            raise bad_request("answers are not made in the background, try stream", "background")
        wish = self.wish()
        grammar = wish.grammar
        if grammar is None:
            form = self.text.format
            schema = JsonSchema(name=form.name, schema=form.schema_) if form.schema_ else None
            grammar = format_grammar(ResponseFormat(type=form.type, json_schema=schema))
        with_logprobs = _LOGPROBS in self.include or self.top_logprobs
        top = (self.top_logprobs or 0) if with_logprobs else None
        return Wish(wish.sampling, self.max_output_tokens, wish.stop, top, grammar)


#: What `include` has to name for logprobs.
_LOGPROBS = "message.output_text.logprobs"


def _append(messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Adds the message of an item: the reasoning, text and calls of one turn are one message."""
    last: dict[str, Any] = messages[-1] if messages else {"role": "none"}
    thought = "reasoning_content" in last and not last["content"] and "tool_calls" not in last
    if last["role"] != "assistant" or message["role"] != "assistant":
        messages.append(message)
    elif message.get("tool_calls"):
        last.setdefault("tool_calls", []).extend(message["tool_calls"])
    elif thought:
        last["content"] = message["content"]
    else:
        messages.append(message)


def _message(item: dict[str, Any]) -> Message:
    """An item of the input as a message of a chat.

    Raises:
        ApiError: It is malformed or of an unknown kind.
    """
    kind = item.get("type") or "message"
    try:
        if kind == "message":
            return Message.model_validate({"role": item["role"], "content": item["content"]})
        if kind == "function_call":
            function = {"name": item["name"], "arguments": item["arguments"]}
            call = {"id": item["call_id"], "type": "function", "function": function}
            return Message(role="assistant", tool_calls=[call])
        if kind == "function_call_output":
            return Message(role="tool", tool_call_id=item["call_id"], content=item["output"])
        if kind == "reasoning":
            parts = item.get("content") or item["summary"]
            thoughts = "".join(part["text"] for part in parts)
            return Message(role="assistant", content="", reasoning_content=thoughts)
    except (KeyError, TypeError, ValueError) as error:
        raise bad_request(f"an item of the type {kind} is malformed: {error}", "input") from error
    raise bad_request(f"an item of the type {kind!r} is not supported", "input")
