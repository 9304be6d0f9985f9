from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit.decoders import (
    CASES,
    FREQUENCY,
    attentions,
    constant,
    decoder,
    insert_before,
    largest_error,
    node_named,
    ops,
    run_passes,
    session,
)

TOLERANCE = 1e-5

LAYER = [
    "RMSNorm",
    *["MatMul"] * 3,
    "Attention",
    "MatMul",
    "RMSNorm",
    *["MatMul"] * 2,
    "SwiGLU",
    "MatMul",
]

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped heads": {},
    "one key head per query head": {"kv_heads": 4},
    "one key head": {"kv_heads": 1},
    "half of the head rotates": {"rotary": 8},
    "biases": {"biases": True},
    "untied head": {"tied": False},
    "head norms": {"head_norms": True},
    "head norms behind the rotation": {"norms_behind": True},
    "a bias by distance": {"slopes": True},
    "soft caps": {"score_cap": 1.5, "logit_cap": 4.0},
    "sinks": {"sinks": True},
}


def test_a_layer_becomes_linears_norms_attention_and_swiglu() -> None:
    model = decoder(tied=False)
    assert run_passes(model) == []
    assert ops(model) == ["Gather", *LAYER, *LAYER, "RMSNorm", "MatMul"]


def test_a_tied_head_keeps_its_transpose() -> None:
    model = decoder(layers=1)
    run_passes(model)
    assert sorted(ops(model)) == sorted(["Gather", *LAYER, "RMSNorm", "Transpose", "MatMul"])


def test_biases_stay_beside_their_linears() -> None:
    model = decoder(layers=1, biases=True)
    run_passes(model)
    attention = attentions(model)[0]
    for value in attention.inputs[:3]:
        add = value.producer()
        assert add.op_type == "Add"
        assert add.inputs[1].producer().op_type == "MatMul"


def test_attention_reads_the_linears_the_caches_and_the_graph_inputs() -> None:
    model = decoder(layers=1)
    run_passes(model)
    (node,) = attentions(model)
    assert [v.name for v in node.inputs] == [
        "/model/layers.0/self_attn/q_proj/MatMul_output_0",
        "/model/layers.0/self_attn/k_proj/MatMul_output_0",
        "/model/layers.0/self_attn/v_proj/MatMul_output_0",
        "past_key_values.0.key",
        "past_key_values.0.value",
        "attention_mask",
        "position_ids",
        "inverse_frequency",
    ]
    assert [v.name for v in node.outputs[1:]] == ["present.0.key", "present.0.value"]
    assert {k: a.value for k, a in node.attributes.items()} == {"num_heads": 4, "kv_heads": 2}
    assert node.name == "/model/layers.0/self_attn/Attention"
    np.testing.assert_array_equal(node.inputs[7].const_value.numpy(), FREQUENCY)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_recognised_graph_computes_the_same(variant: str, case: str) -> None:
    before = session(decoder(**VARIANTS[variant]))
    model = decoder(**VARIANTS[variant])
    run_passes(model)
    assert len(attentions(model)) == 2
    assert largest_error(before, session(model), case) < TOLERANCE


def test_head_norms_work_on_joined_heads() -> None:
    model = decoder(layers=1, head_norms=True, tied=False)
    assert run_passes(model) == []
    for value in attentions(model)[0].inputs[:2]:
        norm = value.producer()
        assert norm.op_type == "RMSNorm"
        assert norm.inputs[0].producer().op_type == "MatMul"
    assert "Reshape" not in ops(model)


def test_an_unusual_scale_becomes_an_attribute() -> None:
    model = decoder(layers=1)
    node = node_named(model, "/model/layers.0/self_attn/Mul")
    node.replace_input_with(1, constant(model, "scale", 0.125))
    run_passes(model)
    assert attentions(model)[0].attributes["scale"].as_float() == 0.125


def attributes(node: ir.Node) -> dict[str, Any]:
    return {name: attribute.value for name, attribute in node.attributes.items()}


def sinks_of(node: ir.Node) -> list[float]:
    value = node.inputs[15]
    assert value is not None
    assert value.const_value is not None
    return list(value.const_value.numpy().tolist())


