"""Makes the plan of every site from the user's choices, with its cost in bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tamiz.api.cost import Cost
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Resource, Technique
from tamiz.files.errors import TamizError, blaming, did_you_mean
from tamiz.planning.choice import Choice, by_any_name
from tamiz.planning.policy import Policy, Rules
from tamiz.planning.resolver import Conflict, Resolution, SitePlan, resolve
from tamiz.survey.survey import Survey
from tamiz_ops.formats import find_format

#: The rules of a build without a policy.
_ANYWHERE = Rules()


class ConflictError(TamizError):
    """The chosen techniques cannot act together; `conflicts` has every reason."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        """States the first conflict in one sentence, and the number of others."""
        first, others = conflicts[0], len(conflicts) - 1
        more = f" (and {others} more conflicts)" if others else ""
        super().__init__(f"{first.reason}{more}; {' or '.join(first.remedies)}")
        self.conflicts = tuple(conflicts)


@dataclass(frozen=True)
class Plan:
    """What a build is going to do.

    Attributes:
        sites: One entry a site, in graph order.
        conflicts: What had to be resolved by dropping techniques.
        dropped: ``(site id, technique name)`` that were dropped.
        policy: SHA-256 of the choices with their versions and configurations, and of the policy.
        choices: What was chosen for the whole model, also by the policy.
        rules: The policy at each site, by id.
        policy_file: The policy that was followed; None where there was none.
    """

    sites: tuple[SitePlan, ...]
    conflicts: tuple[Conflict, ...]
    dropped: tuple[tuple[str, str], ...]
    policy: str
    choices: tuple[Choice, ...]
    rules: Mapping[str, Rules]
    policy_file: Policy | None = None


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


def choose(
    techniques: Mapping[str, Technique],
    wanted: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> list[Choice]:
    """Makes choices from technique names and the fields of their configurations.

    Args:
        techniques: The declared techniques by name.
        wanted: Fields to set by technique; an empty mapping switches a technique on as it is,
            None switches it off. Techniques that are not named follow their `default`.

    Raises:
        TamizError: An unknown technique or field, or a value outside of its range.
    """
    known_as = by_any_name(techniques)
    wanted = {
        known_as[name].name if name in known_as else name: fields
        for name, fields in (wanted or {}).items()
    }
    if unknown := sorted(set(wanted) - set(techniques)):
        known = ", ".join(techniques) or "none"
        close = did_you_mean(unknown[0], techniques)
        raise TamizError(f"unknown technique {unknown[0]!r}, installed: {known}{close}")
    chosen = []
    for name, technique in techniques.items():
        fields = wanted.get(name, {} if technique.default else None)
        if fields is not None:
            chosen.append(Choice.of(technique, fields, requested=name in wanted))
    return chosen


def parse_value(text: str) -> Any:
    """A field's value on the command line: the JSON value it looks like, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def make_plan(
    sites: Sequence[Site],
    choices: Iterable[Choice],
    on_conflict: str = "error",
    policy: Policy | None = None,
    base: Rules = _ANYWHERE,
) -> Plan:
    """Plans what happens at every site.

    Args:
        sites: The sites of a model.
        choices: The techniques to use wherever they can act.
        on_conflict: ``error``, or ``drop``: requested techniques win over defaults, then the
            alphabetically first wins.
        policy: What to change at which layer and tensor.
        base: What holds where the policy does not say.

    Raises:
        ConflictError: The techniques cannot act together and `on_conflict` is ``error``.
        TamizError: The policy's fields do not fit together, or reach no technique.
    """
    rules = {site.id: policy.rules(site, base) if policy else base for site in sites}
    chosen = {choice.technique.name: choice for choice in choices}
    everywhere = set(chosen)
    if policy is not None:
        for name, technique in policy.techniques.items():
            if any(at_site.switched.get(name) for at_site in rules.values()):
                chosen.setdefault(name, Choice.of(technique, {}))
        policy.check_reach(chosen, rules)
    base_choices = tuple(chosen[name] for name in sorted(chosen))
    required = frozenset().union(*(c.technique.requires for c in base_choices))
    wanted = {
        site.id: [
            _at(choice, rules[site.id], site)
            for choice in base_choices
            if choice.technique.fits(site)
            and choice.technique.name not in rules[site.id].protected
            and not _stays_stored(choice, site, required)
            and _is_on(choice, rules[site.id], choice.technique.name in everywhere)
        ]
        for site in sites
    }
    resolution: Resolution = resolve(sites, wanted)
    if resolution.conflicts and on_conflict == "error":
        raise ConflictError(resolution.conflicts)
    return Plan(
        tuple(map(_partitioned, resolution.plans)),
        resolution.conflicts,
        resolution.dropped,
        policy_hash(base_choices, policy),
        base_choices,
        rules,
        policy,
    )


