"""The parts of an answer's text: reasoning, content, and calls of tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from tamiz.serving.splitter import Splitter
from tamiz.serving.tool_calls import Call, Tool, ToolForm

#: The tags that chat templates put around reasoning.
REASONING = ("<think>", "</think>")

Kind = Literal["reasoning", "content"]


@dataclass(frozen=True)
class Part:
    """Text of one kind."""

    kind: Kind
    text: str


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Neighbours of one kind as one part."""
    groups = groupby(parts, key=lambda part: part.kind)
    return tuple(Part(kind, "".join(part.text for part in group)) for kind, group in groups)


class Parts:
    """Sorts text that comes in pieces.

    Attributes:
        calls: Calls of tools that were complete so far.
    """

    def __init__(
        self,
        form: ToolForm,
        tools: Sequence[Tool],
        reasoning: bool,
        most_calls: int | None = None,
    ) -> None:
        """Starts an answer.

        Args:
            form: How the model writes calls.
            tools: What it may call; without any, all text is content.
            reasoning: Whether the prompt ends inside of reasoning.
            most_calls: Calls that are taken; None for all.
        """
        self.calls: list[Call] = []
        self._form, self._tools, self._most_calls = form, tools, most_calls
        self._thoughts = Splitter(*REASONING, inside=reasoning)
        begin, end = form.begin.strip(), form.end.strip()
        self._call_tags = Splitter(begin or "\0", end or "\0")
        self._call = ""
        self._content = ""

    @property
    def reasoning(self) -> bool:
        """Whether the text so far ends inside of reasoning."""
        return self._thoughts.inside

    def push(self, text: str) -> list[Part]:
        """Adds text; returns the parts whose kind is certain."""
        return self._sort(self._thoughts.push(text))

    def end(self) -> list[Part]:
        """The parts that were held back."""
        parts = self._sort(self._thoughts.end())
        for inside, text in self._call_tags.end():
            parts += self._content_part(inside, text)
        if self._call:
            parts += self._finish_call()
        if self._content:
            self._take(self._form.read(self._content, self._tools))
            parts += [] if self.calls else [Part("content", self._content)]
            self._content = ""
        return parts

    def _sort(self, pieces: Iterable[tuple[bool, str]]) -> list[Part]:
        parts: list[Part] = []
        for inside, text in pieces:
            if inside:
                parts.append(Part("reasoning", text))
            elif not self._tools:
                parts.append(Part("content", text))
            else:
                for called, piece in self._call_tags.push(text):
                    parts += self._content_part(called, piece)
                if self._call and not self._call_tags.inside:
                    parts += self._finish_call()
        return parts

    def _content_part(self, called: bool, text: str) -> list[Part]:
        if called:
            self._call += text
            return []
        parts = self._finish_call() if self._call else []
        # A call without tags is the whole content, so content that may be one is held back; control
        # tokens that are tags are no text.
        if self._content or (not self.calls and text.lstrip().startswith(("{", "["))):
            self._content += text
            return parts
        return [*parts, Part("content", text)] if text.strip() or not self.calls else parts

    def _finish_call(self) -> list[Part]:
        calls = self._form.read(self._call, self._tools)
        text, self._call = self._call, ""
        self._take(calls)
        return [] if calls else [Part("content", text)]

    def _take(self, calls: list[Call]) -> None:
        self.calls = (self.calls + calls)[: self._most_calls]
