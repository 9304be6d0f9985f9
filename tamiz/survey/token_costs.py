"""Predicts from a site's input how much an error at one token costs relative to other tokens.

    c_t = |g_t|² / mean of |g|²      g_t = ∂ log p / ∂x of token t        log c_t ≈ w·x_t + b

An error in x_t costs c_t times the average cost (`tamiz.survey.gradients`). Ridge regression on the
first three quarters of the windows gives w. The last quarter is held out and calibrates w: w is
multiplied by the slope of log c over w·x there, and b makes the mean predicted cost 1. Sites where
the correlation is below `_EXPLAINS` are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import usual_samples

Float = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: The fit reads every second token: neighbours are similar, and this halves the time.
_STEP = 2
#: Ridge penalty, as a part of the mean variance of the inputs.
_RIDGE = 1.0
#: Smaller costs are not predicted apart, as a part of the window's mean: log c has no lower end.
_LEAST = 1e-4
#: Smallest correlation between predicted and measured cost at which a prediction is used.
_EXPLAINS = 0.2


@dataclass
class TokenCosts:
    """Regressions of the sites of a model, window by window.

    Attributes:
        inputs: Name of the input by site id; sites with one input share its moments.
        windows: Number of windows that will be added.
    """

    inputs: Mapping[str, str]
    windows: int
    _added: int = 0
    _moments: dict[str, Float] = field(default_factory=dict)
    _products: dict[str, Float] = field(default_factory=dict)
    _weights: dict[str, Float64] = field(default_factory=dict)
    _held_out: dict[str, list[Float64]] = field(default_factory=dict)

    def add(self, values: Mapping[str, Float], squares: Mapping[str, Float64]) -> None:
        """Adds one window.

        Args:
            values: The inputs ``[T, K]`` by name.
            squares: |g|² of every token, ``[T]`` by site.
        """
        fits = self._added < self.windows - self.windows // 4
        if not fits and not self._weights:
            self._solve()
        for name in sorted({self.inputs[site] for site in squares}):
            used = usual_samples(values[name])[:: _STEP if fits else 1]
            x = values[name][used]
            ones = np.concatenate([x, np.ones((len(x), 1), np.float32)], axis=1)
            if fits:
                self._moments[name] = self._moments.get(name, 0) + ones.T @ ones
            for site in (s for s in squares if self.inputs[s] == name):
                cost = _log(squares[site][used])
                if fits:
                    product = ones.T @ cost.astype(np.float32)
                    self._products[site] = self._products.get(site, 0) + product
                else:
                    pair = np.stack([x @ self._weights[site], cost])
                    self._held_out.setdefault(site, []).append(pair)
        self._added += 1

    def predictors(self) -> dict[str, Float]:
        """w and b, float32 ``[K + 1]`` by site id, of the sites whose costs can be predicted."""
        result = {}
        for site, pairs in self._held_out.items():
            predicted, cost = np.concatenate(pairs, axis=1)
            if (
                min(predicted.std(), cost.std()) == 0
                or np.corrcoef(predicted, cost)[0, 1] < _EXPLAINS
            ):
                continue
            slope = np.cov(predicted, cost)[0, 1] / predicted.var(ddof=1)
            b = -np.log(np.exp(slope * predicted).mean())
            result[site] = np.append(slope * self._weights[site], b).astype(np.float32)
        return result

    def _solve(self) -> None:
        """Ridge regression of every site; the constant is not penalised."""
        for name in list(self._moments):
            moments = self._moments.pop(name).astype(np.float64)
            k, count = len(moments) - 1, moments[-1, -1]
            variance = np.trace(moments[:k, :k]) - np.square(moments[-1, :k]).sum() / count
            moments[np.arange(k), np.arange(k)] += max(_RIDGE * variance / k, 1e-30)
            sites = [site for site in self._products if self.inputs[site] == name]
            products = np.stack([self._products.pop(site) for site in sites], axis=1)
            for site, weights in zip(sites, np.linalg.solve(moments, products).T, strict=True):
                self._weights[site] = weights[:k]


def _log(squares: Float64) -> Float64:
    least = max(_LEAST * float(squares.mean()), 1e-300)
    return np.log(np.maximum(squares, least))
