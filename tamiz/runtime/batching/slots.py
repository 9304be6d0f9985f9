"""State of fixed size that a batch keeps of its sequences, and copies of it for prefixes.

Each sequence has a slot. As a state cannot be shared or shortened, a sequence that begins as an
earlier one did needs a copy of what that had kept at the end of a page. Copies lie in slots that
no sequence needs, under the name of the text up to there, and those of the oldest use go first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.interface.states import State

#: Slots that a batch has at least and at most.
_FEWEST, _MOST = 4, 64


def slots_of(states: Iterable[State], pages: int) -> int:
    """How many slots a batch has: they take about as much memory as the pages.

    Args:
        states: What the model keeps of a sequence.
        pages: Pages of the batch.

    Returns:
        Their number; 0 for a model without such state.
    """
    kept = list(states)
    each = sum(_bytes(state.shape(0)) for state in kept if state.in_slots)
    if not each:
        return 0
    all_pages = sum(_bytes(state.paged(pages)) for state in kept if not state.in_slots)
    return min(max(_FEWEST, all_pages // each), _MOST, max(pages, 1))


def _bytes(shape: Sequence[int]) -> int:
    size = 4
    for dim in shape:
        size *= dim
    return size


class Slots:
    """Which slots sequences have, and which hold copies.

    Attributes:
        count: Slots of the batch; 0 for a model without such state.
    """

    def __init__(
        self, states: Sequence[State] = (), cache: Sequence[NDArray[Any]] = (), count: int = 0
    ) -> None:
        """All slots are free.

        Args:
            states: What the model keeps of a sequence.
            cache: The arrays of the states.
            count: Slots that these have.
        """
        pairs = zip(states, cache, strict=True)
        self._arrays = [(state, array) for state, array in pairs if state.in_slots]
        self.count = count
        self._free = list(range(count))[::-1]
        self._copies: OrderedDict[bytes, int] = OrderedDict()
        self._answered: dict[int, bytes] = {}  # by slot the copy that was made in its answer

    @property
    def free(self) -> bool:
        """Whether a sequence can have a slot."""
        return not self.count or bool(self._free or self._copies)

    def take(self) -> int:
        """Takes a slot, if need be that of the oldest copy; 0 where sequences need none.

        Raises:
            TamizError: Sequences have all of them.
        """
        if not self.count:
            return 0
        if not self._free and self._copies:
            self._free.append(self._copies.popitem(last=False)[1])
        if not self._free:
            raise TamizError(
                f"the batch has room for {self.count} sequences of a model that keeps a state of"
                " each, and has as many; try again when a sequence was removed, or a batch of more"
                " tokens"
            )
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Frees a slot."""
        self._answered.pop(slot, None)
        if self.count:
            self._free.append(slot)

    def has(self, name: bytes) -> bool:
        """Whether there is a copy; always where sequences need none."""
        return not self.count or name in self._copies

    def load(self, name: bytes, slot: int) -> None:
        """Fills a slot from a copy."""
        if self.count:
            self._copies.move_to_end(name)
            self._copy(self._copies[name], slot)

    def save(self, name: bytes, slot: int, answered: bool) -> None:
        """Copies a slot, where there is room for a copy.

        Args:
            name: Of the text that it has.
            slot: The slot.
            answered: Whether the text ends in an answer: of each answer the last copy stays.
        """
        if not self.count or name in self._copies:
            return
        if answered:
            before = self._answered.get(slot, b"")
            if before in self._copies:
                self._free.append(self._copies.pop(before))
            self._answered[slot] = name
        if self._free or self._copies:
            copy = self.take()
            self._copy(slot, copy)
            self._copies[name] = copy

    def _copy(self, source: int, target: int) -> None:
        for state, array in self._arrays:
            state.page(array, target)[:] = state.page(array, source)
