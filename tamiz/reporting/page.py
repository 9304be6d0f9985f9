"""The report as one page: no network, light and dark, nothing but HTML, CSS and inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from tamiz.evaluation.judges import judge_of_gate
from tamiz.reporting.colours import BIT_STEPS, COSINE_STEPS, bits_step, cosine_step
from tamiz.reporting.curves import chart, curves
from tamiz.reporting.frontier import frontier
from tamiz.reporting.gate import WholeModelGate
from tamiz.reporting.report import Report, SiteReport, Totals

if TYPE_CHECKING:
    from jinja2 import Template


def render(report: Report) -> str:
    """Renders a report."""
    tensors = [_tensor(site, entry) for site, entry in report.sites.items()]
    in_layers = [t for t in tensors if t["layer"] is not None]
    columns = list(dict.fromkeys(t["column"] for t in in_layers))
    kinds = dict(sorted(Counter(t["kind"] for t in tensors).items(), key=_dense_last))
    marks = {kind: chr(ord("A") + i) for i, kind in enumerate(k for k in kinds if k != "dense")}
    return _template().render(
        report=report,
        judge=judge_of_gate(report.gate),
        weights=weights_text(report.totals),
        quality=_quality(report),
        limits=limits_text(report.gate),
        frontier=frontier(report.gate),
        scales=(BIT_STEPS, COSINE_STEPS),
        columns=columns,
        layers=sorted({t["layer"] for t in in_layers}),
        cells={(t["layer"], t["column"]): t for t in in_layers},
        others=[t for t in tensors if t["layer"] is None],
        tensors=tensors,
        kinds=kinds,
        marks=marks,
        autotune=_autotune(in_layers, columns),
    )


@cache
def _template() -> Template:
    """The page's template; compiling it takes longer than building a small model."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tamiz.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def weights_text(totals: Totals) -> str:
    """Says what happened to the weights."""
    if not totals.replaced:
        return f"all {totals.sites} weights kept as the source stores them"
    return f"{totals.replaced} of {totals.sites} weights replaced, {totals.exact} of them exactly"


def _tensor(site: str, entry: SiteReport) -> dict[str, Any]:
    """What the map and the details show of one site."""
    applied, gating = entry.decision.applied, entry.gating
    attempts = entry.autotune.attempts
    size, weights = entry.bytes_after or entry.bytes_before, entry.shape[0] * entry.shape[1]
    bits = 8 * size / weights if size and weights else None
    cosine = (1.0 if entry.exact else gating.p05) if applied else None
    drawn = curves(attempts)
    return {
        "site": site,
        "layer": entry.layer,
        "column": entry.tensor or site.removeprefix(f"layers.{entry.layer}."),
        "kind": " + ".join(applied) or "dense",
        "refused": entry.decision.refused,
        "reason": entry.decision.reason,
        "strip": entry.decision.strip_applied,
        "judged": gating.judged,
        "exact": entry.exact,
        "bits": bits,
        "cosine": cosine,
        "colours": f"{bits_step(bits)} {cosine_step(cosine)}".strip(),
        "before": entry.bytes_before,
        "after": size,
        "attempts": attempts,
        "curves": drawn,
        "chart": chart(drawn, gating.min_mean),
    }


def _dense_last(kind: tuple[str, int]) -> bool:
    return kind[0] == "dense"


def _quality(report: Report) -> dict[str, str]:
    """The quality of the built model in a few words, and a sentence on how it is known."""
    gate, trial = report.gate, report.gate.result
    if trial is not None:
        value, unit, note = judge_of_gate(gate).headline(gate, trial)
        limits = limits_text(gate)
        return {"value": value, "unit": unit, "note": f"{note}; limit {limits}" if limits else note}
    if not report.lossy:
        note = "every weight keeps its values, and no technique that loses quality is applied"
        return {"value": "unchanged", "unit": "", "note": note}
    return {"value": "not measured", "unit": "", "note": gate.skipped or "no text was scored"}


def limits_text(gate: WholeModelGate) -> str:
    """The limits of a gate in a few words; "" where it has none."""
    return " and ".join(judge_of_gate(gate).limit_words(gate))


def _autotune(tensors: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """For every column of the map where something was tuned, the curves of all layers in one."""
    charts = []
    for column in columns:
        here = [curve for t in tensors if t["column"] == column for curve in t["curves"]]
        if (drawn := chart(here, None)) is not None:
            charts.append({"column": column, "chart": drawn})
    return charts
