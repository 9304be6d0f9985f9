"""Fits the mask of one site: scores, the mean to take off, and the threshold.

    z = x − μ                                  μ: mean input on the calibration text
    score_b = ‖z_b‖₂ · worth_b                  or ‖z_b‖₂
    block b is kept where score_b ≥ t           y = Σ_{b kept} W_b z_b + (W μ + bias)

Where μ is taken off, what loses counts as its mean instead of as 0; elsewhere μ = 0. worth_b is
‖W_b‖_F, and t the quantile of the calibration's scores above which the fraction to keep lies. Where
it is known what an error of an input costs the model (`tamiz.survey.gradients`), worth_b² is the
mean of that over the block, so score_b² nats a token are lost with it, and one exchange rate τ of
loss for weights holds at all sites:

    score_b²  ≥  t²  =  price · strength · (the block's part of the weights of the model)

An error costs one token more than another. c = exp(w·x + b) predicts from the input x how much more
(`tamiz.survey.token_costs`); loss · c takes the place of loss, so the threshold of a token is

    t · c^−½  =  t · exp(−½ (w·x + b))          at least half of t and at most twice

(‖W_b‖: Wanda, Sun et al. 2023; thresholds of activations: TEAL, Liu et al. 2024.)
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Access, Cost, Fit, FitError, Part, Site, Statistics, usual_samples
from tamiz_kwta.config import KwtaConfig

Float = NDArray[np.float32]

#: Nats a token that reading all weights is worth at strength 1: what makes SmolLM2-135M skip a
#: fifth of its inputs.
_PRICE = 0.21
#: Fractions to keep that a build within limits chooses from.
_KEPT = (0.5, 0.4, 0.3, 0.2)
#: Least fraction that is kept: what an error costs holds for small ones.
_LEAST = 0.25
#: Of log c what is used. By errors that do not add up between tokens and layers, KL at 23 % of the
#: rows skipped is 0.0132 with all of it, 0.0125 with this and 0.0126 with half.
_TRUST = 0.7
#: Most that the threshold of a token is multiplied or divided by.
_RANGE = 2.0


def fit(site: Site, weight: Float, statistics: Statistics | None, config: KwtaConfig) -> Fit:
    """Measures the scores of a site on its calibration samples.

    Args:
        site: A linear layer of a decoder.
        weight: float32 ``[N, K]``.
        statistics: Of the site's input.
        config: Which inputs win.

    Returns:
        ``score`` float32 ``[blocks]`` (worth_b), ``center`` float32 ``[K]`` and ``slope`` = ½ w
        float32 ``[K]`` where they are used; metrics ``keep`` (fraction of blocks),
        ``output_rel_l2`` = ‖W (z − z_kept)‖ / ‖W z‖ and, where it can be predicted, ``loss`` (nats
        per token) on the samples.

    Raises:
        FitError: The site is no target, it would keep so much that a mask takes more time than
            it saves, or nothing is known of its input.
    """
    if not config.targets(site):
        raise FitError(f"--kwta-target is {config.target}")
    losses = None
    if statistics is not None and config.reads_sensitivity and statistics.sensitivity is not None:
        losses = statistics.sensitivity.inputs
    if losses is None:
        _check_pays(config, config.keep_at(site))
    if statistics is None or len(statistics.samples) < 2:
        raise FitError("nothing is known of its input")
    sensitivity = statistics.sensitivity
    samples = statistics.samples[usual_samples(statistics.samples)]  # first tokens stay dense
    tensors: dict[str, Float] = {}
    center = np.zeros(site.in_features, np.float32)
    if config.centers(site):
        center = samples.mean(axis=0, dtype=np.float64).astype(np.float32)
        tensors["center"] = center
    z = samples - center
    scores = _norms(z, config.width)
    if config.weighted:
        tensors["score"] = _worth(weight, losses, config.width)
        scores = scores * tensors["score"]
    if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
        raise FitError("its weights give scores that are not finite")
    costs = np.ones((len(z), 1), np.float32)
    if sensitivity is not None and losses is not None:
        part = statistics.weight_share * config.width / site.in_features
        by_token: dict[str, int | float | str] = {}
        if sensitivity.tokens is not None:
            half = (0.5 * _TRUST * sensitivity.tokens).astype(np.float32)
            tensors["slope"], by_token = half[:-1], {"offset": float(half[-1]), "range": _RANGE}
            costs = _costs(samples, half)
            scores = scores * np.sqrt(costs)
        threshold = _exchanged(scores, part, losses, config)
        attributes, kept = {"threshold": threshold, **by_token}, scores >= threshold
        _check_pays(config, float(kept.mean()))
    else:
        attributes, kept = _choice(scores, site, config)
    metrics = _metrics(z, kept, weight, config.width, losses, costs)
    attributes |= {"block": config.width, "duty": config.duty, "first": config.first}
    attributes |= {"renorm": 1} if config.renorm else {}
    return Fit(tensors, attributes, metrics)


def _metrics(
    z: Float,
    kept: NDArray[np.bool_],
    weight: Float,
    width: int,
    losses: Float | None,
    costs: Float,
) -> dict[str, float]:
    """What keeping these blocks of the inputs z ``[samples, K]`` does to output and loss."""
    inputs = np.repeat(kept, width, axis=1)[:, : z.shape[1]]
    whole, rest = z @ weight.T, np.where(inputs, 0, z) @ weight.T
    metrics = {
        "keep": float(kept.mean()),
        "output_rel_l2": float(np.linalg.norm(rest) / max(np.linalg.norm(whole), 1e-30)),
        "exact": float(kept.all()),
    }
    if losses is not None:
        lost = np.where(inputs, 0, np.square(z)) @ losses
        metrics["loss"] = float((lost * costs[:, 0]).mean())
    return metrics


def effect(site: Site, config: KwtaConfig, cost: Cost, keys: int) -> Cost:
    """A step reads what wins of the weight, line by line, and its scales.

    Where the measured cost of errors decides, the fit may mask other sites than predicted here: the
    stored bytes are then an upper bound. They also are where μ is taken off: the bias that makes up
    for it may take the place of another.
    """
    keep = config.keep_at(site)
    if not (config.targets(site) and (config.pays(keep) or config.reads_sensitivity)):
        return cost
    blocks = -(-site.in_features // config.width)
    share = keep if config.select != "mass" else 1.0
    share = share / config.duty + 1 - 1 / config.duty
    constants = (site.in_features + site.out_features) * config.centers(site)
    own = 4 * (blocks * config.weighted + site.in_features * config.reads_sensitivity + constants)
    if not config.pays(keep):
        return replace(cost, stored=cost.stored + own, exact=False)
    left = cost.masked(share)
    lines = left.read - cost.part(Access.FIXED).read
    return replace(
        left,
        stored=cost.stored + own,
        read=left.read + own,
        exact=cost.exact and not (config.reads_sensitivity or config.centers(site)),
        parts={**cost.parts, Access.RECORDS: Part(lines)},
    )


def options(site: Site) -> dict[str, dict[str, float]]:
    """Deep masks of the feed-forward layers: shallow masks and short inputs save no time."""
    kept = _KEPT if (site.tensor or "").startswith("ffn") else ()
    return {f"kwta {keep}": {"k": keep} for keep in kept}


def _check_pays(config: KwtaConfig, keep: float) -> None:
    if not config.pays(keep):
        raise FitError(
            f"it would keep {keep:.2f} of its inputs, more than max_keep, {config.max_keep:g}"
        )


def _norms(rows: Float, block: int, axis: int = 1) -> Float:
    """‖·‖ of blocks of columns: of each row ``[R, blocks]``, or with axis 0 of all ``[blocks]``."""
    padded = np.pad(rows, ((0, 0), (0, -rows.shape[1] % block)))
    squares = np.square(padded.reshape(len(rows), -1, block)).sum(axis=2)
    norms: Float = np.sqrt(squares if axis else squares.sum(axis=0))
    return norms


def _worth(weight: Float, losses: Float | None, block: int) -> Float:
    """What blocks of columns of the weight are worth, ``[blocks]``."""
    if losses is None:
        return _norms(np.ascontiguousarray(weight), block, axis=0)
    members: Float = np.add.reduceat(np.ones_like(losses), np.arange(0, len(losses), block))
    worth: Float = _norms(np.sqrt(losses)[np.newaxis], block, axis=0)
    worth /= np.sqrt(members)
    return worth


def _costs(samples: Float, half: Float) -> Float:
    """c of the samples, ``[S, 1]``, from half of the weights that predict its logarithm."""
    limit = math.log(_RANGE)
    logs = np.clip(samples @ half[:-1] + half[-1], -limit, limit)
    costs: Float = np.exp(2 * logs)[:, np.newaxis].astype(np.float32)
    return costs


def _exchanged(scores: Float, part: float, losses: Float, config: KwtaConfig) -> float:
    """The threshold where it is known what errors cost.

    Args:
        scores: Of the samples, ``[S, blocks]``, times √c.
        part: A block's part of the weights of the model.
        losses: What errors of the inputs cost, ``[K]``.
        config: With a strength.
    """
    threshold = math.sqrt(_PRICE * config.strength * part)
    if not config.weighted:
        threshold /= math.sqrt(max(float(losses.mean()), 1e-30))
    return min(threshold, float(np.quantile(scores, 1 - _LEAST)))


def _choice(
    scores: Float, site: Site, config: KwtaConfig
) -> tuple[dict[str, int | float | str], NDArray[np.bool_]]:
    """Attributes of the op, and which blocks of the samples win."""
    blocks = scores.shape[1]
    if config.select == "mass":
        temperature = config.temp * float(scores.mean())
        likely = np.exp((scores - scores.max(axis=1, keepdims=True)) / temperature)
        order = np.sort(likely, axis=1)[:, ::-1]
        held = np.cumsum(order, axis=1) - order < config.mass * order.sum(axis=1, keepdims=True)
        last = np.take_along_axis(order, held.sum(axis=1, keepdims=True) - 1, axis=1)
        return {"mass": config.mass, "temperature": temperature}, likely >= last
    keep = min(max(1, round(config.keep_at(site) * blocks)), blocks)
    threshold = 0.0  # all blocks, however small those of another text are
    if keep < blocks:
        threshold = float(np.sort(scores, axis=None)[-keep * len(scores)])
    if config.select == "topk":
        ranks = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
        return {"keep": keep}, ranks < keep
    return {"threshold": threshold}, scores >= threshold
