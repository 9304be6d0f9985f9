"""Splits text that comes in pieces at a pair of tags: what lies between them, and what does not."""

from __future__ import annotations

from tamiz.runtime.text.stream import possible_beginning


class Splitter:
    """Text of two kinds, outside and inside of tags that do not nest; the tags are left out.

    Attributes:
        inside: Whether the text so far ends inside of the tags.
    """

    def __init__(self, begin: str, end: str, inside: bool = False) -> None:
        """Starts outside of the tags, or inside where the text before ended in `begin`."""
        self._tags = begin, end
        self.inside = inside
        self._held = ""

    def push(self, text: str) -> list[tuple[bool, str]]:
        """Adds text.

        Returns:
            Text whose kind is certain, in its order: whether it is inside, and the text.
        """
        self._held += text
        found: list[tuple[bool, str]] = []
        while True:
            tag = self._tags[self.inside]
            before, met, after = self._held.partition(tag)
            if not met:
                break
            found.append((self.inside, before))
            self.inside, self._held = not self.inside, after
        safe = len(self._held) - possible_beginning(self._held, [tag])
        found.append((self.inside, self._held[:safe]))
        self._held = self._held[safe:]
        return [part for part in found if part[1]]

    def end(self) -> list[tuple[bool, str]]:
        """What was held back because it might have been the beginning of a tag."""
        held, self._held = self._held, ""
        return [(self.inside, held)] if held else []
