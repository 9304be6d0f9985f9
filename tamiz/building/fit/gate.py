"""The gate of one tensor: whether a fit is close enough to take the weight's place.

A prefilter that keeps out what is broken; it does not protect a model's quality by itself (see
docs/quality.md). The gate that does is `tamiz.building.search.back_off`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tamiz.planning.policy import Gating

#: Suffixes of the metrics that can replace a policy's metric, best first.
_FALLBACKS = {"cos_xw": ("x_w", "w"), "cos_x": ("x", "w"), "cos_w": ("w",)}


@dataclass(frozen=True)
class Verdict:
    """What the gate said.

    Attributes:
        refusal: Why the fit is refused, in one sentence; None if it is accepted.
        metric: The cosine that was judged, ``x_w``, ``x`` or ``w``; None if the fit has none.
        mean: Its mean.
        p05: Its 5 % quantile.
    """

    refusal: str | None
    metric: str | None
    mean: float | None
    p05: float | None


def judge(metrics: Mapping[str, float], gating: Gating) -> Verdict:
    """Judges a fit by its metrics; a metric that the fit does not have is not judged."""
    names = (name for name in _FALLBACKS[gating.metric] if f"cos_mean_{name}" in metrics)
    name = next(names, None)
    mean, p05 = metrics.get(f"cos_mean_{name}"), metrics.get(f"cos_p05_{name}")
    return Verdict(_refusal(metrics, gating, name, mean, p05), name, mean, p05)


def _refusal(
    metrics: Mapping[str, float],
    gating: Gating,
    name: str | None,
    mean: float | None,
    p05: float | None,
) -> str | None:
    for key, value in metrics.items():
        if not math.isfinite(value):
            return f"{key} is {value}, the gate accepts finite metrics"
    rel_l2 = metrics.get("rel_l2")
    if rel_l2 is not None and gating.max_rel_l2 is not None and rel_l2 > gating.max_rel_l2:
        return f"rel_l2 is {rel_l2:.4f}, the gate accepts at most {gating.max_rel_l2}"
    if mean is not None and gating.min_mean is not None and mean < gating.min_mean:
        return f"cos_mean_{name} is {mean:.4f}, the gate accepts at least {gating.min_mean}"
    if p05 is not None and gating.min_p05 is not None and p05 < gating.min_p05:
        return f"cos_p05_{name} is {p05:.4f}, the gate accepts at least {gating.min_p05}"
    return None
