"""The form of gpt-oss' answers, *harmony*: messages, each with a channel.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>

`analysis` is reasoning; `commentary` without a recipient is said to the user before a call. The
recipient may also stand before the channel, where the chat template writes it.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tamiz.runtime.text.stream import possible_beginning
from tamiz.serving.grammar import JSON_STYLE, literal
from tamiz.serving.parts import Kind, Part
from tamiz.serving.tool_calls import Call, Tool, closed

_CHANNEL, _MESSAGE, _CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
_START, _END, _CALL, _RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
#: Names of the tokens of the form; most vocabularies make them control tokens.
TAGS = frozenset((_CHANNEL, _MESSAGE, _CONSTRAIN, _START, _END, _CALL, _RETURN))
#: What ends a message; models leave `<|end|>` out at times.
_ENDS = (_END, _CALL, _RETURN, _START, _CHANNEL)
#: What stands before an answer that is read by a program.
FINAL = f"{_CHANNEL}final{_MESSAGE}"
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_CHANNEL_NAME = re.compile(rf"{re.escape(_CHANNEL)}\s*(\w+)")


def shown_by(template: str) -> bool:
    """Whether a chat template writes messages of this form."""
    return _CHANNEL in template and _MESSAGE in template


def adapted(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as gpt-oss' template takes them: a call goes with reasoning or content, not both."""
    return [
        {**message, "content": ""}
        if message.get("tool_calls") and message.get("reasoning_content")
        else message
        for message in messages
    ]


def grammar(tools: Sequence[Tool], ids: Mapping[str, int]) -> str:
    """A grammar, in llguidance's form of Lark, of an answer that is one call.

    Args:
        tools: What may be called.
        ids: Tokens of the form's tags, by name; a tag that is no token is written as text.
    """

    calls, rules = [], []
    for number, tool in enumerate(tools):
        calls.append(f"call_{number}")
        head = literal(f"commentary to=functions.{tool.name} {_CONSTRAIN}json{_MESSAGE}", ids)
        schema = closed(tool.parameters) | {"x-guidance": JSON_STYLE}
        rules.append(
            f"call_{number}: {head} arguments_{number}\n"
            f"arguments_{number}: %json {json.dumps(schema)}\n"
        )
    return f"start: {literal(_CHANNEL, ids)} ({' | '.join(calls)})\n{''.join(rules)}"


class HarmonyParts:
    """Sorts text that comes in pieces, as `tamiz.serving.parts.Parts` does for other forms.

    Attributes:
        calls: Calls of tools that were complete so far.
    """

    def __init__(
        self, tools: Sequence[Tool], most_calls: int | None = None, final: bool = False
    ) -> None:
        """Starts an answer.

        Args:
            tools: What the model may call; what it says to others is content.
            most_calls: Calls that are taken; None for all.
            final: Whether the prompt ends with `FINAL`.
        """
        self.calls: list[Call] = []
        self._names = {f"functions.{tool.name}": tool.name for tool in tools}
        self._most_calls = most_calls
        self._held = ""
        #: What the text is; None in the head of a message.
        self._kind: Kind | Literal["call"] | None = "content" if final else None
        self._name = self._arguments = ""

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside of reasoning."""
        return self._kind == "reasoning"

    def push(self, text: str) -> list[Part]:
        """Adds text; returns the parts whose kind is certain."""
        self._held += text
        parts: list[Part] = []
        while True:
            tags = (_MESSAGE,) if self._kind is None else _ENDS
            places = [(self._held.find(tag), tag) for tag in tags if tag in self._held]
            if not places:
                break
            place, tag = min(places)
            before, after = self._held[:place], self._held[place + len(tag) :]
            if self._kind is None:
                self._begin(before)
            else:
                parts += self._add(before) + self._finish()
                after = tag + after if tag in (_START, _CHANNEL) else after
            self._held = after
        if self._kind is not None:
            safe = len(self._held) - possible_beginning(self._held, _ENDS)
            parts += self._add(self._held[:safe])
            self._held = self._held[safe:]
        return parts

    def end(self) -> list[Part]:
        """The parts that were held back."""
        held, self._held = self._held, ""
        if self._kind is not None:
            return self._add(held) + self._finish()
        # The head of a message that was cut is no text, but a text without any head is.
        cut = any(tag in held for tag in TAGS) or held.lstrip().startswith("to=")
        return [] if cut or not held else [Part("content", held)]

    def _begin(self, head: str) -> None:
        """Starts the message that a head announces."""
        recipient, channel = _RECIPIENT.search(head), _CHANNEL_NAME.search(head)
        self._name = self._names.get(recipient[1], "") if recipient else ""
        thought = channel is not None and channel[1] == "analysis"
        self._kind = "call" if self._name else "reasoning" if thought else "content"

    def _add(self, text: str) -> list[Part]:
        """Adds text to the message that is open."""
        if self._kind == "call":
            self._arguments += text
            return []
        assert self._kind is not None
        return [Part(self._kind, text)] if text else []

    def _finish(self) -> list[Part]:
        """Ends the message; one that should be a call and is none is content."""
        called, self._kind = self._kind == "call", None
        text, self._arguments = self._arguments, ""
        if not called:
            return []
        try:
            arguments = json.loads(text or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return [Part("content", text)]
        if self._most_calls is None or len(self.calls) < self._most_calls:
            written = json.dumps(arguments, ensure_ascii=False)
            self.calls.append(Call(f"call_{secrets.token_hex(12)}", self._name, written))
        return []