def test_sinks_become_an_input() -> None:
    model = decoder(layers=3, sinks=True)
    before = session(model.clone())
    assert run_passes(model) == []
    found = [sinks_of(node) for node in attentions(model)]
    assert all(len(sinks) == 4 for sinks in found)
    assert found[0] != found[1]
    for case in CASES:
        assert largest_error(before, session(model), case) < TOLERANCE


def test_slopes_become_an_input() -> None:
    """Those of 6 heads: of 4, and of 8 those between (Press et al. 2021)."""
    model = decoder(layers=1, heads=6, kv_heads=2, slopes=True)
    run_passes(model)
    value = attentions(model)[0].inputs[17]
    assert value is not None
    assert value.const_value is not None
    expected = [2.0**-power for power in (2, 4, 6, 8, 1, 3)]
    np.testing.assert_array_equal(value.const_value.numpy(), np.array(expected, np.float32))


def test_sinks_of_scores_less_their_largest() -> None:
    """As transformers writes them for floats of 16 bits."""
    model = decoder(layers=1, sinks=True)
    softmax = node_named(model, "/model/layers.0/self_attn/Softmax")
    scores = softmax.inputs[0]
    axis = constant(model, "axis", [-1], np.int64)
    largest = ir.node("ReduceMax", [scores, axis], {"keepdims": 1}, name="largest")
    less = ir.node("Sub", [scores, largest.outputs[0]], name="less")
    model.graph.insert_before(softmax, [largest, less])
    softmax.replace_input_with(0, less.outputs[0])
    assert run_passes(model) == []
    assert len(sinks_of(attentions(model)[0])) == 4


def test_sinks_that_are_computed_stay() -> None:
    model = decoder(layers=1, sinks=True)
    spread = node_named(model, "/model/layers.0/self_attn/sinks/Reshape")
    size = ir.node("Size", [model.graph.inputs[0]], name="size")
    number = ir.node("Cast", size.outputs, {"to": ir.DataType.FLOAT}, name="number")
    added = ir.node("Add", [spread.inputs[0], *number.outputs], name="added")
    model.graph.insert_before(spread, [size, number, added])
    spread.replace_input_with(0, added.outputs[0])
    [note] = [note for note in run_passes(model) if note.node.endswith("Softmax")]
    assert note.reason == "Its sinks are computed, expected constants."
    assert attentions(model) == []


def test_a_soft_cap_becomes_an_attribute() -> None:
    model = decoder(layers=1, score_cap=50.0, logit_cap=30.0)
    assert run_passes(model) == []
    assert attributes(attentions(model)[0]) == {"num_heads": 4, "kv_heads": 2, "softcap": 50.0}
    assert ops(model)[-3:] == ["Div", "Tanh", "Mul"]
    assert ops(model).count("Tanh") == 1


def test_a_soft_cap_and_an_unusual_scale() -> None:
    model = decoder(layers=1, score_cap=2.0)
    node = node_named(model, "/model/layers.0/self_attn/Mul")
    node.replace_input_with(1, constant(model, "scale", 0.125))
    run_passes(model)
    found = attributes(attentions(model)[0])
    assert (found["softcap"], found["scale"]) == (2.0, 0.125)


@pytest.mark.parametrize("factor", ["inside", "outside"])
def test_factors_around_the_tanh_give_cap_and_scale(factor: str) -> None:
    """a · tanh(b · x) is a soft cap a of the scores a · b · x."""
    model = decoder(layers=1, score_cap=2.0)
    scope = "/model/layers.0/self_attn/soft_cap"
    node = node_named(model, f"{scope}/{'Div' if factor == 'inside' else 'Mul'}")
    node.replace_input_with(1, constant(model, "other", 4.0))
    before = session(model.clone())
    run_passes(model)
    found = attributes(attentions(model)[0])
    inside, outside = (4.0, 2.0) if factor == "inside" else (2.0, 4.0)
    assert found["softcap"] == outside
    assert found["scale"] == pytest.approx(0.25 * outside / inside)
    for case in CASES:
        assert largest_error(before, session(model), case) < TOLERANCE


def test_layers_that_differ_in_their_cap_are_told_apart() -> None:
    model = decoder(layers=3, score_cap=2.0)
    for name, index in (("Div", 1), ("Mul", 1)):
        node = node_named(model, f"/model/layers.1/self_attn/soft_cap/{name}")
        node.replace_input_with(index, constant(model, f"cap.{name}", 3.0))
    run_passes(model)
    assert [attributes(node)["softcap"] for node in attentions(model)] == [2.0, 3.0, 2.0]


