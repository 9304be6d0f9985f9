"""Two texts as one sequence of a cross-encoder."""

from __future__ import annotations

from dataclasses import dataclass

from tamiz.files.errors import TamizError
from tamiz.runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class PairEnds:
    """Tokens around two texts.

    Attributes:
        first: Before the first text.
        between: Between the texts.
        last: Behind the second text.
        kinds: Of `first`, the first text, `between`, the second text and `last`.
    """

    first: tuple[int, ...]
    between: tuple[int, ...]
    last: tuple[int, ...]
    kinds: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> PairEnds:
        """Those of a tokenizer, by its post-processor.

        Raises:
            TamizError: The tokenizer leaves out one of two texts.
        """
        ids, kinds, whose = tokenizer.pair("a", "a")
        if 0 not in whose or 1 not in whose:
            raise TamizError(f"{tokenizer.path}: keeps one of two texts, expected both")
        begins = whose.index(0), whose.index(1)
        ends = [max(place for place, of in enumerate(whose) if of == text) + 1 for text in (0, 1)]
        places = (0, begins[0], ends[0], begins[1], ends[1])
        found = tuple(kinds[min(place, len(kinds) - 1)] for place in places)
        first, between = ids[: begins[0]], ids[ends[0] : begins[1]]
        return cls(tuple(first), tuple(between), tuple(ids[ends[1] :]), found)

    @property
    def specials(self) -> int:
        """Tokens that belong to no text."""
        return len(self.first) + len(self.between) + len(self.last)

    def join(self, a: list[int], b: list[int]) -> tuple[list[int], list[int]]:
        """The tokens of two texts together, and the kind of each."""
        parts = (self.first, a, self.between, b, self.last)
        ids = [token for part in parts for token in part]
        kinds = [kind for kind, part in zip(self.kinds, parts, strict=True) for _ in part]
        return ids, kinds


def cut_pair(a: list[int], b: list[int], room: int) -> None:
    """Cuts the ends of two texts until both fit, as ``longest_first`` of the library tokenizers.

    Args:
        a: Tokens of the first text.
        b: Tokens of the second text.
        room: Tokens that both may have together.
    """
    if len(a) + len(b) <= room:
        return
    short, long = (a, b) if len(a) <= len(b) else (b, a)
    kept = min(len(short), room)
    rest = max(kept, room - kept)
    if kept + rest > room:
        kept = room // 2
        rest = kept + room % 2
    del short[kept:], long[rest:]
