"""``tamiz explain``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._domain_scores import print_trial_domains
from tamiz.cli._options import PATH
from tamiz.cli._output import alike, fold, loss_text, print_json, print_table, size

if TYPE_CHECKING:
    from tamiz.evaluation.judges.judge import Measure
    from tamiz.reporting.explain import Explanation
    from tamiz.reporting.gate import WholeModelGate
    from tamiz.reporting.report import Autotune, GatingReport, Report


@click.command("explain")
@click.argument("directory", metavar="BUNDLE", type=PATH)
@click.argument("site", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(directory: Path, site: str | None, as_json: bool) -> None:
    """Show why a site was optimised or left dense.

    BUNDLE is a built bundle; its report is read. With SITE: the origin of each setting, the
    quality that the gates measured, the configurations that were tried, and the conflicts.
    Without SITE: one line per site.
    """
    from tamiz.files.bundle import Bundle
    from tamiz.reporting.explain import explain, overview
    from tamiz.reporting.reader import bundle_report

    report = bundle_report(Bundle.open(directory))
    if site is None:
        if as_json:
            print_json(overview(report))
        else:
            _print_overview(report)
    else:
        explanation = explain(report, site)
        if as_json:
            print_json(explanation.as_json())
        else:
            _print_site(explanation, report.gate.measure)


def _print_overview(report: Report) -> None:
    click.echo(f"{report.source}, policy {report.build.policy_hash[:16]}")
    _print_sites(report)
    _print_gate(report.gate)
    for conflict in report.conflicts:
        click.echo(f"conflict: {conflict.reason}")
    for drop in report.dropped:
        click.echo(f"dropped: {drop.technique} at {drop.site}")
    if report.notes:
        notes = [(note.pass_name, note.reason) for note in report.notes]
        print_table(["pass", ">nodes", "unchanged because"], alike(notes))


def _print_sites(report: Report) -> None:
    """What is applied where, and why."""
    from tamiz.api.site import Site, SiteKind

    rows = []
    for name, entry in report.sites.items():
        site = Site(name, SiteKind(entry.kind), "", entry.layer)
        rows.append(
            (site, (" → ".join(entry.decision.applied) or "dense", size(entry.bytes_after)))
        )
    print_table(["site", ">sites", "techniques", ">bytes each"], fold(rows))
    reasons = [(s.gating.judged or "", s.decision.reason) for s in report.sites.values()]
    print_table(["judged by", ">sites", "because"], alike(reasons))


def _print_gate(gate: WholeModelGate) -> None:
    from tamiz.reporting.page import limits_text

    if gate.skipped:
        click.echo(f"whole-model gate: not run, {gate.skipped}")
        return
    built = "no lossy fit was left to measure"
    if gate.result is not None:
        measure = gate.measure
        built = f"measured {loss_text(measure.label, getattr(gate.result, measure.name))}"
    click.echo(f"whole-model gate: limit {limits_text(gate) or 'none'}, {built}")
    if gate.result is not None:
        print_trial_domains(gate.result)


def _print_site(explanation: Explanation, measure: Measure) -> None:
    """Prints one site; `measure` is what trials are shown by."""
    entry = explanation.entry
    n, k = entry.shape
    shape = f", {n} × {k}" if n else ""
    before, after = size(entry.bytes_before), size(entry.bytes_after)
    click.echo(f"{explanation.site}: {entry.kind}{shape}, {before} → {after}")
    stays = "" if entry.decision.applied else "stays dense: "
    click.echo(f"{stays}{entry.decision.reason}")
    for fitted in entry.techniques:
        rows = [(f, _shown(v), fitted.config_from.get(f, "")) for f, v in fitted.config.items()]
        print_table([fitted.name, "value", "comes from"], rows)
    if origins := entry.resolved.policy_from:
        rows = [(key, str(_at(entry.resolved.policy, key)), origins[key]) for key in origins]
        print_table(["policy", "value", "comes from"], rows)
    _print_gating(entry.gating)
    _print_attempts(entry.autotune)
    for trial in explanation.backed_off:
        measured = loss_text(measure.label, getattr(trial, measure.name))
        click.echo(
            f"backed off with {len(trial.refused) - 1} others: {measure.predicted} "
            f"{_predicted(trial.predicted)}, {measured} measured without them"
        )
    for conflict in explanation.conflicts:
        click.echo(f"conflict: {conflict.reason}; {' or '.join(conflict.remedies)}")
    for name in explanation.dropped:
        click.echo(f"dropped: {name}")
    for note in explanation.notes:
        click.echo(f"unchanged by {note.pass_name}: {note.reason}")


def _predicted(loss: float | None) -> str:
    """A predicted loss; a large one says no more than that it is large."""
    if loss is None:
        return "not predicted"
    return f"{loss} predicted" if loss <= 1 else "predicted to be above 1"


def _at(entry: Any, key: str) -> Any:
    """Value of a dotted key; keys hold no dots."""
    for part in key.split("."):
        entry = entry.get(part) if isinstance(entry, dict) else None
    return entry


def _print_gating(gating: GatingReport) -> None:
    if gating.judged is None:
        return
    replaced = f" in place of {gating.metric}" if gating.fallback else ""
    explanation = (("mean", gating.mean, gating.min_mean), ("p05", gating.p05, gating.min_p05))
    parts = [
        f"{name} {value:.5f}" + ("" if least is None else f" (at least {least})")
        for name, value, least in explanation
        if value is not None
    ]
    verdict = "passed" if gating.passed else "refused"
    click.echo(f"gate {verdict}: {gating.judged}{replaced}")
    click.echo(f"  {', '.join(parts)}")


def _print_attempts(autotune: Autotune) -> None:
    attempts = autotune.attempts
    if len(attempts) < 2:
        return
    changed = {
        name
        for attempt in attempts
        for name, value in attempt.config.items()
        if any(other.config.get(name, value) != value for other in attempts)
    }
    rows = [
        (
            a.technique,
            ", ".join(f"{name} {a.config[name]}" for name in a.config if name in changed),
            size(a.bytes),
            "passed" if a.passed else a.reason or "",
        )
        for a in attempts
    ]
    print_table(["attempt", "with", ">bytes", "result"], rows)


def _shown(value: object) -> str:
    return "–" if value is None else str(value)
