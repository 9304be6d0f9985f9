"""The report as one page: no network, light and dark, nothing but HTML, CSS and inline SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: Size of a curve in SVG units, and its margins.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 280, 140, 44, 22


def render(report: Mapping[str, Any]) -> str:
    """Renders a report; see `tamiz.report.make_report`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tamiz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    tensors = _tensors(report)
    columns = list(dict.fromkeys(entry["tensor"] for entry in tensors if entry["layer"]))
    return environment.get_template("report.html").render(
        report=report,
        columns=columns,
        layers=sorted({int(entry["layer"]) for entry in tensors if entry["layer"]}),
        cells={(e["layer"], e["tensor"]): e for e in tensors},
        tensors=tensors,
        legend=list(dict.fromkeys(entry["kind"] for entry in tensors)),
    )


def _tensors(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One entry a weight, with what the map and the details show."""
    found = []
    for site, entry in report["sites"].items():
        layer = entry["layer"]
        about = entry
        if layer is not None and entry["tensor"]:
            about = report["layers"][str(layer)]["tensors"][entry["tensor"]]
        decision, gating = about["decision"], about["gating"]
        attempts = about["autotune"]["attempts"]
        exact = any(t["metrics"].get("exact") == 1 for t in entry["techniques"])
        found.append(
            {
                "site": site,
                "layer": "" if layer is None else str(layer),
                "tensor": entry["tensor"] or site,
                "kind": " + ".join(decision["emit"]) or "dense",
                "unsafe": decision["unsafe"],
                "reason": decision["reason"],
                "strip": decision["strip_applied"],
                "p05": gating["p05"],
                "mean": gating["mean"],
                "judged": gating["judged"],
                "exact": exact and bool(decision["emit"]),
                "hue": _hue(gating["p05"], decision["emit"]),
                "before": entry["bytes_before"],
                "after": entry["bytes_after"],
                "attempts": attempts,
                "resolved": about["resolved"],
                "curve": _curve(attempts),
            }
        )
    return found


def _hue(p05: float | None, emitted: Sequence[str]) -> int | None:
    """Red (0) for a 5 % quantile of 0.9 and less, green (130) for 1; None where dense stands."""
    if not emitted or p05 is None:
        return None
    return round(130 * min(1.0, max(0.0, (p05 - 0.9) / 0.1)))


def _curve(attempts: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The cosine over the bits of each attempt, as points of a polyline."""
    points = sorted(
        (a["bits_per_weight"], value, a["pass"])
        for a in attempts
        if a["bits_per_weight"] is not None and (value := _cosine(a["metrics"])) is not None
    )
    if len(points) < 2:
        return None
    (low, high), values = (points[0][0], points[-1][0]), [value for _, value, _ in points]
    bottom, top = min(values), max(values)

    def place(bits: float, value: float) -> tuple[float, float]:
        across = (bits - low) / ((high - low) or 1)
        up = (value - bottom) / ((top - bottom) or 1)
        x = _LEFT + across * (_WIDTH - _LEFT - 8)
        return round(x, 1), round(8 + (1 - up) * (_HEIGHT - _BOTTOM - 8), 1)

    dots = [(*place(bits, value), passed) for bits, value, passed in points]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "floor": _HEIGHT - _BOTTOM,
        "line": " ".join(f"{x},{y}" for x, y, _ in dots),
        "dots": dots,
        "bits": (round(low, 2), round(high, 2)),
        "cosine": (f"{bottom:.4f}", f"{top:.4f}"),
    }


def _cosine(metrics: Mapping[str, Any]) -> float | None:
    """The cosine that gates judge first."""
    found = (metrics.get(f"cos_mean_{name}") for name in ("x_w", "x", "w"))
    return next((value for value in found if value is not None), None)
