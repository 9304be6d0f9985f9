"""Edits at an attention site: which keys tamiz.Attention attends to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.convenience import convert_attribute

import tamiz_ops
from tamiz.api.metadata import DOMAIN
from tamiz.api.site import Site
from tamiz.api.technique import Cost, Fit, FitError
from tamiz.runtime.states import PAST, present_of

#: First keys, and last ones, that a filter keeps unless it is told otherwise.
SINKS, RECENT = 4, 64
#: How much longer the bits of a key take to be scored and ranked than a weight of an int4 product,
#: for each byte of the key and its value (`benchmarks/work.py`).
_SCAN = 0.2

_INPUTS, _OUTPUTS = tamiz_ops.ports("Attention")
#: Port numbers of tamiz.Attention: the keys, their sketches and mean, and the state of
#: event-attention.
PAST_KEY, PAST_SKETCH = _INPUTS["past_key"], _INPUTS["past_sketch"]
KEY_MEAN, PAST_EVENT = _INPUTS["key_mean"], _INPUTS["past_event"]
PRESENT_KEY, PRESENT_SKETCH = _OUTPUTS["present_key"], _OUTPUTS["present_sketch"]
PRESENT_EVENT = _OUTPUTS["present_event"]


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
        planes: Bits of a key's element: 1, 2 or 4.
    """
    past_key, present_key = node.inputs[PAST_KEY], node.outputs[PRESENT_KEY]
    assert past_key is not None
    assert past_key.shape is not None
    assert present_key.shape is not None
    head_size = past_key.shape[3]
    assert isinstance(head_size, int)
    layer = (past_key.name or "").split(".")[1]
    words = sketch_words(head_size, planes)
    shapes = [ir.Shape([*key.shape[:3], words]) for key in (past_key, present_key) if key.shape]
    add_state(model, node, f"sketch.{layer}", (PAST_SKETCH, PRESENT_SKETCH), shapes)


def rewrite_filter(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Rewrite of a filter of keys: sets attributes and adds the state ``past_sketch.N``.

    Raises:
        FitError: The attention was not recognised.
    """
    node = find_attention(model, site)
    set_attributes(node, fit.attributes)
    add_sketch(model, node, planes=1 + int(fit.attributes["ternary"]))
    return [node]


def input_at(node: ir.Node, port: int) -> ir.Value | None:
    """What a node takes at a port; None where that is omitted or past its last input."""
    return node.inputs[port] if port < len(node.inputs) else None


def add_state(
    model: ir.Model, node: ir.Node, name: str, ports: tuple[int, int], shapes: Sequence[ir.Shape]
) -> None:
    """Lets a node keep a float32 tensor from run to run.

    Args:
        model: The model, whose graph gets the input ``past_NAME`` and the output ``present_NAME``.
        node: The node.
        name: What is kept, of which layer.
        ports: Where the node takes and gives it.
        shapes: Of the past and of the present.
    """
    kind = ir.TensorType(ir.DataType.FLOAT)
    past = ir.Value(name=f"{PAST}{name}", shape=shapes[0], type=kind)
    model.graph.inputs.append(past)
    node.resize_inputs(max(len(node.inputs), ports[0] + 1))
    node.replace_input_with(ports[0], past)
    node.resize_outputs(max(len(node.outputs), ports[1] + 1))
    present = node.outputs[ports[1]]
    present.name = present_of(f"{PAST}{name}")
    present.shape, present.type = shapes[1], kind
    model.graph.outputs.append(present)


def filtered(
    cost: Cost,
    head_size: int,
    keys: int,
    keep: int,
    planes: int,
    keep_fraction: float = 0.0,
    recent: int = RECENT,
    density: float = 1.0,
) -> Cost:
    """What a decode step costs where bits of all keys choose those that it attends to.

    Args:
        cost: Without the filter.
        head_size: Elements of a key; 0 of an attention that was not recognised: it stays as it is.
        keys: Keys that it could attend to.
        keep: Keys that it keeps for their score.
        planes: Bits of a key's element, beside its 64 bits as float32 key and value.
        keep_fraction: The same as a fraction of the keys; the larger one counts.
        recent: Last keys that it keeps without a score, as the first `SINKS`.
        density: The filter rests where it would keep more than this fraction.
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
    return Cost(
        cost.stored + mean,
        read + sketch,
        cost.work,
        scattered=read,
        sketch=sketch,
        choosing=round(_SCAN * cost.read),
    )


def sketch_words(head_size: int, planes: int) -> int:
    """32-bit words of a sketch: a power of two of bits, at least 64, a plane; then its size."""
    bits = max(64, 1 << (head_size - 1).bit_length())
    return bits // 32 * planes + 1