def test_layers_that_differ_in_a_constant_are_told_apart() -> None:
    model = decoder(layers=3)
    node = node_named(model, "/model/layers.1/self_attn/Mul")
    node.replace_input_with(1, constant(model, "scale", 0.125))
    run_passes(model)
    scales = [node.attributes.get("scale") for node in attentions(model)]
    assert [s if s is None else s.as_float() for s in scales] == [None, 0.125, None]


def test_a_factor_on_the_rotary_tables_becomes_an_attribute() -> None:
    model = decoder(layers=1)
    factor = constant(model, "factor", 1.25)
    for table in ("Cos", "Sin"):
        table_node = node_named(model, f"/model/rotary_emb/{table}")
        value = table_node.outputs[0]
        scaled = ir.node("Mul", [value, factor], name=f"scaled {table}")
        scaled.outputs[0].name = f"scaled {table}"
        value.replace_all_uses_with(scaled.outputs[0])
        scaled.replace_input_with(0, value)
        model.graph.insert_after(table_node, scaled)
    run_passes(model)
    assert attentions(model)[0].attributes["rotary_scale"].as_float() == 1.25


def test_positions_that_the_graph_counts_are_computed_once() -> None:
    model = decoder()
    graph = model.graph
    node = node_named(model, "/model/rotary_emb/Unsqueeze")
    total, past = (node_named(model, f"/model/{n}").outputs[0] for n in ("Squeeze_1", "Sub"))
    count = ir.node("Range", [past, total, constant(model, "step", 1, np.int64)], name="count")
    row = ir.node("Unsqueeze", [count.outputs[0], constant(model, "front", [0], np.int64)])
    count.outputs[0].name, row.outputs[0].name = "count", "row"
    graph.extend([count, row])
    node.replace_input_with(0, row.outputs[0])
    graph.inputs.remove(next(v for v in graph.inputs if v.name == "position_ids"))
    graph.sort()
    before = session(model.clone())
    assert run_passes(model) == []
    assert [n.inputs[6].name for n in attentions(model)] == ["counted_position_ids"] * 2
    for case in CASES:
        assert largest_error(before, session(model), case) < TOLERANCE


def sliding_window(model: ir.Model) -> None:
    """Hides keys four or more positions before the query."""
    key, query = (node_named(model, f"/model/{name}").outputs[0] for name in ("Range", "Unsqueeze"))
    four = constant(model, "four", 4, np.int64)

    def inside(causal: ir.Value) -> list[ir.Node]:
        limit = ir.node("Sub", [query, four])
        near = ir.node("Greater", [key, limit.outputs[0]])
        both = ir.node("And", [causal, near.outputs[0]])
        for index, node in enumerate((limit, near, both)):
            node.outputs[0].name = f"window.{index}"
        return [limit, near, both]

    insert_before(model, "/model/And", 0, inside)


@pytest.mark.parametrize("case", CASES)
def test_a_sliding_window_is_an_attribute(case) -> None:
    model = decoder(layers=1)
    sliding_window(model)
    expected = decoder(layers=1)
    sliding_window(expected)
    run_passes(model)
    (node,) = attentions(model)
    assert (node.attributes["window"].as_int(), node.attributes["sinks"].as_int()) == (4, 0)
    assert largest_error(session(expected), session(model), case) < TOLERANCE


def test_a_window_longer_than_the_samples_is_found_by_its_constant() -> None:
    model = decoder(layers=1)
    sliding_window(model)
    model.graph.initializers["four"].const_value = ir.tensor(np.array(4096), name="four")
    run_passes(model)
    (node,) = attentions(model)
    assert node.attributes["window"].as_int() == 4096


def test_an_attention_op_of_another_domain_is_left_with_a_note() -> None:
    model = decoder(layers=1)
    node = ir.node(
        "SparseAttention", [model.graph.inputs[0]], domain="com.microsoft", name="sparse"
    )
    node.outputs[0].name, node.outputs[0].type = "sparse", ir.TensorType(ir.DataType.FLOAT)
    model.graph.opset_imports["com.microsoft"] = 1
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    notes = [(n.node, n.reason) for n in run_passes(model) if n.pass_name == "attention"]
    assert notes == [("sparse", "com.microsoft.SparseAttention is left as it is.")]
