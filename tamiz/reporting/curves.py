"""Curves of autotune: the cosine over what a configuration costs, as coordinates of an SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tamiz.reporting.report import AttemptReport

#: Size of a chart in SVG units, and its margins.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 340, 190, 52, 10, 8, 34


@dataclass(frozen=True)
class Point:
    """One attempt.

    Attributes:
        bits: Bits per weight.
        cosine: The mean of the cosine that gates judge first.
        passed: Whether the gate accepted it.
        label: The fields of the configuration that were tuned.
    """

    bits: float
    cosine: float
    passed: bool
    label: str


def curves(attempts: Sequence[AttemptReport]) -> list[list[Point]]:
    """A curve for every technique of which several configurations were tried, by bits."""
    by_technique: dict[str, list[AttemptReport]] = {}
    for attempt in attempts:
        by_technique.setdefault(attempt.technique, []).append(attempt)
    series = []
    for name, tried in by_technique.items():
        tuned = [key for key in tried[0].config if len({str(a.config.get(key)) for a in tried}) > 1]
        points = [
            Point(a.bits_per_weight, cosine, a.passed, _label(name, a.config, tuned))
            for a in tried
            if a.bits_per_weight is not None and (cosine := _cosine(a.metrics)) is not None
        ]
        if len(points) > 1:
            series.append(sorted(points, key=lambda point: point.bits))
    return series


def _label(technique: str, config: Mapping[str, Any], tuned: Sequence[str]) -> str:
    return f"{technique} " + ", ".join(f"{key} {config.get(key)}" for key in tuned)


def _cosine(metrics: Mapping[str, float | None]) -> float | None:
    """The cosine that gates judge first."""
    means = (metrics.get(f"cos_mean_{name}") for name in ("x_w", "x", "w"))
    return next((value for value in means if value is not None), None)


def chart(lines: Sequence[Sequence[Point]], threshold: float | None) -> dict[str, Any] | None:
    """Coordinates of curves on common axes; None where there is no curve.

    Args:
        lines: The curves.
        threshold: Cosine to draw a line at, if it is within the axes.
    """
    points = [point for line in lines for point in line]
    if not points:
        return None
    low, high = min(p.bits for p in points), max(p.bits for p in points)
    bottom, top = min(p.cosine for p in points), max(p.cosine for p in points)
    floor = _HEIGHT - _BOTTOM

    def up(cosine: float) -> float:
        return round(floor - (cosine - bottom) / ((top - bottom) or 1) * (floor - _TOP), 1)

    def across(bits: float) -> float:
        return round(_LEFT + (bits - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    placed = [[(across(p.bits), up(p.cosine), p) for p in line] for line in lines]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "top": _TOP,
        "floor": floor,
        "lines": [" ".join(f"{x},{y}" for x, y, _ in line) for line in placed],
        "dots": [dot for line in placed for dot in line],
        "bits": (f"{low:.2f}", f"{high:.2f}"),
        "cosine": (f"{bottom:.4f}", f"{top:.4f}"),
        "threshold": (
            up(threshold) if threshold is not None and bottom <= threshold <= top else None
        ),
    }
