r"""Rows of numbers in a quarter of their bytes: 8 bits each, and a scale for every 32 of a row.

    x ≈ scale · q,    scale = max |x| / 127 over a group,    q = round(x / scale) in −127..127

Zeros stay zeros, and no other number becomes one, as techniques count them. More rows tell more of
second moments than exact rows do: of a layer with 8,960 inputs, four times as many lower the error
of a fit by a tenth (`lab/2026-11-26-limits-of-loss.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamiz_ops.formats import GROUP

#: The largest quant.
_MOST = 127

Float = NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Some rows of K numbers.

    Attributes:
        quants: int8 ``[S, K]``.
        scales: float32 ``[S, ceil(K / 32)]``.
    """

    quants: NDArray[np.int8]
    scales: Float

    @classmethod
    def of(cls, values: Float) -> Rows:
        """Rounds rows ``[S, K]``; what is not finite gets a scale that is not."""
        rows, inputs = values.shape
        count = scale_count(inputs)
        padded = np.pad(values, ((0, 0), (0, count * GROUP - inputs)))
        groups = padded.reshape(rows, count, GROUP)
        scales = (np.abs(groups).max(axis=-1) / np.float32(_MOST)).astype(np.float32)
        usable = np.isfinite(scales) & (scales > 0)
        groups = np.where(usable[..., None], groups, 0)
        rounded = np.rint(groups / np.where(usable, scales, 1)[..., None])
        quants = np.where(rounded == 0, np.sign(groups), rounded).astype(np.int8)
        return cls(quants.reshape(rows, count * GROUP)[:, :inputs], scales)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """Rows after rows."""
        return cls(
            np.concatenate([part.quants for part in parts]),
            np.concatenate([part.scales for part in parts]),
        )

    def __len__(self) -> int:
        """S."""
        return len(self.quants)

    def at(self, order: NDArray[np.intp]) -> Rows:
        """Some of the rows."""
        return Rows(self.quants[order], self.scales[order])

    def floats(self) -> Float:
        """The numbers, float32 ``[S, K]``."""
        spread = np.repeat(self.scales, GROUP, axis=1)[:, : self.quants.shape[1]]
        values: Float = self.quants * spread
        return values


def scale_count(inputs: int) -> int:
    """Scales of a row of so many numbers."""
    return -(-inputs // GROUP)


def row_bytes(inputs: int) -> int:
    """Bytes of a row of so many numbers."""
    return inputs + 4 * scale_count(inputs)
