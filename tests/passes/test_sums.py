"""Residuals that no norm adds become an op of the domain, so that nothing splits a layer."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN
from tamiz_passes.sums import SumResiduals

FLOAT = ir.TensorType(ir.DataType.FLOAT)


def graph(*shapes: tuple[int, ...], ends: bool = True) -> ir.Model:
    """f(a) + b, where f, and g of the sum if it `ends` there, are nodes of the domain."""
    a, b = (
        ir.Value(name=n, type=FLOAT, shape=ir.Shape(s)) for n, s in zip("ab", shapes, strict=True)
    )
    first = ir.node("SwiGLU", [a], domain=DOMAIN)
    added = ir.node("Add", [first.outputs[0], b])
    last = ir.node("SwiGLU", [added.outputs[0]], domain=DOMAIN if ends else "")
    for node, shape in ((first, shapes[0]), (added, shapes[0]), (last, shapes[0])):
        node.outputs[0].type, node.outputs[0].shape = FLOAT, ir.Shape(shape)
    nodes = [first, added, last]
    made = ir.Graph([a, b], [last.outputs[0]], nodes=nodes, opset_imports={"": 18, DOMAIN: 1})
    return ir.Model(made, ir_version=8)


def ops(model: ir.Model) -> list[str]:
    assert SumResiduals()(model).model is model
    return [node.op_type for node in model.graph]


def test_a_sum_between_nodes_of_the_domain_is_one_of_them() -> None:
    model = graph((1, 3, 8), (1, 3, 8))
    assert ops(model) == ["SwiGLU", "Sum", "SwiGLU"]
    (node,) = (node for node in model.graph if node.op_type == "Sum")
    assert node.domain == DOMAIN
    assert [value.name for value in node.inputs][1] == "b"


def test_a_sum_that_may_broadcast_stays() -> None:
    assert ops(graph((1, 3, 8), (1, 1, 8))) == ["SwiGLU", "Add", "SwiGLU"]


def test_a_sum_that_leaves_the_domain_stays() -> None:
    assert ops(graph((1, 3, 8), (1, 3, 8), ends=False)) == ["SwiGLU", "Add", "SwiGLU"]
