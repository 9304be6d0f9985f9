"""What the resolver says of every pair of installed techniques, as a page of the reference.

Both are asked for wherever they can act in a decoder; what a build uses by default stands by. The
page knows no technique: it runs the resolver on their declarations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

from tamiz.api.site import TENSOR_IDS, Site, SiteKind
from tamiz.api.technique import Technique
from tamiz.planning.choice import Choice
from tamiz.planning.resolver import Resolution, resolve

_LACKING = "required-capability"
_LAYER = 5  # some techniques leave the first layers out
_KINDS = {"tok_embd": SiteKind.EMBEDDING, "output": SiteKind.HEAD}
_PARTS = {
    SiteKind.ATTENTION: ("attention", ("attn_q", "attn_k", "attn_v", "attn_o")),
    SiteKind.FFN: ("ffn", ("ffn_gate", "ffn_up", "ffn_down")),
}


def sites() -> list[Site]:
    """The embedding, one decoder layer and the head."""
    found = []
    for tensor in TENSOR_IDS:
        layer = None if tensor in _KINDS else _LAYER
        name = tensor if layer is None else f"layers.{layer}.{tensor}"
        kind = _KINDS.get(tensor, SiteKind.LINEAR)
        found.append(Site(name, kind, name, layer, tensor, name, 1536, 1536))
    for kind, (name, tensors) in _PARTS.items():
        members = tuple(f"layers.{_LAYER}.{tensor}" for tensor in tensors)
        name = f"layers.{_LAYER}.{name}"
        found.append(Site(name, kind, name, _LAYER, members=members))
    return found


def resolved(pair: Sequence[Technique], techniques: Mapping[str, Technique]) -> Resolution:
    """Both techniques as they come, with the defaults."""
    choices = [Choice(technique, technique.config()) for technique in pair]
    choices += [
        Choice(technique, technique.config(), requested=False)
        for technique in techniques.values()
        if technique.default and technique not in pair
    ]
    return resolve(sites(), {site.id: choices for site in sites()})


def outcome(pair: Sequence[Technique], techniques: Mapping[str, Technique]) -> tuple[str, str]:
    """``compose``, ``conflict``, ``needs`` or ``apart``, and how or why."""
    found = resolved(pair, techniques)
    names = {technique.name for technique in pair}
    conflicts = [c for c in found.conflicts if names & set(c.techniques)]
    if conflicts:
        # What two techniques do to each other comes before what one of them lacks.
        first = min(conflicts, key=lambda conflict: conflict.rule == _LACKING)
        kind = "needs" if first.rule == _LACKING else "conflict"
        return kind, f"{first.rule}: {first.reason}. Remedy: {' or '.join(first.remedies)}."
    chains: dict[str, str] = {}
    for plan in found.plans:
        present = [choice.technique.name for choice in plan.choices]
        if names <= set(present):
            block = "" if plan.block is None else f", blocks of {plan.block}"
            chains.setdefault(" → ".join(present) + block, plan.site.id)
    if chains:
        return "compose", "; ".join(f"{chain} (at {site})" for chain, site in chains.items()) + "."
    return "apart", ""


def page(techniques: Mapping[str, Technique]) -> str:
    """The matrix, and how or why for every pair that meets."""
    names = list(techniques)
    outcomes = {
        (a, b): outcome((techniques[a], techniques[b]), techniques)
        for a, b in combinations(names, 2)
    }

    def cell(a: str, b: str) -> str:
        return "" if a == b else outcomes[(a, b) if (a, b) in outcomes else (b, a)][0]

    rows = [[f"**{a}**", *(cell(a, b) for b in names)] for a in names]
    parts = [
        "# Interactions",
        "What the resolver says of every two installed techniques, both asked for with their "
        "default settings. *compose*: both act at one site, in the order that is shown; "
        "*conflict*: `--on-conflict=error` refuses, `drop` keeps the one that comes first by name; "
        "*needs*: one requires a capability that the other does not provide; "
        "*apart*: they never meet at a site.",
        _table(["", *names], rows),
    ]
    for kind in ("compose", "conflict", "needs"):
        met = [(a, b, how) for (a, b), (found, how) in outcomes.items() if found == kind]
        if met:
            parts += [f"## {kind.capitalize()}", _table(["", "", ""], [list(row) for row in met])]
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
