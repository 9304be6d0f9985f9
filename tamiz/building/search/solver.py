r"""Chooses one option for every weight, all weights at once.

    minimise  Σ cost(option)   subject to   Σ quantity(option) ≤ limit   for each limited quantity

An option is one way to store a weight. Its quantities are loss, bytes and seconds; `prefer` names
the cost. Each weight takes the option with the least cost + Σ λ · quantity. Bisection finds the
least λ of one limit after the other with which all limits hold (Lagrangian relaxation). Single
swaps of options then use what is left of the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tamiz.planning.goal import Prefer

Float64 = NDArray[np.float64]

#: Rounds over the limits, and steps of a bisection.
_ROUNDS, _STEPS = 4, 60
#: Range of the exponents of λ to base 2, with every quantity in units of its largest total.
_RANGE = 40.0
#: Weight of the quantities that are not preferred: it decides between equal options.
_TIE = 1e-6


@dataclass(frozen=True)
class Option:
    """One way to store a site.

    Attributes:
        name: Its name: a weight format, or `SOURCE_FORMAT`.
        loss: Predicted KL divergence that it costs, in nats per token.
        bytes: Bytes in the bundle.
        seconds: Predicted time of a decode step at the site.
    """

    name: str
    loss: float
    bytes: int
    seconds: float


@dataclass(frozen=True)
class TotalLimits:
    """Largest totals over all sites; None for no limit."""

    loss: float | None = None
    bytes: float | None = None
    seconds: float | None = None


#: Name of the option that leaves a weight in the format of its source.
SOURCE_FORMAT = "source format"

_QUANTITIES = tuple(field.name for field in fields(TotalLimits))
_COST: dict[Prefer, str] = {"speed": "seconds", "size": "bytes", "quality": "loss"}


def total(options: Sequence[Sequence[Option]], picks: Sequence[int]) -> Option:
    """The sums of the chosen options."""
    chosen = [of_weight[pick] for of_weight, pick in zip(options, picks, strict=True)]
    return Option(
        "total",
        sum(option.loss for option in chosen),
        sum(option.bytes for option in chosen),
        sum(option.seconds for option in chosen),
    )


def solve(
    options: Sequence[Sequence[Option]], limits: TotalLimits, prefer: Prefer
) -> tuple[list[int], bool]:
    """Chooses an option for every site.

    Args:
        options: The options of each site, at least one.
        limits: Largest totals.
        prefer: What is made as small as the limits allow.

    Returns:
        The index of the option at each site, and whether the limits hold. Where no choice was found
        that meets them, the closest one.
    """
    problem = _Problem(options, limits, prefer)
    picks = problem.relax()
    return [int(pick) for pick in problem.swap(picks)], bool(problem.holds(picks))


class _Problem:
    """The quantities as arrays ``[sites, options]``, in units of about their largest total.

    Units are powers of two, so that sums of bytes stay exact.
    """

    def __init__(
        self, options: Sequence[Sequence[Option]], limits: TotalLimits, prefer: Prefer
    ) -> None:
        width = max(map(len, options), default=0)
        self.rows = np.arange(len(options))
        self.missing = np.array(
            [[i >= len(of_weight) for i in range(width)] for of_weight in options]
        )
        self.values: dict[str, Float64] = {}
        self.limits: dict[str, float] = {}
        for name in _QUANTITIES:
            table = np.zeros((len(options), width))
            for row, of_weight in zip(table, options, strict=True):
                row[: len(of_weight)] = [getattr(option, name) for option in of_weight]
            unit = np.exp2(np.ceil(np.log2(max(float(table.max(axis=1).sum()), 1e-300))))
            self.values[name] = table / unit
            if (limit := getattr(limits, name)) is not None:
                self.limits[name] = limit / unit
        weights = {name: _TIE for name in _QUANTITIES} | {_COST[prefer]: 1.0}
        weighted = [weight * self.values[name] for name, weight in weights.items()]
        self.cost: Float64 = np.where(self.missing, np.inf, np.sum(weighted, axis=0))

    def relax(self) -> NDArray[np.intp]:
        """The choice with the least λ that meets the limits."""
        exponents = dict.fromkeys(self.limits, -np.inf)
        for _ in range(_ROUNDS if len(self.limits) > 1 else 1):
            for name, limit in self.limits.items():
                low, high = -_RANGE, _RANGE
                if self._spent(name, exponents | {name: -np.inf}) <= limit:
                    exponents[name] = -np.inf
                    continue
                for _ in range(_STEPS):
                    middle = (low + high) / 2
                    fits = self._spent(name, exponents | {name: middle}) <= limit
                    low, high = (low, middle) if fits else (middle, high)
                exponents[name] = high
        return self._picks(exponents)

    def _picks(self, exponents: dict[str, float]) -> NDArray[np.intp]:
        priced = self.cost
        for name, exponent in exponents.items():
            priced = priced + np.exp2(exponent) * self.values[name]
        picks: NDArray[np.intp] = priced.argmin(axis=1)
        return picks

    def _spent(self, name: str, exponents: dict[str, float]) -> float:
        return float(self.values[name][self.rows, self._picks(exponents)].sum())

    def holds(self, picks: NDArray[np.intp]) -> bool:
        """Whether the limits hold."""
        spent = {name: self.values[name][self.rows, picks].sum() for name in self.limits}
        return all(spent[name] <= limit for name, limit in self.limits.items())

    def swap(self, picks: NDArray[np.intp]) -> NDArray[np.intp]:
        """Lowers the cost by single swaps that keep the limits, the largest gain first."""
        picks = picks.copy()
        if not self.holds(picks):
            return picks
        while True:
            gain = self.cost[self.rows, picks][:, None] - self.cost
            allowed = (gain > 0) & ~self.missing
            for name, limit in self.limits.items():
                values = self.values[name]
                now = values[self.rows, picks]
                allowed &= now.sum() + values - now[:, None] <= limit
            if not allowed.any():
                return picks
            site, option = np.unravel_index(np.where(allowed, gain, -np.inf).argmax(), gain.shape)
            picks[site] = option
