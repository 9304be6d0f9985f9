"""Ways to run a sequence of an op that keeps a state: in cuts, and beside other sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Place = TypeVar("Place")


class Case(Protocol):
    """Inputs of an op with a state."""

    @property
    def state(self) -> Array:
        """The state at the start."""

    def run(self, begin: int, end: int, state: Array) -> tuple[Array, Array]:
        """y of some tokens, and the state behind them."""

    def in_place(self, begin: int, end: int, state: Array) -> Array:
        """y of some tokens; the state is written over."""


C = TypeVar("C", bound=Case)


def in_cuts(case: Case, counts: Sequence[int], in_place: bool) -> Array:
    """y of all tokens, of which each call takes as many as `counts` says."""
    state, begin, rows = case.state.copy(), 0, list[Array]()
    for count in counts:
        if in_place:
            rows.append(case.in_place(begin, begin + count, state))
        else:
            y, state = case.run(begin, begin + count, state)
            rows.append(y)
        begin += count
    return np.concatenate(rows, axis=1)


def side_by_side(
    cases: Sequence[C],
    lengths: Sequence[int],
    places: Sequence[Place],
    random: np.random.Generator,
    run: Callable[[list[tuple[C, int, int, Place]]], list[Array]],
) -> list[Array]:
    """y of each sequence, where a call takes parts of any length of some of them.

    Args:
        cases: The sequences.
        lengths: Tokens of each.
        places: Where the state of each lies.
        random: Chooses the parts.
        run: y of parts in one call: case, begin, end and place of each.
    """
    done, found = [0] * len(cases), [list[Array]() for _ in cases]
    while done != list(lengths):
        counts = [
            int(random.integers(0, min(90, n - at) + 1))
            for n, at in zip(lengths, done, strict=True)
        ]
        taking = [n for n, count in enumerate(counts) if count]
        if not taking:
            continue
        parts = [(cases[n], done[n], done[n] + counts[n], places[n]) for n in taking]
        for n, y in zip(taking, run(parts), strict=True):
            found[n].append(y)
            done[n] += counts[n]
    return [np.concatenate(rows, axis=1) for rows in found]
