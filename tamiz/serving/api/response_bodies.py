"""Bodies of ``/v1/responses``, as messages, tools and forms of the chat API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from tamiz.serving.api.bodies import Body, Generation
from tamiz.serving.api.chat_bodies import (
    JsonSchema,
    Message,
    NamedFunction,
    NamedTool,
    ResponseFormat,
    choose_tools,
    format_grammar,
    plain_message,
)
from tamiz.serving.chat import Wish
from tamiz.serving.errors import bad_request
from tamiz.serving.tool_calls import Tool


class TextFormat(Body):
    """The form of an answer's text."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = ""
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class Text(Body):
    """How an answer's text is written."""

    format: TextFormat | None = None


class NamedChoice(Body):
    """A function that has to be called."""

    type: Literal["function"]
    name: str


class ResponseBody(Generation):
    """A request of ``/v1/responses``."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = True
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    text: Text | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None

    def messages(self) -> list[dict[str, Any]]:
        """The input as messages of a chat.

        Raises:
            ApiError: An item is of an unknown kind.
        """
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        messages: list[dict[str, Any]] = []
        for item in self.input:
            message = plain_message(_message(item))
            # Calls of one turn are items of their own here, and one message in a chat.
            joined = messages and message.get("tool_calls") and messages[-1]["role"] == "assistant"
            if joined:
                messages[-1].setdefault("tool_calls", []).extend(message["tool_calls"])
            else:
                messages.append(message)
        return messages

    def chosen_tools(self) -> list[Tool]:
        """What the model may call."""
        described = []
        for tool in self.tools or []:
            function = {k: v for k, v in tool.items() if k not in ("type", "strict")}
            described.append({"type": tool.get("type"), "function": function})
        choice: Any = self.tool_choice
        if isinstance(choice, NamedChoice):
            choice = NamedTool(function=NamedFunction(name=choice.name))
        return choose_tools(described, choice)

    @property
    def must_call(self) -> bool:
        """Whether the answer has to be a call."""
        return self.tool_choice not in (None, "auto", "none")

    def response_wish(self) -> Wish:
        """What the request says of an answer."""
        wish = self.wish()
        grammar = wish.grammar
        if grammar is None and self.text and self.text.format:
            form = self.text.format
            schema = JsonSchema(name=form.name, schema=form.schema_) if form.schema_ else None
            grammar = format_grammar(ResponseFormat(type=form.type, json_schema=schema))
        return Wish(wish.sampling, self.max_output_tokens, wish.stop, None, grammar)


def _message(item: dict[str, Any]) -> Message:
    """An item of the input as a message of a chat.

    Raises:
        ApiError: It is malformed or of an unknown kind.
    """
    kind = item.get("type", "message")
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
            return Message(role="assistant", content="")
    except (KeyError, ValueError) as error:
        raise bad_request(f"an item of the type {kind} is malformed: {error}", "input") from error
    raise bad_request(f"an item of the type {kind!r} is not supported", "input")
