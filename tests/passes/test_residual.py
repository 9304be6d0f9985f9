from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from kit.decoders import decoder, largest_error, ops, run_passes, session
from tamiz_passes.residual import AbsorbResidual


def graph(r: str) -> ir.Model:
    text = f"""
    <ir_version: 8, opset_import: ["" : 18, "tamiz" : 1]>
    block (float[B, S, 8] x, {r}) => (float[B, S, 8] y, float[B, S, 8] s)
    <float[8] weight = {{1, 1, 1, 1, 1, 1, 1, 1}}>
    {{ s = Add(x, r) y = tamiz.RMSNorm<epsilon = 0.01>(s, weight) }}
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def test_the_norm_takes_the_addition_and_returns_the_sum() -> None:
    model = graph("float[B, S, 8] r")
    assert AbsorbResidual()(model).modified
    (node,) = model.graph
    assert [v.name for v in node.inputs] == ["x", "weight", "r"]
    assert [v.name for v in node.outputs] == ["y", "s"]
    assert [v.name for v in model.graph.outputs] == ["y", "s"]
    assert node.attributes["epsilon"].as_float() == pytest.approx(0.01)
    assert not AbsorbResidual()(model).modified


@pytest.mark.parametrize("r", ["float[B, S, 1] r", "float[8] r", "float[1, S, 8] r"])
def test_an_addition_that_may_broadcast_stays(r: str) -> None:
    model = graph(r)
    recogniser = AbsorbResidual()
    assert not recogniser(model).modified
    (note,) = recogniser.notes
    assert note.reason.endswith("before the norm may broadcast; it stays.")
    assert ops(model) == ["Add", "RMSNorm"]


def test_all_additions_of_a_decoder_move_into_its_norms() -> None:
    before = session(decoder())
    model = decoder()
    run_passes(model)
    norms = [node for node in model.graph if node.op_type == "RMSNorm"]
    assert [len(node.inputs) for node in norms] == [2, 3, 3, 3, 3]
    assert "Add" not in ops(model)
    assert largest_error(before, session(model), "continued") < 1e-5
