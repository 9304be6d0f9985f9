"""Chooses reference and threshold of a linear from consecutive calibration inputs.

The score of an input is |x_k − expected_k| ‖W_k‖, the size of what it would add to the output; of a
block of inputs that are computed together the root of the sum of squares. The output y = W x̂ + b is
carried from step to step as

    y_t = α y_{t−1} + base + W (x − expected where chosen) + b        base = (1 − α) W μ − α b
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tamiz.api import Cost, Fit, FitError, Site, Statistics
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.selection import (
    DENSE_FIRST,
    Float,
    Loss,
    Outcome,
    Reference,
    loss,
    persistence,
    simulate,
    threshold,
)

_LEAST_RUN = 64
#: Bytes of an int4 weight without its scales, which a step reads for every group.
_INT4 = 0.5
#: Bytes of weights that are read in the time that one product's choice, sum and state take: 4 µs on
#: one thread, which reads 69 kB meanwhile; two read 138 kB.
_STAGES = 100e3
_DEFAULT_GAP_TOL = 0.03
_GAP_MARGIN = 1.5
_MLP = ("ffn_gate", "ffn_up", "ffn_down")


def fit(site: Site, weight: Float, statistics: Statistics | None, config: EventDrivenConfig) -> Fit:
    """Fits the selection at a linear.

    Args:
        site: The linear.
        weight: float32 ``[N, K]``.
        statistics: With consecutive inputs.
        config: The configuration.

    Returns:
        ``scale`` (‖W_k‖), ``mean`` where the reference has one, attributes of the ops, and metrics
        on the calibration text: ``kept`` (fraction of the inputs), ``gap`` (mean of
        ‖y − y_full‖ / ‖y_full‖), ``alpha``, and cosines of the outputs.

    Raises:
        FitError: Not a target, a weight that is not finite, too little to save, or nothing is known
            of the inputs that has to be.
    """
    if not _targets(site, config):
        raise FitError(f"--event-driven-target is {config.target}")
    if not _pays(site, config):
        raise FitError(
            f"a step leaves {_unread(site, config) / 1e3:.0f} kB of it unread, but choosing takes"
            f" the time of {_STAGES / 1e3:.0f} kB; set anywhere in a policy to act"
        )
    if config.stale_beta != 1 and config.reference != "decay":
        raise FitError(f"stale_beta needs the reference decay, found {config.reference}")
    weight = np.ascontiguousarray(weight, np.float32)
    scale = np.linalg.norm(weight, axis=0).astype(np.float32)
    if not np.isfinite(scale).all():
        raise FitError("its weight is not finite, or too large to score")
    k = weight.shape[1]
    width = config.width
    blocks = -(-k // width)
    keep = max(1, round(config.topk * blocks)) if config.select == "topk" else None
    reference, theta, gap_tol, metrics = _selection(weight, scale, statistics, config, keep)
    if keep == blocks and not theta and config.budget_ms is None:
        metrics["exact"] = 1.0
    tensors = {"scale": scale}
    if reference.mean is not None:
        tensors["mean"] = reference.mean
    return Fit(
        tensors=tensors,
        attributes={
            "alpha": reference.alpha,
            "theta": theta,
            "keep": keep or 0,
            "together": width,
            "quorum": config.quorum,
            "budget_us": -1.0 if config.budget_ms is None else 1000 * config.budget_ms,
            "age_max": config.age_max,
            "gap_every": config.gap_every,
            "gap_tol": gap_tol,
            "beta": config.stale_beta,
            "dense_first": DENSE_FIRST,
        },
        metrics=metrics,
        bits_per_weight=32 * sum(tensor.size for tensor in tensors.values()) / weight.size,
    )


def _selection(
    weight: Float,
    scale: Float,
    statistics: Statistics | None,
    config: EventDrivenConfig,
    keep: int | None,
) -> tuple[Reference, float, float, dict[str, float]]:
    """The reference that loses least on the calibration text, its threshold and tolerated gap.

    Without consecutive inputs they are those of the configuration, and nothing was measured.
    """
    run = None if statistics is None else statistics.run
    if statistics is None or run is None or len(run) < _LEAST_RUN:
        tolerated = _DEFAULT_GAP_TOL if config.gap_tol is None else config.gap_tol
        return _uncalibrated(config), config.delta_theta or 0.0, tolerated, {}
    mean = statistics.samples.mean(axis=0, dtype=np.float64).astype(np.float32)
    tried = []
    for candidate in _references(config, run, mean, scale):
        least = _theta(config, run, candidate, scale)
        outcome = simulate(run, candidate, scale, least, keep, config.width)
        tried.append((loss(weight, run, outcome.effective), candidate, least, outcome))
    lost, reference, theta, outcome = min(tried, key=lambda one: _error(one[0], one[3]))
    worst = float(lost.gap.max())
    tolerated = _GAP_MARGIN * worst if config.gap_tol is None else config.gap_tol
    return reference, theta, tolerated, _metrics(lost, reference, outcome)


def effect(site: Site, config: EventDrivenConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the weights of the chosen inputs, all scales, its constants and its state."""
    if not (_targets(site, config) and _pays(site, config)):
        return cost
    k, n = site.in_features, site.out_features
    left, own = cost.masked(config.topk), 4 * (2 * k + n)
    state = 4 * (k + n)
    return replace(left, stored=cost.stored + own, read=left.read + own + state, exact=False)


