"""Edits at an attention site: which keys tamiz.Attention attends to."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir
from onnx_ir.convenience import convert_attribute

from tamiz.graph import DOMAIN
from tamiz.site import Site
from tamiz.technique import Cost, FitError

#: First keys, and last ones, that a filter keeps unless it is told otherwise.
SINKS, RECENT = 4, 64
#: How much longer the bits of a key take to be scored and ranked than a weight of an int4 product,
#: for each byte of the key and its value (measured at 2,000 and 8,000 keys of SmolLM2).
_SCAN = 1.4

#: Where tamiz.Attention has its inverse frequencies, sketches and the mean of its keys.
PAST_KEY, PAST_SKETCH, KEY_MEAN = 3, 8, 9
PRESENT_KEY, PRESENT_SKETCH = 1, 3


def find_attention(model: ir.Model, site: Site) -> ir.Node:
    """The tamiz.Attention at `site`.

    Raises:
        FitError: The graph has another node there, as the attention was not recognised.
    """
    node = next((n for n in model.graph if n.name == site.node), None)
    if node is None or (node.domain, node.op_type) != (DOMAIN, "Attention"):
        found = "no node" if node is None else node.op_type
        raise FitError(f"its attention was not recognised: found {found}, expected tamiz.Attention")
    return node


def set_attributes(node: ir.Node, attributes: Mapping[str, int | float | str]) -> None:
    """Sets attributes of a node in place."""
    for name, value in attributes.items():
        node.attributes[name] = convert_attribute(name, value)


def add_sketch(model: ir.Model, node: ir.Node, planes: int) -> None:
    """Lets a tamiz.Attention keep sketches of its keys.

    The graph gets the state ``past_sketch.N`` → ``present_sketch.N`` ``[batch, kv_heads, past,
    words]`` beside the KV cache of layer N. It is float32, whatever the bits mean, because ONNX
    Runtime takes every output of a Fused node for float32.

    Args:
        model: The model.
        node: The tamiz.Attention.
        planes: Bits of a key's element: 1 or 2.
    """
    past_key, present_key = node.inputs[PAST_KEY], node.outputs[PRESENT_KEY]
    assert past_key is not None
    assert past_key.shape is not None
    assert present_key.shape is not None
    head_size = past_key.shape[3]
    assert isinstance(head_size, int)
    layer = (past_key.name or "").split(".")[1]
    words = sketch_words(head_size, planes)
    kind = ir.TensorType(ir.DataType.FLOAT)
    past = ir.Value(
        name=f"past_sketch.{layer}", shape=ir.Shape([*past_key.shape[:3], words]), type=kind
    )
    model.graph.inputs.append(past)
    node.resize_inputs(PAST_SKETCH + 1)
    node.replace_input_with(PAST_SKETCH, past)
    node.resize_outputs(PRESENT_SKETCH + 1)
    present = node.outputs[PRESENT_SKETCH]
    present.name = f"present_sketch.{layer}"
    present.shape = ir.Shape([*present_key.shape[:3], words])
    present.type = kind
    model.graph.outputs.append(present)


def filtered(cost: Cost, keys: int, kept: int, planes: int, density: float = 1.0) -> Cost:
    """What a decode step costs where bits of all keys choose those that it attends to.

    Args:
        cost: Without the filter.
        keys: Keys that it could attend to.
        kept: Keys that it keeps.
        planes: Bits of a key's element, beside its 64 bits as float32 key and value.
        density: The filter rests where it would keep more than this fraction.
    """
    mean = cost.read // max(1, keys) // 2  # float32, as long as a key
    if kept >= keys or kept > density * keys:
        return Cost(cost.stored + mean, cost.read, cost.work)
    sketch = round(cost.read * planes / 64)
    return Cost(
        cost.stored + mean,
        round(cost.read * kept / keys) + sketch,
        cost.work + round(_SCAN * cost.read),
        sketch=sketch,
    )


def sketch_words(head_size: int, planes: int) -> int:
    """32-bit words of a sketch: a power of two of bits, at least 64, a plane; then its size."""
    bits = max(64, 1 << (head_size - 1).bit_length())
    return bits // 32 * planes + 1
