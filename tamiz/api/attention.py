"""Attention sites: which keys tamiz.Attention attends to, and what that costs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.cost import Access, Cost, Part
from tamiz.api.editing import GraphEditor
from tamiz.api.ports import attribute_of, input_of, output_of
from tamiz.api.site import Site
from tamiz.api.technique import Fit, FitError

if TYPE_CHECKING:
    import onnx_ir as ir

#: Keys that a filter keeps whatever their score, unless it says otherwise: the first, the last.
SINKS, RECENT = 4, 64
#: Time to score and rank a key by its bits, in int4 multiply-accumulates for each byte of the key
#: and its value (`benchmarks/kernels/work.py`).
_SCAN = 0.2


def set_attention(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """The rewrite of a technique that only sets attributes of tamiz.Attention.

    Raises:
        FitError: The attention was not recognised, or the model has a window there that is not
            longer than the one to be set.
    """
    graph = GraphEditor(model)
    node = graph.attention(site)
    own = attribute_of(node, "window")
    attributes = dict(fit.attributes)
    if 0 < own <= int(attributes.get("window", 0)):
        raise FitError(f"the model's own window of {own} keys is not longer")
    if "window" in attributes:  # what a run without the technique sees
        attributes |= {"plain_window": own, "plain_sinks": attribute_of(node, "sinks")}
    graph.set(node, attributes)
    return [node]


def rewrite_filter(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """The rewrite of a filter of keys: sets attributes and adds the state ``past_sketch.N``.

    Raises:
        FitError: The attention was not recognised.
    """
    [node] = set_attention(site, fit, model)
    add_sketch(model, node, planes=1 + int(fit.attributes["ternary"]))
    return [node]


def add_sketch(model: ir.Model, node: ir.Node, planes: int) -> None:
    """Lets a tamiz.Attention keep sketches of its keys.

    The graph gets the state ``past_sketch.N`` → ``present_sketch.N`` ``[batch, kv_heads, past,
    words]`` beside the KV cache of layer N. It is float32, whatever the bits mean, because ONNX
    Runtime takes every output of a Fused node for float32.

    Args:
        model: The model.
        node: The tamiz.Attention.
        planes: Bits of a key's element: 1, 2 or 4.

    Raises:
        FitError: The model adds a bias by distance to scores, which sketches do not have.
    """
    if input_of(node, "head_slope") is not None:
        raise FitError("the model adds a bias by distance to scores there, expected none")
    past_key, present_key = input_of(node, "past_key"), output_of(node, "present_key")
    assert past_key is not None
    assert past_key.shape is not None
    assert present_key.shape is not None
    head_size = past_key.shape[3]
    assert isinstance(head_size, int)
    graph, words = GraphEditor(model), sketch_words(head_size, planes)
    layer = (past_key.name or "").split(".")[1]
    past = graph.add_past(f"sketch.{layer}", [*past_key.shape[:3], words])
    graph.connect(node, "past_sketch", past)
    graph.add_present(node, "present_sketch", past, [*present_key.shape[:3], words])


def filtered_cost(
    cost: Cost,
    head_size: int,
    keys: int,
    keep: int,
    planes: int,
    keep_fraction: float = 0.0,
    recent: int = RECENT,
    density: float = 1.0,
) -> Cost:
    """The cost of a decode step that attends to the keys whose sketches score best.

    Args:
        cost: Without the filter.
        head_size: Elements of a key; 0 if the attention was not recognised, whose cost stays.
        keys: Keys that the step could attend to.
        keep: Keys that the filter keeps for their score.
        planes: Bits of a sketch for each element of a key.
        keep_fraction: Keys that the filter keeps for their score, as a fraction of all; the larger
            of the two limits counts.
        recent: Last keys that are always kept, as the first `SINKS` are.
        density: The step attends to all keys where the filter would keep a larger fraction.
    """
    if head_size == 0:
        return cost
    mean = cost.read // max(1, keys) // 2  # float32, as long as a key
    fraction = math.ceil(np.float32(keep_fraction) * np.float32(keys))  # in float32, as the op does
    kept = max(keep, fraction) + recent + SINKS
    if kept >= keys or kept > density * keys:
        return Cost(cost.stored + mean, cost.read, cost.work)
    scored = (keys - recent - SINKS) / keys
    sketch = round(cost.read * scored * sketch_words(head_size, planes) / (2 * head_size))
    read = round(cost.read * kept / keys)
    index = Part(sketch, round(_SCAN * cost.read))
    parts = {Access.RECORDS: Part(read), Access.INDEX: index}
    return Cost(cost.stored + mean, read + sketch, cost.work, parts=parts)


def sketch_words(head_size: int, planes: int) -> int:
    """32-bit words of a sketch: a power of two of bits, at least 64, a plane; then its size."""
    bits = max(64, 1 << (head_size - 1).bit_length())
    return bits // 32 * planes + 1
