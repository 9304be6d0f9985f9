"""Where what a recurrence keeps of a sequence lies: `src/ops/recurrence/recurrent_state.h`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Tokens of a block; so many can be forgotten.
BLOCK = 16
_HEADER, _STATES, _LINE = 16, 3, 16


@dataclass(frozen=True)
class RecurrentLayout:
    """What a part of the heads keeps.

    Attributes:
        taps: Tokens that the convolution mixes.
        inputs: Floats of a token.
        states: Dimensions of the states of its heads after a token.
    """

    taps: int
    inputs: int
    states: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Tokens whose inputs are kept."""
        return 2 * BLOCK + self.taps - 1

    @property
    def row(self) -> int:
        """Floats of the row of such a token."""
        return -(-self.inputs // _LINE) * _LINE

    @property
    def size(self) -> int:
        """Floats of a sequence."""
        return _HEADER + self.rows * self.row + _STATES * int(np.prod(self.states))

    def parts(self, state: Array) -> tuple[Array, Array, Array]:
        """Views of what is kept: numbers of tokens, rows, states ``[3, …]``."""
        end = _HEADER + self.rows * self.row
        matrices = state[end:].reshape(_STATES, *self.states)
        return state[:_HEADER], state[_HEADER:end].reshape(self.rows, self.row), matrices

    def keep(self, state: Array, token: int, inputs: Array) -> None:
        """Keeps the inputs of a token, which goes on from the last one or is the first."""
        numbers, rows, _ = self.parts(state)
        assert token in (0, numbers[0]), "the reference forgets nothing"
        rows[token % self.rows] = 0
        rows[token % self.rows, : len(inputs)] = inputs
        numbers[1] = max(numbers[1], token + 1) if token else 1
        numbers[0] = token + 1

    def last_rows(self, state: Array, token: int) -> Array:
        """The inputs ``[taps, row]`` that the convolution mixes at a token."""
        rows = self.parts(state)[1]
        before = range(token - self.taps + 1, token + 1)
        return np.array([rows[at % self.rows] if at >= 0 else np.zeros(self.row) for at in before])

    def before(self, state: Array, token: int, head: int) -> Array:
        """The state of a head before a token."""
        matrices = self.parts(state)[2]
        if not token:
            return np.zeros_like(matrices[0, head])
        last: Array = matrices[(token - 1) // BLOCK % _STATES, head]
        return last

    def after(self, state: Array, token: int, head: int, value: Array) -> None:
        """Keeps the state of a head after a token."""
        self.parts(state)[2][token // BLOCK % _STATES, head] = value


def tokens_of(
    x: Array, attention_mask: Array, sequences: Array | None, slots: Array | None
) -> Iterator[tuple[tuple[int, int], int, int, bool]]:
    """Yields of each token of a call where it stands in it, its slot, its number, whether shown."""
    if sequences is not None and len(sequences):
        assert slots is not None
        first = 0
        for (begin, signed), slot in zip(sequences[:, :2].tolist(), slots.tolist(), strict=True):
            count = abs(signed)
            for token in range(count):
                yield (0, first + token), slot, begin + token, True
            first += count
        return
    batch, count = x.shape[:2]
    past = attention_mask.shape[1] - count
    for row in range(batch):
        for token in range(count):
            number = past + token
            yield (row, token), row, number, bool(attention_mask[row, number])
