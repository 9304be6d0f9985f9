"""``tamiz plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import experts_line, fold, print_json, print_table, size
from tamiz.cli._sources import source, unbuilt
from tamiz.cli._techniques import (
    TechniqueCommand,
    choices,
    find_recipe,
    on_conflict,
    plugins,
    policy,
    recipe,
    recipe_flags,
)
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.api.cost import Cost
    from tamiz.files.bundle import Bundle
    from tamiz.planning.costs import Prediction
    from tamiz.planning.plan import Plan
    from tamiz.planning.speed import SpeedPrediction


@click.command("plan", cls=TechniqueCommand)
@source
@recipe
@policy
@click.option(
    "--context",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    help="Context of the predicted decode step, in tokens.",
)
@on_conflict
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    path: Path,
    recipe: str | None,
    policy: Path | None,
    context: int,
    on_conflict: str,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Show what a build would do; write nothing.

    MODEL is a dense bundle, or a file or folder that 'tamiz export' reads. Prints for each site the
    techniques in the order of their rewrites, the block size that they share, the bytes stored, and
    the bytes read per decoded token. Predicts the decode speed if 'tamiz doctor --profile' has
    measured this machine.
    """
    from tamiz.files.bundle import Bundle
    from tamiz.planning import speed
    from tamiz.planning.costs import of_experts, predict, totals
    from tamiz.planning.plan import ConflictError, make_plan
    from tamiz.planning.policy import read_policy
    from tamiz.survey.survey import survey
    from tamiz.system import machine

    chosen, installed = choices(ctx, flags, recipe), plugins(ctx)
    with unbuilt(path, installed) as folder:
        bundle = Bundle.open_dense(folder)
        _check_context(bundle, context)
        surveyed = survey(bundle, installed)
        rules = None
        if policy is not None:
            rules = read_policy(policy, installed.techniques(), surveyed.sites)
        try:
            plan = make_plan(surveyed.sites, chosen, on_conflict, rules)
        except ConflictError as error:
            if as_json:
                print_json({"conflicts": [asdict(conflict) for conflict in error.conflicts]})
            raise
        predictions = predict(surveyed, plan, context)
        total = totals(surveyed, predictions)
    experts = of_experts((p.plan.site, p.after) for p in predictions)
    speeds: Sequence[SpeedPrediction] = []
    unknown = "none, the model is no decoder"
    if surveyed.decodes:
        speeds = speed.predict(surveyed, predictions, total, machine.load())
        unknown = "no profile of this machine, run 'tamiz doctor --profile'"
    if as_json:
        print_json(_as_dict(plan, predictions, total, experts, speeds, context))
        return
    if recipe is not None:
        click.echo(f"recipe {recipe}: {' '.join(recipe_flags(ctx, find_recipe(recipe)))}")
    _print(plan, predictions, total, experts, speeds, unknown, context)


def _check_context(bundle: Bundle, context: int) -> None:
    """Refuses a context that the model does not have; not every model says how long it is."""
    from tamiz.runtime.embedding.settings import most_tokens

    limit = most_tokens(bundle) if "config.json" in bundle.manifest.files else None
    if limit is not None and context > limit:
        raise TamizError(
            f"{bundle.path}: context {context} is beyond the model's limit of {limit} tokens "
            "(max_position_embeddings of config.json)"
        )


def _as_dict(
    plan: Plan,
    predictions: Sequence[Prediction],
    total: tuple[Cost, Cost],
    experts: Cost,
    speeds: Sequence[SpeedPrediction],
    context: int,
) -> dict[str, Any]:
    from tamiz.planning.plan import describe

    return {
        "policy_hash": plan.policy,
        "context": context,
        "sites": [
            {
                "site": p.plan.site.id,
                "kind": p.plan.site.kind.value,
                "techniques": describe(p.plan.choices),
                "block": p.plan.block,
                "bytes": {"before": p.before.stored, "after": p.after.stored},
                "read_per_token": {"before": p.before.read, "after": p.after.read},
                "exact": p.after.exact,
                "microseconds": {
                    str(s.threads): round(s.sites[p.plan.site.id] * 1e6, 3) for s in speeds
                },
            }
            for p in predictions
        ],
        "totals": {
            "bytes": {"before": total[0].stored, "after": total[1].stored},
            "read_per_token": {"before": total[0].read, "after": total[1].read},
            "exact": total[1].exact,
            "experts": {"bytes": experts.stored, "read_per_token": experts.read},
            "decode_tok_s": {
                str(s.threads): {"before": round(s.before, 2), "after": round(s.after, 2)}
                for s in speeds
            },
        },
        "conflicts": [asdict(conflict) for conflict in plan.conflicts],
        "dropped": [{"site": site, "technique": name} for site, name in plan.dropped],
    }


def _print(
    plan: Plan,
    predictions: Sequence[Prediction],
    total: tuple[Cost, Cost],
    experts: Cost,
    speeds: Sequence[SpeedPrediction],
    unknown: str,
    context: int,
) -> None:
    spent = speeds[-1].sites if speeds else {}
    rows = [
        (
            p.plan.site,
            (
                " → ".join(choice.technique.name for choice in p.plan.choices) or "dense",
                "" if p.plan.block is None else str(p.plan.block),
                _at_most(p.after) + size(p.after.stored),
                _at_most(p.after) + size(p.after.read),
                f"{spent[p.plan.site.id] * 1e6:.1f}" if spent else "",
            ),
        )
        for p in predictions
        if p.after.stored or p.after.read or p.plan.choices
    ]
    columns = ["site", ">sites", "techniques", ">block", ">bytes each", ">read", ">µs"]
    print_table(columns, fold(rows))
    if experts.stored:
        click.echo(experts_line(experts))
    before, after = total
    planned = [_at_most(after) + size(count) for count in (after.stored, after.read)]
    click.echo(f"model: {size(before.stored)} dense, {planned[0]} as planned")
    click.echo(
        f"read for a token at context {context}: {size(before.read)} dense, {planned[1]} as planned"
    )
    for s in speeds:
        threads = f"{s.threads} thread{'s' if s.threads > 1 else ''}"
        click.echo(
            f"predicted decode, {threads}: {s.before:.1f} tok/s dense, {s.after:.1f} as planned"
        )
    if not speeds:
        click.echo(f"predicted decode: {unknown}")
    for conflict in plan.conflicts:
        click.echo(f"conflict: {conflict.reason}; {' or '.join(conflict.remedies)}")
    for site, name in plan.dropped:
        click.echo(f"dropped: {name} at {site}")


def _at_most(cost: Cost) -> str:
    return "" if cost.exact else "≤ "
