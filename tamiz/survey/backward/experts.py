"""The backward pass through mixtures of experts: the choice of experts stays as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tamiz.survey.backward.node import (
    Float,
    Gradients,
    UnknownOpError,
    Values,
    attributes_of,
    constant,
    has_input,
    read,
)

if TYPE_CHECKING:
    import onnx_ir as ir


def scale(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = w x, w a factor for each row."""
    x, weights = read(node, 0, values), read(node, 1, values)
    return [g * weights[..., None], (g * x).sum(-1)]


def expert_sum(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = Σ_j w_j x_j + share · shared."""
    x, weights = read(node, 0, values), read(node, 1, values)
    found: Gradients = [g[..., None, :] * weights[..., None], (g[..., None, :] * x).sum(-1)]
    if has_input(node, 2):
        gate = read(node, 3, values) if has_input(node, 3) else np.float32(1)
        found.append(g * gate)
        if has_input(node, 3):
            found.append((g * read(node, 2, values)).sum(-1, keepdims=True))
    return found


def expert_matmul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y_j = x W_eᵀ for the chosen experts e, W ``[n, k]`` packed in the format of its source."""
    from tamiz_ops import formats

    own, packed = attributes_of(node), node.inputs[1]
    if set(own) != {"format", "n", "k", "experts"} or packed is None or packed.const_value is None:
        raise UnknownOpError(f"{node.name}, whose weight is not as its source stores it")
    weight, format = packed.const_value.numpy(), formats.find_format(own["format"])
    x, chosen = read(node, 0, values), read(node, 2, values).astype(np.int64)
    each = own["n"] // own["experts"]
    result = np.zeros((*chosen.shape, own["k"]), np.float32)
    for expert in np.unique(chosen):
        rows = slice(int(expert) * each, (int(expert) + 1) * each)
        matrix = formats.dequantize(format, weight, own["n"], own["k"], rows)
        taken = chosen == expert
        result[taken] = g[taken] @ matrix
    return [result.sum(-2) if x.ndim == chosen.ndim else result]


def expert_router(
    node: ir.Node,
    values: Values,
    _: Float | None,
    of_weights: Float | None = None,
    of_share: Float | None = None,
) -> Gradients:
    """The weights of the chosen experts, and the share of the shared one, of scores x Wᵀ."""
    own, weight = attributes_of(node), constant(node.inputs[1])
    x, count = read(node, 0, values), own["experts"]
    scores = x @ weight.T
    if has_input(node, 3):
        scores[..., :count] += constant(node.inputs[3])
    of_scores = np.zeros_like(scores)
    if of_weights is not None:
        of_scores[..., :count] = _of_weights(node, own, scores[..., :count], of_weights)
    if of_share is not None:
        share = 1 / (1 + np.exp(-scores[..., count:]))
        of_scores[..., count:] = of_share * share * (1 - share)
    return [of_scores @ weight, None]


def _of_weights(node: ir.Node, own: dict[str, Any], scores: Any, g: Any) -> Any:
    """The gradient at the scores of the experts."""
    kind = own.get("score", "softmax")
    likely = 1 / (1 + np.exp(-scores)) if kind == "sigmoid" else _softmax(scores)
    keys = scores if kind == "softmax_of_chosen" else likely
    keys = keys + constant(node.inputs[2]) if has_input(node, 2) else keys
    keys = _within_groups(keys, own.get("groups", 1), own.get("top_groups", 1))
    chosen = np.argsort(-keys, axis=-1, kind="stable")[..., : g.shape[-1]]
    taken = np.take_along_axis(likely, chosen, -1)
    if kind == "softmax_of_chosen":
        taken = taken / taken.sum(-1, keepdims=True)
    g = g * np.float32(own.get("scale", 1.0))
    g = g * constant(node.inputs[4])[chosen] if has_input(node, 4) else g
    if own.get("normalize"):
        total = taken.sum(-1, keepdims=True)
        g = (g - (g * taken).sum(-1, keepdims=True) / total) / total
    if kind == "softmax_of_chosen":
        g = taken * (g - (g * taken).sum(-1, keepdims=True))
    result = np.zeros_like(scores)
    np.put_along_axis(result, chosen, g, -1)
    if kind == "sigmoid":
        return result * likely * (1 - likely)
    if kind == "softmax":
        return likely * (result - (result * likely).sum(-1, keepdims=True))
    return result


def _within_groups(keys: Any, groups: int, top: int) -> Any:
    """-inf in place of what is not of the `top` groups with the largest sums of their two best."""
    grouped = keys.reshape(*keys.shape[:-1], groups, -1)
    sums = np.sort(grouped, -1)[..., -2:].sum(-1)
    places = np.argsort(np.argsort(-sums, axis=-1, kind="stable"), axis=-1)
    return np.where(places[..., None] < top, grouped, -np.inf).reshape(keys.shape)


def _softmax(scores: Any) -> Any:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)
