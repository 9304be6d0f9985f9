"""The nodes of a mixture of experts in a decoder's graph.

With E experts, of which a token takes the `top` best, and x its normed residual stream:

    s      = softmax(x·Wrᵀ (+ o))                            Wr [E, H], the router; or sigmoid
    e_j    = the experts with the highest s (+ b)            j = 1 … top; or of the best groups
    w_j    = scale · s[e_j] (/ Σ s[e_j]) (· f[e_j])          or softmax of the chosen scores alone
    y      = Σ_j w_j · ffn_{e_j}(x)  (+ g · ffn_shared(x))   g = sigmoid(x·wgᵀ) or 1

With `scales_input` it is Σ_j ffn_{e_j}(w_j·x) instead. As f(w·g) · (w·u) = w · f(w·g) · u, w_j
stays a factor on the output, and is one on the gate, too.

Experts whose weights are packed are multiplied by ``tamiz.ExpertMatMul``, which reads those that
are chosen. Float32 weights are written in ONNX's operators, which multiply with all experts and
weigh with 0 those that are not chosen. Products of experts may have biases.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz_exporters.activations import ACTIVATIONS, CLAMP, CLAMPED, gated
from tamiz_exporters.decoder_config import Experts
from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_SIZE = ("batch_size", "sequence_length")
_PARTS = ("gate_proj", "up_proj", "down_proj")


def add_experts(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
    routed: ir.Value | None = None,
) -> ir.Value:
    """Adds the nodes of one layer.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights: ``gate.weight``,
            ``experts.gate_proj.weight``, which may be missing, ``experts.up_proj.weight``,
            ``experts.down_proj.weight``; of biases ``gate.bias`` (for the choice alone),
            ``gate.offset``, and ``.bias`` of each; ``gate.scale``: f, a factor on each expert.
        experts: The mixture.
        activation: Of the feed-forward blocks; see `activations.gated`.
        x: ``[B, S, H]``.
        shared: What the shared expert gives, ``[B, S, H]``.
        routed: What the router reads, ``[B, S, H]``; None for x.
    """
    module = f"{name[1:].replace('/', '.')}.experts"
    parts = [part for part in _PARTS if of.has(f"{name}/experts/{part}")]
    packed = all(f"{module}.{part}.weight" in of.packed for part in parts)
    add = _chosen_only if packed else _all_of_them
    return add(of, name, experts, activation, x, shared, x if routed is None else routed)


def _chosen_only(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
    routed: ir.Value,
) -> ir.Value:
    top, floats = experts.top, ir.DataType.FLOAT
    chosen = typed_value(f"{name}/chosen", ir.DataType.INT32, *_SIZE, top)
    weights = typed_value(f"{name}/weights", floats, *_SIZE, top)
    share = typed_value(f"{name}/share", floats, *_SIZE, 1) if experts.shared_gate else None
    attributes: dict[str, Any] = {"experts": experts.count, "top": top, "score": experts.score}
    attributes |= {"normalize": int(experts.normalize), "scale": float(experts.scale)}
    if experts.groups > 1:
        attributes |= {"groups": experts.groups, "top_groups": experts.top_groups}
    outputs = [chosen, weights, *([] if share is None else [share])]
    router: list[ir.Value | None] = [routed, of.weight(f"{name}/gate")]
    router += [_found(of, f"{name}/gate", part) for part in ("bias", "offset", "scale")]
    of.own_op("ExpertRouter", f"{name}/router", router, attributes, outputs)

    def product(part: str, value: ir.Value) -> ir.Value:
        module = f"{name[1:].replace('/', '.')}.experts.{part}.weight"
        weight = of.packed[module]
        y = typed_value(
            f"{name}/experts/{part}_output_0", floats, *_SIZE, top, weight.n // experts.count
        )
        bias = _found(of, f"{name}/experts/{part}", "bias")
        inputs = [value, of.initializers[module], chosen, bias]
        of.own_op("ExpertMatMul", f"{name}/experts/{part}", inputs, weight.attributes(), [y])
        return y

    def scaled(part: str, value: ir.Value) -> ir.Value:
        y = product(part, value)
        if part != "gate_proj" or not experts.scales_input:
            return y
        gate = typed_value(f"{name}/experts/{part}/scaled", floats, *(y.shape or ()))
        of.own_op("Scale", f"{name}/experts/{part}/scale", [y, weights], {}, [gate])
        return gate

    if activation == CLAMPED:
        gate, up = product("gate_proj", x), product("up_proj", x)
        hidden = typed_value(f"{name}/experts/act_fn_output_0", floats, *(gate.shape or ()))
        attributes = {"activation": "quick_gelu", "limit": CLAMP}
        of.own_op("SwiGLU", f"{name}/experts/act_fn", [gate, up], attributes, [hidden])
    else:
        hidden = _hidden(of, f"{name}/experts", activation, scaled, x)
    down = product("down_proj", hidden)
    y = typed_value(f"{name}/sum_output_0", floats, *_SIZE, down.shape[3])  # type: ignore[index]
    summed = [down, weights, *(value for value in (shared, share) if value is not None)]
    of.own_op("ExpertSum", f"{name}/sum", summed, {}, [y])
    return y


def _all_of_them(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
    routed: ir.Value,
) -> ir.Value:
    router = of.op("Transpose", f"{name}/gate/Transpose", of.weight(f"{name}/gate"), perm=[1, 0])
    scores = of.op("MatMul", f"{name}/gate/MatMul", routed, router)
    if (offset := _found(of, f"{name}/gate", "offset")) is not None:
        scores = of.op("Add", f"{name}/gate/Add_offset", scores, offset)
    share = None
    if experts.shared_gate:
        first, last = of.constant([0]), of.constant([experts.count])
        axis, end = of.constant([2]), of.constant([experts.count + 1])
        share = of.op("Slice", f"{name}/gate/Slice", scores, last, end, axis)
        share = of.op("Sigmoid", f"{name}/gate/Sigmoid", share)
        scores = of.op("Slice", f"{name}/gate/Slice_1", scores, first, last, axis)
    weights = _weights(of, name, experts, scores)  # [B, E, S, 1]
    wide = of.op("Unsqueeze", f"{name}/Unsqueeze", x, of.constant([1]))

    def product(part: str, value: ir.Value) -> ir.Value:
        weight = of.weight(f"{name}/experts/{part}")
        y = of.op("MatMul", f"{name}/experts/{part}/MatMul", value, weight)
        if (bias := _found(of, f"{name}/experts/{part}", "bias")) is None:
            return y
        shape = of.constant([experts.count, 1, -1])
        bias = of.op("Reshape", f"{name}/experts/{part}/Reshape", bias, shape)
        return of.op("Add", f"{name}/experts/{part}/Add", y, bias)

    def scaled(part: str, value: ir.Value) -> ir.Value:
        y, at = product(part, value), f"{name}/experts/{part}/scale"
        scales = part == "gate_proj" and experts.scales_input
        return of.op("Mul", f"{at}/Mul", y, weights) if scales else y

    hidden = _hidden(of, f"{name}/experts", activation, scaled, wide)
    down = of.op("Mul", f"{name}/experts/Mul_1", product("down_proj", hidden), weights)
    y = of.op("ReduceSum", f"{name}/experts/ReduceSum", down, of.constant([1]), keepdims=0)
    if shared is None:
        return y
    if share is not None:
        shared = of.op("Mul", f"{name}/Mul", share, shared)
    return of.op("Add", f"{name}/Add", y, shared)


def _hidden(
    of: GraphBuilder,
    name: str,
    activation: str,
    product: Callable[[str, ir.Value], ir.Value],
    x: ir.Value,
) -> ir.Value:
    """What the last products of experts multiply; they may have no gate."""
    if not of.has(f"{name}/gate_proj"):
        return ACTIVATIONS[activation](of, f"{name}/act_fn", product("up_proj", x))
    gate = product("gate_proj", x)
    return gated(of, name, activation, gate, product("up_proj", x))


def _weights(of: GraphBuilder, name: str, experts: Experts, scores: ir.Value) -> ir.Value:
    """What each expert counts, ``[B, E, S, 1]``, of scores ``[B, S, E]``."""
    before = experts.score != "softmax_of_chosen"
    if experts.score == "sigmoid":
        scores = of.op("Sigmoid", f"{name}/gate/Sigmoid_scores", scores)
    elif before:
        scores = of.op("Softmax", f"{name}/gate/Softmax", scores, axis=-1)
    best = ir.Value(name=f"{name}/gate/best")
    chosen = ir.Value(name=f"{name}/gate/chosen")
    ranked = scores
    if experts.biased:
        ranked = of.op("Add", f"{name}/gate/Add", scores, of.weight(f"{name}/gate", "bias"))
    if experts.top_groups < experts.groups:
        ranked = _within_groups(of, f"{name}/gate/groups", experts, ranked)
    inputs = [ranked, of.constant([experts.top])]
    of.nodes.append(ir.Node("", "TopK", inputs, outputs=[best, chosen], name=f"{name}/gate/TopK"))
    if ranked is not scores:
        best = of.op("GatherElements", f"{name}/gate/Gather", scores, chosen, axis=-1)
    if not before:
        best = of.op("Softmax", f"{name}/gate/Softmax", best, axis=-1)
    if experts.normalize:
        total = of.op("ReduceSum", f"{name}/gate/ReduceSum", best, of.constant([-1]), keepdims=1)
        best = of.op("Div", f"{name}/gate/Div", best, total)
    if experts.scale != 1:
        factor = of.constant(experts.scale, np.float32)
        best = of.op("Mul", f"{name}/gate/Mul", best, factor)
    shape = of.op("Shape", f"{name}/gate/Shape", scores)
    zeros = of.op("ConstantOfShape", f"{name}/gate/ConstantOfShape", shape)
    spread = of.op("ScatterElements", f"{name}/gate/Scatter", zeros, chosen, best, axis=-1)
    if (factors := _found(of, f"{name}/gate", "scale")) is not None:
        spread = of.op("Mul", f"{name}/gate/Mul_scale", spread, factors)
    spread = of.op("Transpose", f"{name}/gate/Transpose_1", spread, perm=[0, 2, 1])
    return of.op("Unsqueeze", f"{name}/gate/Unsqueeze", spread, of.constant([3]))


def _within_groups(of: GraphBuilder, name: str, experts: Experts, ranked: ir.Value) -> ir.Value:
    """Scores ``[B, S, E]``, far below all others where an expert's group is not taken."""

    def best(part: str, values: ir.Value, count: int) -> tuple[ir.Value, ir.Value]:
        found = ir.Value(name=f"{name}/{part}"), ir.Value(name=f"{name}/{part}_index")
        inputs = [values, of.constant([count])]
        of.nodes.append(ir.Node("", "TopK", inputs, outputs=found, name=f"{name}/{part}/TopK"))
        return found

    shape = of.constant([0, 0, experts.groups, -1])
    grouped = of.op("Reshape", f"{name}/Reshape", ranked, shape)
    two, _ = best("two", grouped, min(2, experts.count // experts.groups))
    sums = of.op("ReduceSum", f"{name}/ReduceSum", two, of.constant([-1]), keepdims=0)
    _, chosen = best("chosen", sums, experts.top_groups)
    far = of.op("Mul", f"{name}/Mul", sums, of.constant(0.0, np.float32))
    far = of.op("Add", f"{name}/Add", far, of.constant(-1e30, np.float32))
    taken = of.op("GatherElements", f"{name}/Gather", sums, chosen, axis=-1)
    taken = of.op("Mul", f"{name}/Mul_1", taken, of.constant(0.0, np.float32))
    added = of.op("ScatterElements", f"{name}/Scatter", far, chosen, taken, axis=-1)
    added = of.op("Unsqueeze", f"{name}/Unsqueeze", added, of.constant([3]))
    grouped = of.op("Add", f"{name}/Add_1", grouped, added)
    return of.op("Reshape", f"{name}/Reshape_1", grouped, of.constant([0, 0, experts.count]))


def _found(of: GraphBuilder, name: str, part: str) -> ir.Value | None:
    return of.weight(name, part) if of.has(name, part) else None
