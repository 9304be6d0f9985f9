"""The options of every weight and attention, with bytes, predicted time and predicted loss.

An option is a lawful plan of sites: a format of the weight, and a technique that acts on it. The
loss of a format is measured on some rows of the weight: the technique fits them, and the error
of the fit costs what `tamiz.survey.sensitivity` says. A mask costs the part of the output that it
leaves out times what no output at all would cost. Other techniques declare their loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
from numpy.typing import NDArray

from tamiz.api.cost import Access, Cost
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit, FitError, Resource, Technique
from tamiz.building.search.problem import WeightOptions
from tamiz.building.search.solver import SOURCE_FORMAT, Option
from tamiz.calibration.calibration import Calibration
from tamiz.files.errors import blaming
from tamiz.planning.choice import Choice
from tamiz.planning.costs import predict
from tamiz.planning.plan import make_plan
from tamiz.planning.resolver import SitePlan
from tamiz.planning.speed import site_seconds
from tamiz.survey.sensitivity import WeightSensitivity
from tamiz.survey.survey import Survey, reading
from tamiz.system.cores import cores
from tamiz.system.machine import Profile
from tamiz.system.progress import Progress
from tamiz_ops.formats import TILE, dequantize, find_format

#: Tiles of 16 rows that a loss is measured on: of a linear site, and of an embedding or a head.
_TILES, _END_TILES = 16, 48
#: Bytes per second that weights are read with where the machine was not measured, and how much
#: longer a byte of a single line takes.
_NOMINAL_RATE, _NOMINAL_GAPS = 20e9, 1.7

Float = NDArray[np.float32]


@dataclass(frozen=True)
class OptionMaker:
    """Makes the options of the weights of a model.

    Attributes:
        survey: The dense bundle's graph.
        storing: Techniques that store weights and offer options, with their base configurations.
        bits: Whether weights that no other technique acts on may change their format.
        others: Techniques that act on weights or attentions, with their base configurations.
        forced: Names of techniques that act wherever they have an option.
        sensitivities: By site id.
        calibration: Statistics of the inputs.
        profile: The measured machine; None where it is not known.
        context: Tokens that a predicted decode step attends to.
        progress: Called for every weight.
    """

    survey: Survey
    storing: Sequence[Choice]
    bits: bool
    others: Sequence[Choice]
    forced: frozenset[str]
    sensitivities: Mapping[str, WeightSensitivity]
    calibration: Calibration
    profile: Profile | None
    context: int
    progress: Progress

    def options(self) -> list[WeightOptions]:
        """The options of all weights whose sensitivity is known, and of attentions that a
        technique may act on."""
        from threadpoolctl import threadpool_limits

        shared: dict[str, list[Site]] = {}
        for site in self.survey.sites:
            if site.weight is not None:
                shared.setdefault(site.weight, []).append(site)
        measurable = [
            tuple(sites)
            for sites in shared.values()
            if all(site.id in self.sensitivities for site in sites)
        ]
        weights = []
        with threadpool_limits(1), ThreadPoolExecutor(cores()) as pool:
            for weight in pool.map(self._of_weight, measurable):
                weights.append(weight)
                self.progress("measure formats", len(weights), len(measurable))
        attentions = (s for s in self.survey.sites if s.kind is SiteKind.ATTENTION and s.head_size)
        acting = [of for site in attentions if (of := self._of_attention(site)).options[1:]]
        return [self._with_forced(of) for of in [*weights, *acting] if of.options]

    def _with_forced(self, of: WeightOptions) -> WeightOptions:
        """The options with the forced techniques, where there are any."""
        forced = of.only(lambda names: bool(names & self.forced))
        return forced if forced.options else of

    def _of_weight(self, sites: tuple[Site, ...]) -> WeightOptions:
        """The source format, formats of fewer bytes, and techniques that act on a format.

        A float32 weight has no option in its source format.
        """
        parts = [_Rows(self.survey, site, self.sensitivities[site.id]) for site in sites]
        stored = self.survey.weight_bytes(sites[0])
        options: list[Option] = []
        plans: list[tuple[SitePlan, ...]] = []
        if sites[0].format is not None:
            plans.append(tuple(SitePlan(site, (), None) for site in sites))
            options.append(self._option(SOURCE_FORMAT, 0.0, plans[-1]))
        for name, storage, other in self._ways(sites):
            lawful = self._lawful(sites, [storage] if other is None else [storage, other])
            if lawful is None:
                continue
            option = self._option(name, 0.0, lawful)
            if other is None and sites[0].format is not None and option.bytes >= stored:
                continue
            losses = [self._loss(part, plan) for part, plan in zip(parts, lawful, strict=True)]
            if None in losses:
                continue
            options.append(replace(option, loss=sum(loss for loss in losses if loss is not None)))
            plans.append(lawful)
        return WeightOptions(sites, tuple(options), tuple(plans))

    def _ways(self, sites: tuple[Site, ...]) -> Iterator[tuple[str, Choice, Choice | None]]:
        """Names of options, storage techniques, and what acts on the weight; None for nothing."""
        others = [
            (name, other.with_fields(fields), other.technique)
            for other in self.others
            for site in sites
            if other.acts_at(site) and other.technique.options is not None
            for name, fields in other.technique.options(site).items()
        ]
        masks = [way for way in others if _masks(way[2])]
        for storage in self.storing:
            technique = storage.technique
            if technique.options is None or not all(technique.fits(site) for site in sites):
                continue
            masked = storage.with_fields(technique.masked)
            yield from ((name, masked, other) for name, other, _ in masks)
            for name, fields in technique.options(sites[0]).items():
                choice = storage.with_fields(fields)
                if self.bits or sites[0].format in (None, fields.get("format")):
                    yield name, choice, None
                    for acting, other, kind in others:
                        if not _masks(kind):
                            yield f"{name}, {acting}", choice, other

    def _of_attention(self, site: Site) -> WeightOptions:
        """The attention as it is, and every lawful set of techniques that act on it."""
        plain = SitePlan(site, (), None)
        options, plans = [self._option(SOURCE_FORMAT, 0.0, (plain,))], [(plain,)]
        ways = [[None, *self._actions(site, other)] for other in self.others]
        for way in product(*ways):
            acting = [action for action in way if action is not None]
            lawful = self._lawful((site,), [choice for _, choice, _ in acting]) if acting else None
            if lawful is None:
                continue
            name = ", ".join(name for name, _, _ in acting)
            options.append(self._option(name, sum(loss for _, _, loss in acting), lawful))
            plans.append((lawful[0],))
        return WeightOptions((site,), tuple(options), tuple(plans))

    def _actions(self, attention: Site, other: Choice) -> Iterator[tuple[str, Choice, float]]:
        """Name, choice and declared loss of each strength at which a technique acts."""
        if not other.acts_at(attention) or other.technique.options is None:
            return
        for name, fields in other.technique.options(attention).items():
            choice = other.with_fields(fields)
            if (loss := other.technique.loss) is not None:
                yield name, choice, loss(attention, choice.config)

    def _lawful(
        self, sites: tuple[Site, ...], choices: Sequence[Choice]
    ) -> tuple[SitePlan, ...] | None:
        """The plans of choices at sites; None where the resolver would drop one of them."""
        plan = make_plan(sites, [replace(c, requested=True) for c in choices], "drop")
        return None if plan.dropped else plan.sites

    def _loss(self, part: _Rows, plan: SitePlan) -> float | None:
        """What a plan loses, in nats per token; None where a technique refuses."""
        storage, *others = plan.choices
        statistics = self.calibration.statistics(self.survey.multiplying(plan.site).id)
        loss = part.stored_loss(storage, statistics)
        if loss is None:
            return None
        for other in others:
            if other.technique.loss is not None:
                loss += other.technique.loss(plan.site, other.config)
                continue
            fitted = part.fit(other, statistics)
            if fitted is None or "output_rel_l2" not in fitted.metrics:
                return None
            loss += fitted.metrics["output_rel_l2"] ** 2 * part.energy
        return loss

    def _option(self, name: str, loss: float, plans: Sequence[SitePlan]) -> Option:
        """An option of plans whose sites share a weight."""
        plan = replace(make_plan([], []), sites=tuple(plans))
        predictions = predict(self.survey, plan, self.context)
        beside = sum(prediction.after.stored - prediction.weight for prediction in predictions)
        seconds = sum(self._seconds(p.plan.site, p.after) for p in predictions)
        return Option(name, loss, predictions[0].weight + beside, seconds)

    def _seconds(self, site: Site, cost: Cost) -> float:
        if self.profile is None:
            gaps = (_NOMINAL_GAPS - 1) * cost.part(Access.RECORDS).read
            return (cost.read + gaps) / _NOMINAL_RATE
        return site_seconds(site, cost, self._working_set, self.profile.speeds[-1])

    @cached_property
    def _working_set(self) -> int:
        return sum(self.survey.weight_bytes(site) for site in self.survey.sites if site.weight)


def _masks(technique: Technique) -> bool:
    """Whether it narrows which inputs a product reads."""
    return any(claim.resource is Resource.CANDIDATES for claim in technique.claims)


class _Rows:
    """Some rows of a site's weight."""

    def __init__(self, survey: Survey, site: Site, sensitivity: WeightSensitivity) -> None:
        linear = site.kind == SiteKind.LINEAR
        self.sensitivity = sensitivity
        self.tiles = sensitivity.tiles(site.out_features, _TILES if linear else _END_TILES)
        rows = [_tile(survey, site, int(tile)) for tile in self.tiles]
        self.ends = np.cumsum([len(part) for part in rows])[:-1]
        self.whole = np.concatenate(rows)
        self.site = replace(site, out_features=len(self.whole), format=None, transposed=True)
        self._stored: dict[tuple[str, str], float | None] = {}

    def fit(self, choice: Choice, statistics: Statistics | None) -> Fit | None:
        """The fit of the rows; None where the technique refuses.

        The rows are of some experts, so they are weighed by the mean over all of them.
        """
        technique = choice.technique
        if statistics is not None:
            statistics = replace(statistics, experts=None)
        try:
            with blaming(f"technique {technique.name}", FitError):
                return technique.fit(self.site, self.whole, statistics, choice.config)
        except FitError:
            return None

    def stored_loss(self, storage: Choice, statistics: Statistics | None) -> float | None:
        """What it costs to store the rows as a technique does, fitted once for each of its
        configurations; None where the technique refuses."""
        key = storage.technique.name, storage.config.model_dump_json()
        if key not in self._stored:
            fitted, dequantize = self.fit(storage, statistics), storage.technique.dequantize
            if fitted is None or dequantize is None:
                self._stored[key] = None
            else:
                self._stored[key] = self.loss(dequantize(self.site, fitted))
        return self._stored[key]

    def loss(self, fitted: Float) -> float:
        """What it costs to multiply with other rows, in nats per token."""
        return self.sensitivity.loss(self.tiles, np.split(fitted - self.whole, self.ends))

    @cached_property
    def energy(self) -> float:
        """What it would cost to have no output at all, to second order."""
        return self.loss(np.zeros_like(self.whole))


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
