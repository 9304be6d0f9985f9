r"""Chooses one rung for every site, all sites at once.

    minimise  Σ cost(rung)   subject to   Σ quantity(rung) ≤ limit   for each limited quantity

A rung is one way to store a site. Its quantities are loss, bytes and seconds; `prefer` names the
cost. Each site takes the rung with the least cost + Σ λ · quantity. Bisection finds the least λ of
one limit after the other with which all limits hold (Lagrangian relaxation). Single swaps of rungs
then use what is left of the limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

#: What a build should have the most of, within its limits.
Prefer = Literal["speed", "size", "quality"]

Float64 = NDArray[np.float64]

#: Rounds over the limits, and steps of a bisection.
_ROUNDS, _STEPS = 4, 60
#: Range of the exponents of λ to base 2, with every quantity in units of its largest total.
_RANGE = 40.0
#: Weight of the quantities that are not preferred: it decides between equal rungs.
_TIE = 1e-6


@dataclass(frozen=True)
class Rung:
    """One way to store a site.

    Attributes:
        name: Its name: a weight format, or ``stored``.
        loss: Predicted KL divergence that it costs, in nats per token.
        bytes: Bytes in the bundle.
        seconds: Predicted time of a decode step at the site.
    """

    name: str
    loss: float
    bytes: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """Largest totals over all sites; None for no limit."""

    loss: float | None = None
    bytes: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Goal:
    """What a build within limits has to reach.

    Attributes:
        max_dppl: Largest Δppl; None for no limit.
        max_kl: Largest mean KL divergence from the reference, in nats per token.
        min_cosine: Least mean cosine between embeddings of an encoder and of the reference.
        max_bytes: Most bytes of all constants of the model.
        min_tok_s: Least predicted tokens per second of a decode step.
        prefer: What is made as good as the limits allow.
        allow: Names of the techniques to choose from; ``bits`` stands for all weight formats.
        force: Names of techniques that act wherever they can, also where they do not pay.
        context: Tokens that a predicted decode step attends to.
        points: Losses of a frontier, from the limit of KL on; 0 for a build.
        samples: How many points of a frontier are measured.
        measured: Whether what a technique saves is measured as well; else predictions decide.
    """

    max_dppl: float | None = None
    max_kl: float | None = None
    min_cosine: float | None = None
    max_bytes: int | None = None
    min_tok_s: float | None = None
    prefer: Prefer = "speed"
    allow: tuple[str, ...] = ("bits",)
    force: tuple[str, ...] = ()
    context: int = 128
    points: int = 0
    samples: int = 0
    measured: bool = True

    @property
    def lossy(self) -> bool:
        """Whether a limit of quality is set."""
        return any(x is not None for x in (self.max_dppl, self.max_kl, self.min_cosine))


#: Name of the rung that leaves a weight as its source stores it.
STORED = "stored"

_QUANTITIES = tuple(field.name for field in fields(Limits))
_COST: dict[Prefer, str] = {"speed": "seconds", "size": "bytes", "quality": "loss"}


def total(ladders: Sequence[Sequence[Rung]], picks: Sequence[int]) -> Rung:
    """The sums of the chosen rungs."""
    chosen = [ladder[pick] for ladder, pick in zip(ladders, picks, strict=True)]
    return Rung(
        "total",
        sum(rung.loss for rung in chosen),
        sum(rung.bytes for rung in chosen),
        sum(rung.seconds for rung in chosen),
    )


def solve(
    ladders: Sequence[Sequence[Rung]], limits: Limits, prefer: Prefer
) -> tuple[list[int], bool]:
    """Chooses a rung for every site.

    Args:
        ladders: The rungs of each site, at least one.
        limits: Largest totals.
        prefer: What is made as small as the limits allow.

    Returns:
        The index of the rung at each site, and whether the limits hold. Where no choice was found
        that meets them, the closest one.
    """
    problem = _Problem(ladders, limits, prefer)
    picks = problem.relax()
    return [int(pick) for pick in problem.swap(picks)], bool(problem.holds(picks))


class _Problem:
    """The quantities as arrays ``[sites, rungs]``, in units of about their largest total.

    Units are powers of two, so that sums of bytes stay exact.
    """

    def __init__(self, ladders: Sequence[Sequence[Rung]], limits: Limits, prefer: Prefer) -> None:
        width = max(map(len, ladders), default=0)
        self.rows = np.arange(len(ladders))
        self.missing = np.array([[i >= len(ladder) for i in range(width)] for ladder in ladders])
        self.values: dict[str, Float64] = {}
        self.limits: dict[str, float] = {}
        for name in _QUANTITIES:
            table = np.zeros((len(ladders), width))
            for row, ladder in zip(table, ladders, strict=True):
                row[: len(ladder)] = [getattr(rung, name) for rung in ladder]
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
            site, rung = np.unravel_index(np.where(allowed, gain, -np.inf).argmax(), gain.shape)
            picks[site] = rung
