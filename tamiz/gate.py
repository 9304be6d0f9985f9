"""The gate: whether the fit of one weight is close enough to take its place.

A prefilter that keeps out what is broken; it does not protect a model's quality by itself
(per-tensor metrics cannot, see the docs).
"""

from __future__ import annotations

from collections.abc import Mapping

#: Largest accepted ‖W − Ŵ‖ / ‖W‖; int4 costs normally distributed weights 0.08.
MAX_REL_L2 = 0.2
#: Smallest accepted mean over outputs of cos(W_n, Ŵ_n).
MIN_COS_MEAN_W = 0.98


def refusal(metrics: Mapping[str, float]) -> str | None:
    """Why a fit with these metrics is refused, in one sentence; None if it is accepted.

    A metric that the fit does not have is not judged.
    """
    rel_l2, cosine = metrics.get("rel_l2", 0.0), metrics.get("cos_mean_w", 1.0)
    if not rel_l2 <= MAX_REL_L2:
        return f"rel_l2 is {rel_l2:.4f}, the gate accepts at most {MAX_REL_L2}"
    if not cosine >= MIN_COS_MEAN_W:
        return f"cos_mean_w is {cosine:.4f}, the gate accepts at least {MIN_COS_MEAN_W}"
    return None
