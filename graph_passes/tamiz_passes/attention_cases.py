"""Inputs on which attention of a graph is compared with tamiz.Attention."""

from __future__ import annotations

import numpy as np

from tamiz_passes.probe import Case


def case_of(mask: list[list[int]], length: int) -> Case:
    """A case of a mask ``[B, P + S]``, whose positions count what it shows."""
    array = np.array(mask, np.int64)
    positions = np.maximum(np.cumsum(array, axis=1) - 1, 0)[:, -length:]
    return Case(array, positions)


#: A prompt with left padding, new tokens after a past with padding and a hole, a decode step.
CASES = (
    case_of([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]], 5),
    case_of([[1] * 7, [0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1, 1]], 3),
    case_of([[1] * 9, [0] * 4 + [1] * 5], 1),
)


def _at(positions: list[int], past: int = 0) -> Case:
    return Case(np.ones((1, past + len(positions)), np.int64), np.array([positions], np.int64))


#: Positions at which rotary tables are looked at: far ones, and some within any original context,
#: where frequencies that depend on the length would differ.
GIVEN = (_at([0, 1, 2, 3, 17, 100, 1023, 5000, 20000, 100000]), _at(list(range(10))))
#: The same where the graph counts positions itself.
COUNTED = (_at(list(range(10))), _at(list(range(4000, 4010)), past=4000))


def visible(case: Case, window: int = 0) -> np.ndarray:
    """Which keys each query attends, ``[B, S, P + S]``: those before it that are not padding."""
    queries = case.past + np.arange(case.length)[:, None]
    keys = np.arange(case.mask.shape[1])
    near = (keys <= queries) & (not window or keys > queries - window)
    return np.asarray(near & (case.mask[:, None, :] != 0))


def has_hole(mask: np.ndarray) -> np.ndarray:
    """Which rows of a mask ``[B, P + S]`` hide a key between visible ones."""
    return np.asarray((np.diff(mask != 0, axis=1, prepend=False) & (mask == 0)).any(-1))
