"""Puts ops of the domain for norms with a mean, and for activations of encoders.

    s = x + r,  y = norm(s)      becomes      y, s = LayerNorm(x, w, b, r)
    y = f(x)                     becomes      y = SwiGLU(x)

One `Fused` node then runs all layers: no thread waits for another op between two products.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase
from tamiz_passes.swiglu import recognise_alone
from tamiz_passes.values import constant, last_dim, operands, producer, same_shape

#: What LayerNormalization has where it says nothing.
_EPSILON = 1e-5


class RecogniseLayerNorm(GraphPass):
    """Lets graphs with attention have such norms of the domain; see the module."""

    name = "layer-norm"
    phase = Phase.FUSE
    needs = frozenset({"text-attention"})
    provides = frozenset({"norms", "ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        attentions = ("TextAttention", "Attention")
        kinds = {kind for kind in attentions for node in model.graph if _is(node, DOMAIN, kind)}
        if not kinds:
            return ir.passes.PassResult(model, modified=False)
        modified = "TextAttention" in kinds and recognise_alone(self, model)
        for node in list(model.graph):
            if not _is(node, "", "LayerNormalization"):
                continue
            if reason := _refused(node):
                self.note(node, reason)
                continue
            _rewrite(GraphEditor(model), node)
            modified = True
        if modified:
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


def _is(node: ir.Node, domain: str, op_type: str) -> bool:
    return (node.domain, node.op_type) == (domain, op_type)


def _refused(node: ir.Node) -> str:
    """Why a norm is not that of the op; empty where it is."""
    x, width = node.inputs[0], None if node.inputs[0] is None else last_dim(node.inputs[0])
    if x is None or x.dtype != ir.DataType.FLOAT:
        kind = x.dtype.name if x is not None and x.dtype is not None else "an unknown type"
        return f"The norm works on {kind}, expected FLOAT."
    axis = node.attributes.get_int("axis", -1)
    if axis != -1 and (x.shape is None or axis != len(x.shape) - 1):
        return f"The norm is over axis {axis}, expected -1."
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "The norm's mean or deviation is read."
    if node.attributes.get_int("stash_type", ir.DataType.FLOAT) != ir.DataType.FLOAT:
        return "The norm computes in another type than float32."
    for value in node.inputs[1:]:
        array = None if value is None else constant(value)
        if value is not None and (array is None or array.shape != (width,)):
            return f"The norm's weight or bias is not a constant of {width} elements."
    return ""


def _rewrite(graph: GraphEditor, node: ir.Node) -> None:
    total, weight, bias = [*node.inputs, None][:3]
    assert total is not None
    inputs: dict[str, ir.Value | None] = {"x": total, "weight": weight, "bias": bias}
    outputs = [node.outputs[0]]
    add = producer(total, "Add")
    if add is not None and same_shape(*operands(add)):
        x, residual = operands(add)
        inputs |= {"x": x, "residual": residual}
        outputs.append(total)
    attributes = {"epsilon": node.attributes.get_float("epsilon", _EPSILON)}
    graph.replace(node, "LayerNorm", inputs, attributes, outputs)
