"""The report as one page: no network, light and dark, nothing but HTML, CSS and inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tamiz.reporting.curves import chart, curves
from tamiz.reporting.report import Report, SiteReport


def render(report: Report) -> str:
    """Renders a report."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tamiz.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tensors = [_tensor(site, entry) for site, entry in report.sites.items()]
    in_layers = [t for t in tensors if t["layer"] is not None]
    columns = list(dict.fromkeys(t["column"] for t in in_layers))
    kinds = Counter(t["kind"] for t in tensors)
    marks = {kind: chr(ord("A") + i) for i, kind in enumerate(k for k in kinds if k != "dense")}
    return environment.get_template("report.html").render(
        report=report,
        columns=columns,
        layers=sorted({t["layer"] for t in in_layers}),
        cells={(t["layer"], t["column"]): t for t in in_layers},
        others=[t for t in tensors if t["layer"] is None],
        tensors=tensors,
        kinds=kinds,
        marks=marks,
        autotune=_autotune(in_layers, columns),
    )


def _tensor(site: str, entry: SiteReport) -> dict[str, Any]:
    """What the map and the details show of one site."""
    applied, gating = entry.decision.applied, entry.gating
    attempts = entry.autotune.attempts
    exact = any(fitted.metrics.get("exact") == 1 for fitted in entry.techniques)
    drawn = curves(attempts)
    return {
        "site": site,
        "layer": entry.layer,
        "column": entry.tensor or site.removeprefix(f"layers.{entry.layer}."),
        "kind": " + ".join(applied) or "dense",
        "refused": entry.decision.refused,
        "reason": entry.decision.reason,
        "strip": entry.decision.strip_applied,
        "p05": gating.p05,
        "judged": gating.judged,
        "exact": exact and bool(applied),
        "hue": _hue(gating.p05, applied),
        "before": entry.bytes_before,
        "after": entry.bytes_after,
        "attempts": attempts,
        "curves": drawn,
        "chart": chart(drawn, gating.min_mean),
    }


def _hue(p05: float | None, applied: Sequence[str]) -> int | None:
    """Red (0) for a 5 % quantile of 0.9 and less, green (130) for 1; None for a dense site."""
    if not applied or p05 is None:
        return None
    return round(130 * min(1.0, max(0.0, (p05 - 0.9) / 0.1)))


def _autotune(tensors: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """For every column of the map where something was tuned, the curves of all layers in one."""
    charts = []
    for column in columns:
        here = [curve for t in tensors if t["column"] == column for curve in t["curves"]]
        if (made := chart(here, None)) is not None:
            charts.append({"column": column, "chart": made})
    return charts
