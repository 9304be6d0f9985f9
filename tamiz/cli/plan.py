"""``tamiz plan``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import fold, print_json, print_table, size
from tamiz.cli._techniques import TechniqueCommand, choices, on_conflict, plugins

if TYPE_CHECKING:
    from tamiz.plan import Plan, Prediction
    from tamiz.technique import Cost


@click.command("plan", cls=TechniqueCommand)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What to do at which layer and tensor; see 'tamiz schema policy'.",
)
@on_conflict
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    directory: Path,
    policy: Path | None,
    on_conflict: str,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Show what a build would do, and write nothing.

    For every site of the dense bundle DIR: techniques, exact bytes, bytes read for a token.
    """
    from tamiz.bundle import Bundle
    from tamiz.inspect import survey
    from tamiz.plan import ConflictError, make_plan, predict, totals
    from tamiz.policy import read_policy

    chosen = choices(ctx, flags)
    found = survey(Bundle.open_dense(directory), plugins(ctx))
    rules = None
    if policy is not None:
        rules = read_policy(policy, plugins(ctx).techniques(), found.sites)
    try:
        plan = make_plan(found.sites, chosen, on_conflict, rules)
    except ConflictError as error:
        if as_json:
            print_json({"conflicts": [asdict(conflict) for conflict in error.conflicts]})
        raise
    predictions = predict(found, plan)
    total = totals(found, predictions)
    if as_json:
        print_json(_as_dict(plan, predictions, total))
    else:
        _print(plan, predictions, total)


def _as_dict(plan: Plan, predictions: list[Prediction], total: tuple[Cost, Cost]) -> dict[str, Any]:
    from tamiz.plan import describe

    return {
        "policy_hash": plan.policy,
        "sites": [
            {
                "site": p.plan.site.id,
                "kind": p.plan.site.kind.value,
                "techniques": describe(p.plan.choices),
                "block": p.plan.block,
                "bytes": {"before": p.before.stored, "after": p.after.stored},
                "read_per_token": {"before": p.before.read, "after": p.after.read},
                "exact": p.after.exact,
            }
            for p in predictions
        ],
        "totals": {
            "bytes": {"before": total[0].stored, "after": total[1].stored},
            "read_per_token": {"before": total[0].read, "after": total[1].read},
            "exact": total[1].exact,
        },
        "conflicts": [asdict(conflict) for conflict in plan.conflicts],
        "dropped": [{"site": site, "technique": name} for site, name in plan.dropped],
    }


def _print(plan: Plan, predictions: list[Prediction], total: tuple[Cost, Cost]) -> None:
    rows = [
        (
            p.plan.site,
            (
                " → ".join(choice.technique.name for choice in p.plan.choices) or "dense",
                _bits(p),
                _at_most(p.after) + size(p.after.stored),
                _at_most(p.after) + size(p.after.read),
            ),
        )
        for p in predictions
        if p.plan.site.weight is not None or p.plan.choices
    ]
    print_table(
        ["site", ">sites", "techniques", ">bits", ">bytes each", ">read a token"], fold(rows)
    )
    before, after = total
    planned = [_at_most(after) + size(count) for count in (after.stored, after.read)]
    click.echo(f"model: {size(before.stored)} dense, {planned[0]} as planned")
    click.echo(f"read for a token: {size(before.read)} dense, {planned[1]} as planned")
    for conflict in plan.conflicts:
        click.echo(f"conflict: {conflict.reason}")
    for site, name in plan.dropped:
        click.echo(f"dropped: {name} at {site}")


def _at_most(cost: Cost) -> str:
    return "" if cost.exact else "≤ "


def _bits(prediction: Prediction) -> str:
    """Stored bits for each of the site's weights."""
    weights = prediction.plan.site.in_features * prediction.plan.site.out_features
    return f"{8 * prediction.after.stored / weights:.2f}" if weights else ""
