"""What an encoder adds to its scores by the distance of two tokens, as MPNet and T5 do.

A graph computes it for each length of a text, ``[1, heads, S, S]``. Here it becomes a table
``[heads, 2 reach + 1]`` of the distances from -reach to reach, whose ends hold for all others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import numpy as np

from tamiz_passes.values import NotRunError, Refusal

Given = TypeVar("Given")

#: Longest text tried.
_LONGEST = 1024
#: A text so many times as long as the reach shows that all greater distances are alike. Buckets
#: of distances grow by less than a factor of two.
_SETTLED = 4


def distance_bias(added: Callable[[int], np.ndarray], heads: int) -> np.ndarray:
    """The table of what is added to the scores.

    Args:
        added: Gives what is added in a text of some tokens, in a shape that broadcasts to
            ``[1, heads, S, S]``.
        heads: How many there are.

    Raises:
        Refusal: It depends on more than the distance, or not on nearby tokens only.
    """
    length, found = longest(added, _LONGEST)
    try:
        bias = np.broadcast_to(found, (1, heads, length, length))[0]
    except ValueError:
        raise Refusal(f"what is added to scores has shape {list(found.shape)}") from None
    table = np.concatenate([bias[:, :0:-1, 0], bias[:, 0]], axis=1)
    column = np.arange(length)
    place = column - column[:, np.newaxis] + length - 1
    if not all(
        np.array_equal(row[place], of_head) for row, of_head in zip(table, bias, strict=True)
    ):
        raise Refusal("what is added to scores depends on more than the distance of tokens")
    reach = _reach(table)
    if length == _LONGEST and reach * _SETTLED > length:
        raise Refusal(
            f"what is added to scores still changes at a distance of {reach} tokens, expected at "
            f"most {length // _SETTLED}"
        )
    middle = length - 1
    return np.ascontiguousarray(table[:, middle - reach : middle + reach + 1], np.float32)


def longest(run: Callable[[int], Given], most: int) -> tuple[int, Given]:
    """Runs a graph with the longest text up to `most` tokens that it takes: a table of it may end.

    Args:
        run: Runs it with a text of some tokens, or raises `NotRunError`.
        most: Tokens of the longest text tried.

    Returns:
        The tokens of that text, and what the graph gave.
    """
    with suppress(NotRunError):
        return most, run(most)
    low, high = 1, most  # it runs with `low` tokens, and not with `high`
    given = run(low)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low, given = middle, run(middle)
        except NotRunError:
            high = middle
    return low, given


def _reach(table: np.ndarray) -> int:
    """The smallest distance from which on all distances of a sign have the same number."""
    middle = table.shape[1] // 2
    forth, back = table[:, middle:], table[:, middle::-1]
    changes = [np.nonzero((side[:, 1:] != side[:, :-1]).any(axis=0))[0] for side in (forth, back)]
    return max((int(side[-1]) + 1 for side in changes if len(side)), default=0)
