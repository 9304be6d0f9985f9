"""Makes the plan of every site from the user's choices."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tamiz.api.site import Site
from tamiz.api.technique import Resource, Technique
from tamiz.files.errors import TamizError, did_you_mean
from tamiz.planning.choice import Choice, by_any_name
from tamiz.planning.policy import Policy, Rules
from tamiz.planning.resolver import Conflict, Resolution, SitePlan, resolve

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


def choose(
    techniques: Mapping[str, Technique],
    requested: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> list[Choice]:
    """Makes choices from technique names and the fields of their configurations.

    Args:
        techniques: The declared techniques by name.
        requested: Fields to set by technique; an empty mapping switches a technique on as it is,
            None switches it off. Techniques that are not named follow their `default`.

    Raises:
        TamizError: An unknown technique or field, or a value outside of its range.
    """
    known_as = by_any_name(techniques)
    requested = {
        known_as[name].name if name in known_as else name: fields
        for name, fields in (requested or {}).items()
    }
    if unknown := sorted(set(requested) - set(techniques)):
        installed = ", ".join(techniques) or "none"
        close = did_you_mean(unknown[0], techniques)
        raise TamizError(f"unknown technique {unknown[0]!r}, installed: {installed}{close}")
    chosen = []
    for name, technique in techniques.items():
        fields = requested.get(name, {} if technique.default else None)
        if fields is not None:
            chosen.append(Choice.of(technique, fields, requested=name in requested))
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
    choices_at = {
        site.id: [
            _at(choice, rules[site.id], site)
            for choice in base_choices
            if choice.technique.fits(site)
            and choice.technique.name not in rules[site.id].protected
            and not _stays_in_source_format(choice, site, required)
            and _is_on(choice, rules[site.id], choice.technique.name in everywhere)
        ]
        for site in sites
    }
    resolution: Resolution = resolve(sites, choices_at)
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


def _stays_in_source_format(choice: Choice, site: Site, required: frozenset[str]) -> bool:
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
