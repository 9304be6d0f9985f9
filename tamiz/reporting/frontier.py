"""The trials of the whole model's gate as one plot: loss over size, as coordinates of an SVG."""

from __future__ import annotations

from typing import Any

from tamiz.evaluation.judges.judge import Measure
from tamiz.reporting.gate import WholeModelGate

#: Size of the plot in SVG units, and its margins.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 420, 240, 52, 14, 30, 44
_MB = 1e6


def frontier(gate: WholeModelGate) -> dict[str, Any] | None:
    """Coordinates of all measured trials on common axes; None for fewer than two.

    Loss is what the gate is shown by, see `WholeModelGate.measure`. Size is megabytes of constants
    where every trial has them, and else the sites that gave a technique up.

    Args:
        gate: The gate.
    """
    measure = gate.measure
    limit = _on_axis(measure, getattr(gate, measure.limit))
    losses_of = (
        (n, t, _on_axis(measure, getattr(t, measure.name))) for n, t in enumerate(gate.trials)
    )
    measured = [(n, t, loss) for n, t, loss in losses_of if loss is not None]
    if len(measured) < 2:
        return None
    sized = all(t.bytes is not None for _, t, _ in measured)
    sizes = [(t.bytes or 0) / _MB if sized else float(len(t.refused)) for _, t, _ in measured]
    losses = [loss for _, _, loss in measured] + ([] if limit is None else [limit])
    low, high = min(sizes), max(sizes)
    bottom, top = min(0.0, *losses), max(losses)
    floor = _HEIGHT - _BOTTOM

    def across(size: float) -> float:
        return round(_LEFT + (size - low) / ((high - low) or 1) * (_WIDTH - _LEFT - _RIGHT), 1)

    def up(loss: float) -> float:
        return round(floor - (loss - bottom) / ((top - bottom) or 1) * (floor - _TOP), 1)

    dots = [
        {
            "number": number + 1,
            "x": across(size),
            "y": up(loss),
            "holds": trial.holds,
            "built": number == gate.built,
            "label": f"trial {number + 1}: {measure.axis} {loss:.4g}"
            + (f" at {size:.1f} MB" if sized else f", {size:.0f} sites without their technique"),
        }
        for size, (number, trial, loss) in zip(sizes, measured, strict=True)
    ]
    return {
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "right": _WIDTH - _RIGHT,
        "top": _TOP,
        "floor": floor,
        "dots": dots,
        "limit": None if limit is None else up(limit),
        "limit_label": None if limit is None else f"limit {limit:g}{measure.unit}",
        "x": (f"{low:.1f}", f"{high:.1f}") if sized else (f"{low:.0f}", f"{high:.0f}"),
        "y": (f"{bottom:.3g}", f"{top:.3g}"),
        "x_title": "megabytes of constants" if sized else "sites without their technique",
        "y_title": measure.axis,
    }


def _on_axis(measure: Measure, value: float | None) -> float | None:
    """What a measured value, or its limit, is on the axis of losses."""
    return None if value is None else measure.of_value(value)
