"""What the inputs of experts were: each has those of the tokens that took it.

counts[e]    = tokens t that took e
sums[e, k]   = Σ_t x_tk² over these
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import ExpertInputs

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class ExpertSums:
    """Sums at the input of the experts of a layer.

    Attributes:
        counts: Tokens that took each expert, ``[E]``; a token counts as often as its window.
        sums: Σ x² over these tokens, ``[E, K]``.
    """

    counts: Float64
    sums: Float64

    def joined(self, other: ExpertSums) -> ExpertSums:
        """The sums over the tokens of both."""
        return ExpertSums(self.counts + other.counts, self.sums + other.sums)

    def times(self, weight: float) -> ExpertSums:
        """The sums where each token counts as `weight` of them."""
        return ExpertSums(weight * self.counts, weight * self.sums)

    def means(self) -> ExpertInputs:
        """Mean squares of each expert."""
        return ExpertInputs.of(self.counts, self.sums)

    @classmethod
    def of_means(cls, inputs: ExpertInputs) -> ExpertSums:
        """The sums that have these means."""
        return cls(inputs.counts, inputs.counts[:, None] * inputs.imatrix.astype(np.float64))

    @classmethod
    def of_tokens(cls, x: NDArray[np.float32], chosen: NDArray[Any], experts: int) -> ExpertSums:
        """Sums over the tokens of a window.

        Args:
            x: ``[T, K]``, or ``[T · top, K]`` where each chosen expert has an input of its own.
            chosen: ``[T, top]``.
            experts: How many there are.
        """
        taken = chosen.ravel()
        rows = np.arange(len(taken)) * len(x) // len(taken)  # of x, by place in `taken`
        counts = np.bincount(taken, minlength=experts).astype(np.float64)
        sums = np.zeros((experts, x.shape[1]))
        for expert in np.flatnonzero(counts):
            inputs = x[rows[taken == expert]]
            sums[expert] = np.square(inputs, dtype=np.float64).sum(axis=0)
        return cls(counts, sums)
