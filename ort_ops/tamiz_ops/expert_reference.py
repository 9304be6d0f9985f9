"""Mixtures of experts in NumPy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.weight_reference import in_bytes, stored_weight

Array = npt.NDArray[Any]


def expert_router(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    offset: Array | None = None,
    factors: Array | None = None,
    *,
    experts: int,
    top: int,
    score: str = "softmax",
    normalize: int = 0,
    scale: float = 1.0,
    groups: int = 1,
    top_groups: int = 1,
) -> list[Array]:
    """The `top` best of the scores of x W^T + offset, plus bias, and what they count.

    Only experts of the `top_groups` groups with the largest sums of their two best are chosen.

    Returns [chosen, weights, share]; `share` is the sigmoid of the shared expert's score, which
    the last row of the weight gives.
    """
    scores = x.astype(np.float64) @ weight.astype(np.float64).T
    share = _sigmoid(scores[..., experts:])
    scores = scores[..., :experts] + (0 if offset is None else offset)
    if score == "softmax":
        scores = _softmax(scores)
    elif score == "sigmoid":
        scores = _sigmoid(scores)
    keys = scores if bias is None else scores + bias
    if top_groups < groups:
        grouped = keys.reshape(*keys.shape[:-1], groups, -1)
        sums = np.sort(grouped, -1)[..., -2:].sum(-1)
        best = np.argsort(-sums, axis=-1, kind="stable")[..., :top_groups]
        within = (best[..., None] == np.arange(groups)).any(-2)[..., None]
        keys = np.where(within, grouped, -np.inf).reshape(keys.shape)
    chosen = np.argsort(-keys, axis=-1, kind="stable")[..., :top]
    weights = np.take_along_axis(scores, chosen, -1)
    if score == "softmax_of_chosen":
        weights = _softmax(weights)
    if normalize:
        weights = weights / weights.sum(-1, keepdims=True)
    weights = weights * scale * (1.0 if factors is None else factors[chosen])
    return [chosen.astype(np.int32), weights, share]


def expert_matmul(
    x: Array,
    weight: Array,
    chosen: Array,
    bias: Array | None = None,
    *,
    bits: int = 0,
    n: int,
    k: int,
    experts: int,
    scale_bits: int = 16,
    format: str = "",
    activation_bits: int = 16,
) -> list[Array]:
    """y[j] = x W_e^T + bias_e for the experts e of each token; x may be [..., top, k]."""
    x = x.astype(np.float64) if x.ndim > chosen.ndim else x.astype(np.float64)[..., None, :]
    if activation_bits == 8:
        x = in_bytes(x.astype(np.float32))
    weights = stored_weight(weight, bits, n, k, scale_bits, format).reshape(experts, -1, k)
    y = np.einsum("...jk,...jnk->...jn", np.broadcast_to(x, (*chosen.shape, k)), weights[chosen])
    return [y if bias is None else y + bias.reshape(experts, -1)[chosen]]


def expert_sum(
    x: Array, weights: Array, shared: Array | None = None, share: Array | None = None
) -> list[Array]:
    """y = sum_j weights[j] x[j] + share * shared."""
    y = (x.astype(np.float64) * weights[..., None]).sum(-2)
    if shared is not None:
        y = y + shared * (1 if share is None else share)
    return [y]


def _sigmoid(x: Array) -> Array:
    with np.errstate(over="ignore"):
        y: Array = 1 / (1 + np.exp(-x))
    return y


def _softmax(x: Array) -> Array:
    y = np.exp(x - x.max(-1, keepdims=True))
    scaled: Array = y / y.sum(-1, keepdims=True)
    return scaled
