"""Takes apart the norms of ONNX Runtime that add a residual.

    s = x + skip + bias,   y = norm(s) · w (+ b)

SkipSimplifiedLayerNormalization becomes tamiz.RMSNorm, which adds the residual, too;
SkipLayerNormalization becomes Add and LayerNormalization.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import GraphEditor, GraphPass
from tamiz_passes.expansion import Expansion
from tamiz_passes.values import constant, last_dim, same_shape, shown

_MICROSOFT = "com.microsoft"
#: LayerNormalization is an op of ONNX from this opset on.
_LAYER_NORM = 17


def take_apart(owner: GraphPass, model: ir.Model) -> bool:
    """Rewrites the norms of `model` in place; the pass `owner` notes those that stay."""
    modified = False
    for node in list(model.graph):
        if node.domain != _MICROSOFT:
            continue
        if node.op_type == "SkipSimplifiedLayerNormalization":
            reason = _rms_norm(model, node)
        elif node.op_type == "SkipLayerNormalization":
            reason = _layer_norm(model, node)
        else:
            continue
        if reason is not None:
            owner.note(node, reason)
        modified |= reason is None
    if modified:
        model.graph.sort()
    return modified


def _rms_norm(model: ir.Model, node: ir.Node) -> str | None:
    x, skip, weight, bias = _inputs(node, 4)
    if reason := _differs(node, x, skip):
        return reason
    assert x is not None
    scale = constant(weight)
    if weight is None or scale is None or weight.dtype != ir.DataType.FLOAT or scale.ndim != 1:
        return "The norm's weight is not a constant vector of FLOAT."
    if last_dim(x) != len(scale):
        return f"The norm's weight has {len(scale)} elements, expected {last_dim(x)}."
    graph = GraphEditor(model)
    if bias is not None:
        x = Expansion(graph, node).op("Add", [x, bias], like=x)
    total = node.outputs[3] if _is_read(node, 3) else graph.value(f"{node.name}.sum", x)
    outputs = [node.outputs[0], total]
    graph.replace(node, "RMSNorm", [x, weight, skip], _epsilon(node, 1e-12), outputs)
    return None


def _layer_norm(model: ir.Model, node: ir.Node) -> str | None:
    if model.graph.opset_imports.get("", 1) < _LAYER_NORM:
        return f"LayerNormalization is no op of this opset, expected {_LAYER_NORM} or later."
    x, skip, weight, beta, bias = _inputs(node, 5)
    if _is_read(node, 1) or _is_read(node, 2):
        return "The norm's mean or deviation is read."
    if x is None or skip is None or weight is None:
        return "The norm lacks an input."
    new = Expansion(GraphEditor(model), node)
    if bias is not None:
        x = new.op("Add", [x, bias], like=x)
    total = new.op("Add", [x, skip], like=x)
    inputs = [total, weight, *([beta] if beta is not None else [])]
    y = new.op("LayerNormalization", inputs, {"axis": -1, **_epsilon(node, 1e-12)}, x)
    sums = [(node.outputs[3], total)] if _is_read(node, 3) else []
    new.finish((node.outputs[0], y), *sums)
    return None


def _inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    return [*node.inputs, *[None] * count][:count]


def _differs(node: ir.Node, x: ir.Value | None, skip: ir.Value | None) -> str | None:
    if x is None or skip is None or not same_shape(x, skip):
        shapes = " and ".join(shown(value) for value in (x, skip) if value is not None)
        return f"The norm adds {shapes}, expected equal shapes."
    if x.dtype != ir.DataType.FLOAT:
        return (
            f"The norm works on {x.dtype.name if x.dtype else 'an unknown type'}, expected FLOAT."
        )
    if _is_read(node, 1) or _is_read(node, 2):
        return "The norm's mean or deviation is read."
    return None


def _is_read(node: ir.Node, output: int) -> bool:
    if len(node.outputs) <= output:
        return False
    value = node.outputs[output]
    return bool(value.uses()) or value.is_graph_output()


def _epsilon(node: ir.Node, default: float) -> dict[str, float]:
    return {"epsilon": node.attributes.get_float("epsilon", default)}
