"""What a plan costs: bytes that are stored, and bytes and work of a decode step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from tamiz.api.cost import Cost, together
from tamiz.api.site import Site, SiteKind, taken_share
from tamiz.files.errors import blaming
from tamiz.planning.choice import Choice
from tamiz.planning.plan import Plan
from tamiz.planning.resolver import SitePlan
from tamiz_ops.formats import find_format


class Sizes(Protocol):
    """What planning reads of a dense model; a `tamiz.survey.survey.Survey` has it."""

    def weight_bytes(self, site: Site) -> int:
        """Bytes of a site's dense weight; 0 for a composite site."""

    def cache_bytes(self, site: Site) -> int:
        """Bytes of keys and values that a site keeps of a token; 0 where it is no attention."""

    @property
    def constants(self) -> Mapping[str, int]:
        """Bytes of all constants of the graph, by name."""

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph."""


@dataclass(frozen=True)
class Prediction:
    """Cost of one site before and after a build; see `tamiz.api.technique.Cost`.

    Attributes:
        plan: What happens there.
        before: Cost of the dense weight, or of the KV cache.
        after: Cost as planned.
        weight: Bytes of `after` that are the weight itself, which sites may share.
    """

    plan: SitePlan
    before: Cost
    after: Cost
    weight: int


def predict(model: Sizes, plan: Plan, context: int) -> list[Prediction]:
    """The cost of every site before and after the build.

    Args:
        model: The dense model.
        plan: The plan.
        context: Tokens that a decoded token attends to.
    """
    return [
        _prediction(site_plan, dense_cost(model, site_plan.site, context), context)
        for site_plan in plan.sites
    ]


def dense_cost(model: Sizes, site: Site, context: int) -> Cost:
    """Cost of the dense weight, or of the KV cache.

    A product reads all of its weight, a lookup one row, a product of experts those of a token.

    A weight in a format takes work to multiply. Products of floats only wait for memory.
    """
    if site.kind == SiteKind.ATTENTION:
        return Cost(0, context * model.cache_bytes(site))
    stored = model.weight_bytes(site)
    if site.kind == SiteKind.EMBEDDING:
        return Cost(stored, stored // site.out_features)
    weights = site.out_features * site.in_features
    work = find_format(site.format).work * weights if site.format else 0.0
    share = taken_share(site)
    return Cost(stored, round(share * stored), round(share * work))


def of_experts(costs: Iterable[tuple[Site, Cost]]) -> Cost:
    """What all experts of a model cost together."""
    return together(cost for site, cost in costs if site.kind == SiteKind.EXPERTS)


def acting_context(model: Sizes, plans: Iterable[SitePlan], least: int, most: int) -> int:
    """The first context of `least`, doubled, in which all techniques of attentions change steps.

    Some are inactive while a context is short: what they lose is not seen in such a text.

    Args:
        model: The dense model.
        plans: The plans of sites.
        least: Tokens.
        most: Tokens; the result is at most this.
    """
    attentions = [plan for plan in plans if plan.site.head_size]
    context = min(least, most)
    while context < most and any(_is_inactive(model, plan, context) for plan in attentions):
        context = min(2 * context, most)
    return context


def _is_inactive(model: Sizes, plan: SitePlan, context: int) -> bool:
    """Whether a technique of an attention reads all keys of a context."""
    cost = dense_cost(model, plan.site, context)
    for choice, _, after in _steps(plan, cost, context):
        if choice.technique.effect is not None and after.read == cost.read:
            return True
        cost = after
    return False


def _prediction(site_plan: SitePlan, dense: Cost, context: int) -> Prediction:
    weight, cost = dense.stored, dense
    for _, stored, after in _steps(site_plan, dense, context):
        weight, cost = stored, after
    return Prediction(site_plan, dense, cost, weight)


def _steps(site_plan: SitePlan, dense: Cost, context: int) -> Iterator[tuple[Choice, int, Cost]]:
    """Every technique of a site, with the bytes of the weight and the cost after it."""
    site, cost, weight = site_plan.site, dense, dense.stored
    for choice in site_plan.choices:
        technique = choice.technique
        with blaming(f"technique {technique.name}"):
            if technique.cost is not None:
                cost = technique.cost(site, choice.config)
                weight = cost.stored
            if technique.effect is not None:
                narrowed = site.kind == SiteKind.ATTENTION and dense.read > 0
                keys = round(context * cost.read / dense.read) if narrowed else context
                cost = technique.effect(site, choice.config, cost, keys)
        yield choice, weight, cost


def totals(model: Sizes, predictions: Iterable[Prediction]) -> tuple[Cost, Cost]:
    """Cost of the whole model before and after; a weight that sites share is stored once."""
    weights: dict[tuple[str, int], int] = {}
    dense: dict[str, int] = {}
    read, work, beside = [0, 0], [0, 0], 0
    exact = True
    for prediction in predictions:
        site = prediction.plan.site
        weight = site.weight or site.id
        dense[weight] = prediction.before.stored
        weights[weight, prediction.weight] = prediction.weight
        beside += prediction.after.stored - prediction.weight
        for index, cost in enumerate((prediction.before, prediction.after)):
            read[index] += cost.read
            work[index] += cost.work
        exact &= prediction.after.exact
    rest = sum(size for name, size in model.constants.items() if name not in dense)
    return (
        Cost(sum(dense.values()) + rest, read[0] + rest, work[0]),
        Cost(sum(weights.values()) + beside + rest, read[1] + rest, work[1], exact),
    )
