"""The rungs of every weight: formats to store it in, with bytes, predicted time and loss.

The loss of a rung is measured on some rows of the weight: the technique fits them, and the error of
the fit costs what `tamiz.survey.sensitivity` says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.cost import Cost
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import FitError, Technique
from tamiz.building.candidates import Progress
from tamiz.building.rewriting import constant_bytes
from tamiz.files.errors import TamizError, blaming
from tamiz.planning import speed
from tamiz.planning.allocation import STORED, Goal, Limits, Rung, solve, total
from tamiz.planning.machine import Profile, cores
from tamiz.planning.plan import dense_cost, make_plan, predict, totals
from tamiz.planning.resolver import Choice
from tamiz.planning.speed import site_seconds
from tamiz.survey.sensitivity import Sensitivity
from tamiz.survey.survey import Survey, reading
from tamiz_ops.formats import TILE, dequantize, find_format

#: Tiles of 16 rows that a loss is measured on: of a linear site, and of an embedding or a head.
_TILES, _END_TILES = 16, 48
#: Bytes per second that weights are read with where the machine was not measured.
_NOMINAL_RATE = 20e9

#: Tokens that a predicted decode step attends to.
_CONTEXT = 128

Float = NDArray[np.float32]


@dataclass(frozen=True)
class Ladder:
    """The rungs of one weight.

    Attributes:
        sites: The sites that share the weight.
        rungs: The rungs.
        choices: The technique with the configuration of each rung; None for as stored.
    """

    sites: tuple[Site, ...]
    rungs: tuple[Rung, ...]
    choices: tuple[Choice | None, ...]


@dataclass(frozen=True)
class Problem:
    """What a build within limits solves.

    Attributes:
        goal: The limits.
        ladders: The rungs of every weight.
        fixed: What the model costs beside these weights.
    """

    goal: Goal
    ladders: Sequence[Ladder]
    fixed: Rung

    @property
    def allowed_loss(self) -> float:
        """The limit of quality as a KL divergence, in nats per token; infinite without one."""
        dppl = self.goal.max_dppl
        bounds = [self.goal.max_kl, None if dppl is None else math.log1p(dppl)]
        return min((bound for bound in bounds if bound is not None), default=math.inf)

    @property
    def allowed(self) -> float | None:
        """`allowed_loss`; None without a limit of quality."""
        return self.allowed_loss if self.goal.lossy else None

    @property
    def sites(self) -> list[Site]:
        """The sites of all ladders."""
        return [site for ladder in self.ladders for site in ladder.sites]

    def spent(self, picks: Sequence[int]) -> Rung:
        """What the whole model costs."""
        sums, fixed = total(self._rungs, picks), self.fixed
        return Rung("model", sums.loss, sums.bytes + fixed.bytes, sums.seconds + fixed.seconds)

    def chosen(self, picks: Sequence[int]) -> dict[str, Choice]:
        """The choice at every site whose weight is not kept as stored."""
        return {
            site.id: choice
            for ladder, pick in zip(self.ladders, picks, strict=True)
            if (choice := ladder.choices[pick]) is not None
            for site in ladder.sites
        }

    def solve(self, loss: float | None) -> list[int]:
        """The rung of every ladder, for a largest predicted loss."""
        return solve(self._rungs, replace(self._limits, loss=loss), self.goal.prefer)[0]

    def check(self) -> None:
        """Refuses limits of bytes and speed that no choice meets.

        Raises:
            TamizError: There is none; says what the smallest and the fastest choices have.
        """
        if solve(self._rungs, self._limits, self.goal.prefer)[1]:
            return
        ends = [self.spent(solve(self._rungs, Limits(), way)[0]) for way in ("size", "speed")]
        raise TamizError(
            f"no choice meets the limits: the smallest model has {ends[0].bytes / 1e6:.1f} MB, the "
            f"fastest {1 / max(ends[1].seconds, 1e-9):.1f} predicted tokens per second; change "
            "--max-mb or --min-tok-s"
        )

    @property
    def _rungs(self) -> list[tuple[Rung, ...]]:
        return [ladder.rungs for ladder in self.ladders]

    @property
    def _limits(self) -> Limits:
        goal, fixed = self.goal, self.fixed
        return Limits(
            bytes=None if goal.max_bytes is None else goal.max_bytes - fixed.bytes,
            seconds=None if goal.min_tok_s is None else 1 / goal.min_tok_s - fixed.seconds,
        )


def rest(survey: Survey, ladders: Sequence[Ladder], profile: Profile | None) -> Rung:
    """What a model costs beside the weights of ladders."""
    weights = sum(survey.weight_bytes(ladder.sites[0]) for ladder in ladders)
    seconds = 0.0
    if profile is not None:
        predictions = predict(survey, make_plan(survey.sites, []), _CONTEXT)
        found = speed.predict(survey, predictions, totals(survey, predictions), profile)[-1]
        ours = sum(found.sites[site.id] for ladder in ladders for site in ladder.sites)
        seconds = max(0.0, 1 / found.before - ours)
    return Rung("rest", 0.0, constant_bytes(survey.model) - weights, seconds)


@dataclass(frozen=True)
class LadderMaker:
    """Makes the ladders of a model.

    Attributes:
        survey: The dense bundle's graph.
        owners: Techniques that store weights and offer rungs, with their base configurations.
        sensitivities: By site id.
        profile: The measured machine; None where it is not known.
        progress: Called for every weight.
    """

    survey: Survey
    owners: Sequence[Choice]
    sensitivities: Mapping[str, Sensitivity]
    profile: Profile | None
    progress: Progress

    def ladders(self) -> list[Ladder]:
        """The ladders of all weights whose sensitivity is known, in graph order."""
        from threadpoolctl import threadpool_limits

        shared: dict[str, list[Site]] = {}
        for site in self.survey.sites:
            if site.weight is not None:
                shared.setdefault(site.weight, []).append(site)
        known = [
            tuple(sites)
            for sites in shared.values()
            if all(site.id in self.sensitivities for site in sites)
        ]
        made = []
        with threadpool_limits(1), ThreadPoolExecutor(cores()) as pool:
            for ladder in pool.map(self._ladder, known):
                made.append(ladder)
                self.progress("measure formats", len(made), len(known))
        return [ladder for ladder in made if ladder.rungs]

    def _ladder(self, sites: tuple[Site, ...]) -> Ladder:
        """The rungs that take fewer bytes than the weight as stored, and that weight itself.

        A float32 weight has no rung as stored.
        """
        first, packed = sites[0], sites[0].format is not None
        stored = self.survey.weight_bytes(first)
        rungs: list[Rung] = []
        choices: list[Choice | None] = []
        if packed:
            costs = [dense_cost(self.survey, site, 1) for site in sites]
            rungs.append(Rung(STORED, 0.0, stored, self._seconds(sites, costs)))
            choices.append(None)
        parts = [_Rows(self.survey, site, self.sensitivities[site.id]) for site in sites]
        for owner in self.owners:
            technique = owner.technique
            assert technique.rungs is not None
            assert technique.cost is not None
            if not all(technique.fits(site) for site in sites):
                continue
            for name, fields in technique.rungs(first).items():
                choice = owner.with_fields(fields)
                costs = [technique.cost(site, choice.config) for site in sites]
                if packed and costs[0].stored >= stored:
                    continue
                losses = [part.loss(technique, choice.config) for part in parts]
                if None in losses:
                    continue
                loss = sum(loss for loss in losses if loss is not None)
                rungs.append(Rung(name, loss, costs[0].stored, self._seconds(sites, costs)))
                choices.append(choice)
        return Ladder(sites, tuple(rungs), tuple(choices))

    def _seconds(self, sites: Sequence[Site], costs: Sequence[Cost]) -> float:
        if self.profile is None:
            return sum(cost.read for cost in costs) / _NOMINAL_RATE
        rates, whole = self.profile.speeds[-1], self._working_set
        pairs = zip(sites, costs, strict=True)
        return sum(site_seconds(site, cost, whole, rates) for site, cost in pairs)

    @property
    def _working_set(self) -> int:
        return sum(self.survey.weight_bytes(site) for site in self.survey.sites)


class _Rows:
    """Some rows of a site's weight."""

    def __init__(self, survey: Survey, site: Site, sensitivity: Sensitivity) -> None:
        linear = site.kind == SiteKind.LINEAR
        self.sensitivity = sensitivity
        self.tiles = sensitivity.tiles(site.out_features, _TILES if linear else _END_TILES)
        self.rows = [_tile(survey, site, int(tile)) for tile in self.tiles]
        self.whole = np.concatenate(self.rows)
        self.site = replace(site, out_features=len(self.whole), format=None, transposed=True)

    def loss(self, technique: Technique, config: Any) -> float | None:
        """What the fit of a configuration loses; None where the technique refuses."""
        assert technique.dequantize is not None
        try:
            with blaming(f"technique {technique.name}", FitError):
                fit = technique.fit(self.site, self.whole, None, config)
                fitted = technique.dequantize(self.site, fit)
        except FitError:
            return None
        ends = np.cumsum([len(rows) for rows in self.rows])[:-1]
        return self.sensitivity.loss(self.tiles, np.split(fitted - self.whole, ends))


def _tile(survey: Survey, site: Site, tile: int) -> Float:
    """The rows of one tile of a weight, float32 ``[≤ 16, K]``."""
    assert site.weight is not None
    tensor = survey.model.graph.initializers[site.weight].const_value
    assert tensor is not None
    with reading(survey.bundle):
        stored = tensor.numpy()
    rows = slice(TILE * tile, min(TILE * (tile + 1), site.out_features))
    if site.format is not None:
        count = rows.stop - rows.start
        part = stored[tile : tile + 1]
        return dequantize(find_format(site.format), part, count, site.in_features)
    part = stored[rows] if site.transposed else stored[:, rows].T
    return np.ascontiguousarray(part, dtype=np.float32)
