"""From what the user chose to a plan for every site, with its exact cost in bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from tamiz.errors import TamizError
from tamiz.inspect import Survey
from tamiz.resolver import Choice, Conflict, Resolution, SitePlan, resolve
from tamiz.site import Site, SiteKind
from tamiz.technique import Cost, Technique


class ConflictError(TamizError):
    """The chosen techniques cannot act together; `conflicts` says all that stands against it."""

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        """Tells the first conflict in one sentence, and how many more there are."""
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
        policy: SHA-256 of the choices with their versions and configurations.
    """

    sites: tuple[SitePlan, ...]
    conflicts: tuple[Conflict, ...]
    dropped: tuple[tuple[str, str], ...]
    policy: str


@dataclass(frozen=True)
class Prediction:
    """Cost of one site before and after a build; see `tamiz.technique.Cost`."""

    plan: SitePlan
    before: Cost
    after: Cost


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
    wanted = wanted or {}
    if unknown := sorted(set(wanted) - set(techniques)):
        known = ", ".join(techniques) or "none"
        raise TamizError(f"unknown technique {unknown[0]!r}, installed: {known}")
    chosen = []
    for name, technique in techniques.items():
        fields = wanted.get(name, {} if technique.default else None)
        if fields is not None:
            chosen.append(configure(technique, fields, asked=name in wanted))
    return chosen


def configure(technique: Technique, fields: Mapping[str, Any], *, asked: bool) -> Choice:
    """Makes one choice.

    Raises:
        TamizError: An unknown field, or a value outside of its range.
    """
    try:
        return Choice(technique, technique.config.model_validate(dict(fields)), asked)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        if name not in technique.config.model_fields:
            raise TamizError(
                f"{technique.name}: {name or 'configuration'}: {first['msg']}"
            ) from error
        expected = first["msg"].replace("Input should be", "expected")
        raise TamizError(f"{technique.flag(name)}={first['input']}: {expected}") from error


def make_plan(sites: Sequence[Site], choices: Iterable[Choice], on_conflict: str = "error") -> Plan:
    """Plans what happens at every site.

    Args:
        sites: The sites of a model.
        choices: The techniques to use wherever they can act.
        on_conflict: ``error``, or ``drop``: what the user asked for wins over defaults, then the
            earlier name wins.

    Raises:
        ConflictError: The techniques cannot act together and `on_conflict` is ``error``.
    """
    choices = sorted(choices, key=lambda choice: choice.technique.name)
    resolution: Resolution = resolve(sites, {site.id: choices for site in sites})
    if resolution.conflicts and on_conflict == "error":
        raise ConflictError(resolution.conflicts)
    return Plan(resolution.plans, resolution.conflicts, resolution.dropped, policy_hash(choices))


def policy_hash(choices: Iterable[Choice]) -> str:
    """SHA-256 of choices: equal for two builds that follow the same ones."""
    text = json.dumps(describe(choices), sort_keys=True)
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


def predict(survey: Survey, plan: Plan) -> list[Prediction]:
    """The exact cost of every site before and after the build."""
    return [
        Prediction(
            site_plan, before := dense_cost(survey, site_plan.site), _cost(site_plan, before)
        )
        for site_plan in plan.sites
    ]


def dense_cost(survey: Survey, site: Site) -> Cost:
    """Cost of the dense weight: a product reads all of it, a lookup one row."""
    stored = survey.weight_bytes(site)
    rows = site.out_features if site.kind == SiteKind.EMBEDDING else 1
    return Cost(stored, stored // rows)


def _cost(site_plan: SitePlan, dense: Cost) -> Cost:
    for choice in site_plan.choices:
        if choice.technique.cost is not None:
            return choice.technique.cost(site_plan.site, choice.config)
    return dense


def totals(survey: Survey, predictions: Iterable[Prediction]) -> tuple[Cost, Cost]:
    """Cost of the whole model before and after; a weight that sites share is stored once."""
    weights: dict[tuple[str | None, int], int] = {}
    dense: dict[str | None, int] = {}
    read = [0, 0]
    for prediction in predictions:
        weight = prediction.plan.site.weight
        dense[weight] = prediction.before.stored
        weights[weight, prediction.after.stored] = prediction.after.stored
        read[0] += prediction.before.read
        read[1] += prediction.after.read
    initializers = survey.model.graph.initializers
    rest = sum(
        int(value.const_value.nbytes)
        for name, value in initializers.items()
        if name not in dense and value.const_value is not None
    )
    return (
        Cost(sum(dense.values()) + rest, read[0] + rest),
        Cost(sum(weights.values()) + rest, read[1] + rest),
    )
