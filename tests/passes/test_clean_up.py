from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from kit.decoders import constant, decoder, node_named, ops, ordered, run_passes
from tamiz.api.passes import Phase
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.plugin import tamiz_find_sites


def test_shared_initializers_behind_identity_are_joined() -> None:
    model = decoder(layers=1)
    shared = model.graph.initializers["model.norm.weight"]
    copy = ir.node("Identity", [shared], name="copy")
    copy.outputs[0].name = "copied"
    model.graph.insert_before(model.graph[0], copy)
    node_named(model, "/model/layers.0/input_layernorm/Mul_1").replace_input_with(
        0, copy.outputs[0]
    )
    CleanUp()(model)
    assert "Identity" not in ops(model)
    norm = node_named(model, "/model/layers.0/input_layernorm/Mul_1")
    assert norm.inputs[0].name == "model.norm.weight"


def test_vectors_are_folded_and_matrices_are_not() -> None:
    model = decoder(layers=1)
    weight = model.graph.initializers["model.norm.weight"]
    one = constant(model, "one", 1.0)
    more = ir.node("Add", [weight, one], name="more")
    more.outputs[0].name = "more"
    model.graph.insert_before(model.graph[0], more)
    node_named(model, "/model/norm/Mul_1").replace_input_with(0, more.outputs[0])
    expected = weight.const_value.numpy() + np.float32(1)
    CleanUp()(model)
    folded = node_named(model, "/model/norm/Mul_1").inputs[0]
    np.testing.assert_array_equal(folded.const_value.numpy(), expected)
    assert node_named(model, "/lm_head/Transpose").inputs[0].name == "model.embed_tokens.weight"


def test_functions_are_inlined() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18, "local" : 1]>
    graph (float[B, 4] x) => (float[B, 4] y) { y = local.twice(x) }
    <domain: "local", opset_import: ["" : 18]>
    twice (a) => (b) { b = Add(a, a) }
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert CleanUp()(model).modified
    assert ops(model) == ["Add"]
    assert not CleanUp()(model).modified


def test_a_scalar_keeps_its_shape_where_a_cast_behind_it_goes() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    g (float[n] x, bool c) => (float least, float[n] y) {
        least = ReduceMin <keepdims = 0> (x)
        same = Cast <to = 1> (least)
        y = Mul (x, same)
    }
    """
    model = ir.from_onnx_text(text)
    CleanUp()(model)
    assert ops(model) == ["ReduceMin", "Mul"]
    assert model.graph.outputs[0].shape == ir.Shape([])


def test_a_branch_that_gives_a_value_around_it_stays() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 18]>
    graph (bool c, float[4] x) => (float[4] y) {
        a = Neg(x)
        b = Identity(a)
        z = If(c) <
            then_branch = then () => (float[4] t) { t = Identity(b) },
            else_branch = other () => (float[4] e) { e = Abs(b) }
        >
        y = Add(z, b)
    }
    """
    proto = onnx.parser.parse_model(text)
    model = ir.from_proto(proto)
    CleanUp()(model)
    assert ops(model) == ["Neg", "If", "Add"]
    x = np.array([1, -2, 3, -4], np.float32)
    for c in (True, False):
        feeds = {"c": np.array(c), "x": x}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        found = ReferenceEvaluator(ir.to_proto(model)).run(None, feeds)
        np.testing.assert_array_equal(found, expected)


def test_node_names_become_unique_and_good_ones_stay() -> None:
    model = decoder(layers=1)
    names = [node.name for node in model.graph]
    nodes = list(model.graph)
    nodes[3].name = nodes[4].name = nodes[2].name
    nodes[5].name = None
    CleanUp()(model)
    found = [node.name for node in model.graph]
    assert len(set(found)) == len(found)
    assert set(names) - set(found) <= {names[3], names[4], names[5]}


@pytest.mark.parametrize("variant", [{}, {"head_norms": True, "biases": True}])
def test_running_the_passes_again_changes_nothing(variant: dict[str, bool]) -> None:
    model = decoder(**variant)
    run_passes(model)
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    for kind in ordered(Phase.RECOGNISE):
        instance = kind()
        assert not instance(model).modified, instance.name
    tamiz_find_sites(model)
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