def _targets(site: Site, config: EventDrivenConfig) -> bool:
    part = "both" if site.tensor is None else "mlp" if site.tensor in _MLP else "attn"
    return config.target in ("both", part)


def _unread(site: Site, config: EventDrivenConfig) -> float:
    """Bytes of an int4 weight that a step leaves unread."""
    return (1 - config.topk) * _INT4 * site.in_features * site.out_features


def _pays(site: Site, config: EventDrivenConfig) -> bool:
    """Whether a step takes less time than without; how much a given θ leaves out is not known."""
    return config.anywhere or config.delta_theta is not None or _unread(site, config) >= _STAGES


def schedule(site: Site, config: EventDrivenConfig) -> list[dict[str, float]]:
    """Autotune's attempts: from the configured fraction of inputs up, in tenths."""
    steps = range(math.ceil(10 * config.topk + 1e-9), 10)
    return [{"topk": config.topk}, *({"topk": step / 10} for step in steps)]


def _uncalibrated(config: EventDrivenConfig) -> Reference:
    """The reference without a calibration.

    Raises:
        FitError: The configuration needs a calibration.
    """
    fixed = {
        "zero": Reference("zero", None, 0.0),
        "last": Reference("last", None, 1.0),
        "decay": Reference("decay", None, math.exp(-config.stale_lambda)),
    }
    given = config.select == "topk" or config.delta_theta is not None
    if config.reference not in fixed or not given:
        raise FitError(
            f"it needs at least {_LEAST_RUN} consecutive inputs from `tamiz calibrate`, unless the"
            " reference is zero, last or decay and select=topk or delta_theta is"
            " given"
        )
    return fixed[config.reference]


def _references(
    config: EventDrivenConfig, run: Float, mean: Float, scale: Float
) -> list[Reference]:
    every = {
        "zero": Reference("zero", None, 0.0),
        "mean": Reference("mean", mean, 0.0),
        "ar1": Reference("ar1", mean, persistence(run, mean, scale)),
        "last": Reference("last", None, 1.0),
        "decay": Reference("decay", None, math.exp(-config.stale_lambda)),
    }
    names = ("zero", "mean", "ar1", "last") if config.reference == "auto" else (config.reference,)
    return [every[name] for name in names]


def _theta(config: EventDrivenConfig, run: Float, reference: Reference, scale: Float) -> float:
    if config.delta_theta is not None:
        return config.delta_theta
    if config.select == "topk":
        return 0.0
    return threshold(run, reference, scale, config.topk, config.width)


def _metrics(measured: Loss, reference: Reference, outcome: Outcome) -> dict[str, float]:
    return {
        "kept": outcome.kept,
        "alpha": reference.alpha,
        "gap": float(measured.gap.mean()),
        "cos_mean_x": float(measured.cosine.mean()),
        "cos_p05_x": float(np.quantile(measured.cosine, 0.05)),
    }


def _error(measured: Loss, outcome: Outcome) -> float:
    """Mean squared gap for what is kept: where θ is given, references keep different parts."""
    return float(np.square(measured.gap).mean()) * outcome.kept
