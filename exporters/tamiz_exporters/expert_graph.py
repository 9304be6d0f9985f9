"""The nodes of a mixture of experts in a decoder's graph.

With E experts, of which a token takes the `top` best, and x its normed residual stream:

    s      = softmax(x·Wrᵀ)                                  Wr [E, H], the router
    e_j    = the experts with the highest s (+ b)            j = 1 … top
    w_j    = scale · s[e_j] (/ Σ s[e_j])                     or softmax of the chosen scores alone
    y      = Σ_j w_j · ffn_{e_j}(x)  (+ g · ffn_shared(x))   g = sigmoid(x·wgᵀ) or 1

Experts whose weights are packed are multiplied by ``tamiz.ExpertMatMul``, which reads those that
are chosen. Float32 weights are written in ONNX's operators, which multiply with all experts and
weigh with 0 those that are not chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN
from tamiz_exporters.activations import ACTIVATIONS
from tamiz_exporters.decoder_config import Experts
from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_SIZE = ("batch_size", "sequence_length")


def add_experts(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
) -> ir.Value:
    """Adds the nodes of one layer.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights: ``gate.weight``,
            ``experts.gate_proj.weight``, ``experts.up_proj.weight``, ``experts.down_proj.weight``.
        experts: The mixture.
        activation: f of the feed-forward blocks, of `activations.ACTIVATIONS`.
        x: ``[B, S, H]``.
        shared: What the shared expert gives, ``[B, S, H]``.
    """
    packed = all(
        f"{name[1:].replace('/', '.')}.experts.{part}.weight" in of.packed
        for part in ("gate_proj", "up_proj", "down_proj")
    )
    add = _chosen_only if packed else _all_of_them
    return add(of, name, experts, activation, x, shared)


def _chosen_only(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
) -> ir.Value:
    top, floats = experts.top, ir.DataType.FLOAT
    chosen = typed_value(f"{name}/chosen", ir.DataType.INT32, *_SIZE, top)
    weights = typed_value(f"{name}/weights", floats, *_SIZE, top)
    share = typed_value(f"{name}/share", floats, *_SIZE, 1) if experts.shared_gate else None
    attributes: dict[str, Any] = {"experts": experts.count, "top": top, "score": experts.score}
    attributes |= {"normalize": int(experts.normalize), "scale": float(experts.scale)}
    outputs = [chosen, weights, *([] if share is None else [share])]
    router = [x, of.weight(f"{name}/gate")]
    if experts.biased:
        router.append(of.weight(f"{name}/gate", "bias"))
    _add(of, "ExpertRouter", f"{name}/router", router, attributes, outputs)

    def product(part: str, value: ir.Value) -> ir.Value:
        module = f"{name[1:].replace('/', '.')}.experts.{part}.weight"
        weight = of.packed[module]
        y = typed_value(
            f"{name}/experts/{part}_output_0", floats, *_SIZE, top, weight.n // experts.count
        )
        inputs = [value, of.initializers[module], chosen]
        _add(of, "ExpertMatMul", f"{name}/experts/{part}", inputs, weight.attributes(), [y])
        return y

    hidden = ACTIVATIONS[activation](of, f"{name}/experts/act_fn", product("gate_proj", x))
    hidden = of.op("Mul", f"{name}/experts/Mul", hidden, product("up_proj", x))
    down = product("down_proj", hidden)
    y = typed_value(f"{name}/sum_output_0", floats, *_SIZE, down.shape[3])  # type: ignore[index]
    summed = [down, weights, *(value for value in (shared, share) if value is not None)]
    _add(of, "ExpertSum", f"{name}/sum", summed, {}, [y])
    return y


def _all_of_them(
    of: GraphBuilder,
    name: str,
    experts: Experts,
    activation: str,
    x: ir.Value,
    shared: ir.Value | None,
) -> ir.Value:
    router = of.op("Transpose", f"{name}/gate/Transpose", of.weight(f"{name}/gate"), perm=[1, 0])
    scores = of.op("MatMul", f"{name}/gate/MatMul", x, router)
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
        return of.op("MatMul", f"{name}/experts/{part}/MatMul", value, weight)

    hidden = ACTIVATIONS[activation](of, f"{name}/experts/act_fn", product("gate_proj", wide))
    hidden = of.op("Mul", f"{name}/experts/Mul", hidden, product("up_proj", wide))
    down = of.op("Mul", f"{name}/experts/Mul_1", product("down_proj", hidden), weights)
    y = of.op("ReduceSum", f"{name}/experts/ReduceSum", down, of.constant([1]), keepdims=0)
    if shared is None:
        return y
    if share is not None:
        shared = of.op("Mul", f"{name}/Mul", share, shared)
    return of.op("Add", f"{name}/Add", y, shared)


def _weights(of: GraphBuilder, name: str, experts: Experts, scores: ir.Value) -> ir.Value:
    """What each expert counts, ``[B, E, S, 1]``, of scores ``[B, S, E]``."""
    before = experts.score == "softmax"
    if before:
        scores = of.op("Softmax", f"{name}/gate/Softmax", scores, axis=-1)
    best = ir.Value(name=f"{name}/gate/best")
    chosen = ir.Value(name=f"{name}/gate/chosen")
    ranked = scores
    if experts.biased:
        ranked = of.op("Add", f"{name}/gate/Add", scores, of.weight(f"{name}/gate", "bias"))
    inputs = [ranked, of.constant([experts.top])]
    of.nodes.append(ir.Node("", "TopK", inputs, outputs=[best, chosen], name=f"{name}/gate/TopK"))
    if experts.biased:
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
    spread = of.op("Transpose", f"{name}/gate/Transpose_1", spread, perm=[0, 2, 1])
    return of.op("Unsqueeze", f"{name}/gate/Unsqueeze", spread, of.constant([3]))


def _add(
    of: GraphBuilder,
    op_type: str,
    name: str,
    inputs: list[ir.Value],
    attributes: dict[str, Any],
    outputs: list[ir.Value],
) -> None:
    """Adds a node of tamiz' domain."""
    converted = [ir.convenience.convert_attribute(*pair) for pair in attributes.items()]
    of.nodes.append(ir.Node(DOMAIN, op_type, inputs, converted, outputs=outputs, name=name))