def _stays_stored(choice: Choice, site: Site, required: frozenset[str]) -> bool:
    """Whether the weight stays in its source's format: no request, nothing else needs `choice`."""
    technique = choice.technique
    owns = any(claim.resource is Resource.WEIGHTS for claim in technique.claims)
    return (
        site.format is not None and owns and not (choice.requested or technique.provides & required)
    )


def _partitioned(site_plan: SitePlan) -> SitePlan:
    """The plan with the common partition in the configurations that have a field for it."""
    block = site_plan.block
    if block is None:
        return site_plan

    def with_block(choice: Choice) -> Choice:
        field = choice.technique.partition
        return choice if field is None else choice.with_fields({field: block})

    return replace(
        site_plan,
        choices=tuple(map(with_block, site_plan.choices)),
        fallbacks=tuple(map(with_block, site_plan.fallbacks)),
    )


def _is_on(choice: Choice, rules: Rules, everywhere: bool) -> bool:
    """Whether a technique may act at a site; `everywhere` is the answer without a policy."""
    if choice.requested and not rules.enable:
        return False
    return rules.switched.get(choice.technique.name, everywhere)


def _at(choice: Choice, rules: Rules, site: Site) -> Choice:
    """A choice with the policy's fields for one site."""
    choice = replace(choice, named=choice.technique.name in rules.named)
    fields = rules.fields.get(choice.technique.name, {})
    if not fields:
        return choice
    try:
        return choice.with_fields(fields)
    except TamizError as error:
        raise TamizError(f"policy at {site.id}: {error}") from error


def policy_hash(choices: Iterable[Choice], policy: Policy | None = None) -> str:
    """SHA-256 of choices and policy: equal for two builds that follow the same ones."""
    described: dict[str, Any] = describe(choices)
    if policy is not None:
        described = {"techniques": described, "policy": dict(policy.value)}
    text = json.dumps(described, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def describe(choices: Iterable[Choice]) -> dict[str, dict[str, Any]]:
    """Version and configuration by technique, as the manifest and the reports hold them."""
    return {
        choice.technique.name: {
            "version": choice.technique.version,
            "config": choice.config.model_dump(mode="json"),
        }
        for choice in choices
    }


def predict(survey: Survey, plan: Plan, context: int) -> list[Prediction]:
    """The cost of every site before and after the build.

    Args:
        survey: The dense bundle's graph.
        plan: The plan.
        context: Tokens that a decoded token attends to.
    """
    return [
        _prediction(site_plan, dense_cost(survey, site_plan.site, context), context)
        for site_plan in plan.sites
    ]


def dense_cost(survey: Survey, site: Site, context: int) -> Cost:
    """Cost of the dense weight, or of the KV cache: a product reads all of it, a lookup one row.

    A weight in a format takes work to multiply. Products of floats only wait for memory.
    """
    if site.kind == SiteKind.ATTENTION:
        return Cost(0, context * survey.cache_bytes(site))
    stored = survey.weight_bytes(site)
    if site.kind == SiteKind.EMBEDDING:
        return Cost(stored, stored // site.out_features)
    weights = site.out_features * site.in_features
    work = find_format(site.format).work * weights if site.format else 0.0
    return Cost(stored, stored, round(work))


def acting_context(survey: Survey, plans: Iterable[SitePlan], least: int, most: int) -> int:
    """The first context of `least`, doubled, in which all techniques of attentions change steps.

    Some rest while a context is short: what they lose is not seen in a text of such contexts.

    Args:
        survey: The dense bundle's graph.
        plans: The plans of sites.
        least: Tokens.
        most: Tokens; the result is at most this.
    """
    attentions = [plan for plan in plans if plan.site.head_size]
    context = min(least, most)
    while context < most and any(_rests(survey, plan, context) for plan in attentions):
        context = min(2 * context, most)
    return context


def _rests(survey: Survey, plan: SitePlan, context: int) -> bool:
    """Whether a technique of an attention reads all keys of a context."""
    cost = dense_cost(survey, plan.site, context)
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


def totals(survey: Survey, predictions: Iterable[Prediction]) -> tuple[Cost, Cost]:
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
    initializers = survey.model.graph.initializers
    rest = sum(
        int(value.const_value.nbytes)
        for name, value in initializers.items()
        if name not in dense and value.const_value is not None
    )
    return (
        Cost(sum(dense.values()) + rest, read[0] + rest, work[0]),
        Cost(sum(weights.values()) + beside + rest, read[1] + rest, work[1], exact),
    )
