from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit.decoders import (
    CASES,
    FREQUENCY,
    HEAD_DIM,
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
}


def attentions(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if n.op_type == "Attention" and n.domain == "tamiz"]


def test_a_layer_becomes_linears_norms_attention_and_swiglu():
    model = decoder(tied=False)
    assert run_passes(model) == []
    assert ops(model) == ["Gather", *LAYER, *LAYER, "RMSNorm", "MatMul"]


def test_a_tied_head_keeps_its_transpose():
    model = decoder(layers=1)
    run_passes(model)
    assert sorted(ops(model)) == sorted(["Gather", *LAYER, "RMSNorm", "Transpose", "MatMul"])


def test_biases_stay_beside_their_linears():
    model = decoder(layers=1, biases=True)
    run_passes(model)
    attention = attentions(model)[0]
    for value in attention.inputs[:3]:
        add = value.producer()
        assert add.op_type == "Add"
        assert add.inputs[1].producer().op_type == "MatMul"


def test_attention_reads_the_linears_the_caches_and_the_graph_inputs():
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
def test_the_recognised_graph_computes_the_same(variant: str, case: str):
    before = session(decoder(**VARIANTS[variant]))
    model = decoder(**VARIANTS[variant])
    run_passes(model)
    assert len(attentions(model)) == 2
    assert largest_error(before, session(model), case) < TOLERANCE


def test_head_norms_work_on_joined_heads():
    model = decoder(layers=1, head_norms=True, tied=False)
    assert run_passes(model) == []
    for value in attentions(model)[0].inputs[:2]:
        norm = value.producer()
        assert norm.op_type == "RMSNorm"
        assert norm.inputs[0].producer().op_type == "MatMul"
    assert "Reshape" not in ops(model)


def test_an_unusual_scale_becomes_an_attribute():
    model = decoder(layers=1)
    node = node_named(model, "/model/layers.0/self_attn/Mul")
    node.replace_input_with(1, constant(model, "scale", 0.125))
    run_passes(model)
    assert attentions(model)[0].attributes["scale"].as_float() == 0.125


def test_layers_that_differ_in_a_constant_are_told_apart():
    model = decoder(layers=3)
    node = node_named(model, "/model/layers.1/self_attn/Mul")
    node.replace_input_with(1, constant(model, "scale", 0.125))
    run_passes(model)
    scales = [node.attributes.get("scale") for node in attentions(model)]
    assert [s if s is None else s.as_float() for s in scales] == [None, 0.125, None]


def test_a_factor_on_the_rotary_tables_becomes_an_attribute():
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


def test_positions_that_the_graph_counts_are_computed_once():
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


def soft_cap(model: ir.Model) -> None:
    insert_before(model, "/model/layers.0/self_attn/Softmax", 0, lambda v: [ir.node("Tanh", [v])])


def constant_bias(model: ir.Model) -> None:
    bias = constant(model, "bias", [[[[0.5]]]])
    insert_before(
        model, "/model/layers.0/self_attn/Softmax", 0, lambda v: [ir.node("Add", [v, bias])]
    )


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


def first_keys(model: ir.Model) -> None:
    """Hides the keys from the fifth on."""
    key = node_named(model, "/model/Range").outputs[0]
    four = constant(model, "four", 4, np.int64)

    def inside(causal: ir.Value) -> list[ir.Node]:
        first = ir.node("Less", [key, four])
        both = ir.node("And", [causal, first.outputs[0]])
        first.outputs[0].name, both.outputs[0].name = "first", "first.and"
        return [first, both]

    insert_before(model, "/model/And", 0, inside)


def no_mask(model: ir.Model) -> None:
    add = node_named(model, "/model/layers.0/self_attn/Add")
    add.outputs[0].replace_all_uses_with(add.inputs[0])


def mask_without_padding(model: ir.Model) -> None:
    both = node_named(model, "/model/And")
    both.outputs[0].replace_all_uses_with(both.inputs[0])


def interleaved(model: ir.Model) -> None:
    concat = node_named(model, "/model/layers.0/self_attn/rotary_q/Concat")
    low, high = concat.inputs
    concat.replace_input_with(0, high)
    concat.replace_input_with(1, low)


def unequal_halves(model: ir.Model) -> None:
    """Swaps the halves: x·cos + concat(−x₁, x₂)·sin."""
    for part in ("q", "k"):
        low, high = (
            node_named(model, f"/model/layers.0/self_attn/rotary_{part}/{name}")
            for name in ("Slice", "Slice_1")
        )
        for index in (1, 2):
            a, b = low.inputs[index], high.inputs[index]
            low.replace_input_with(index, b)
            high.replace_input_with(index, a)


def only_query_rotated(model: ir.Model) -> None:
    rotated = node_named(model, "/model/layers.0/self_attn/rotary_k/Add").outputs[0]
    rotated.replace_all_uses_with(
        node_named(model, "/model/layers.0/self_attn/Transpose_1").outputs[0]
    )


def shifted_positions(model: ir.Model) -> None:
    one = constant(model, "one", 1, np.int64)
    insert_before(model, "/model/rotary_emb/Unsqueeze", 0, lambda v: [ir.node("Add", [v, one])])


def unequal_angles(model: ir.Model) -> None:
    half = constant(model, "half", 0.5)
    insert_before(model, "/model/rotary_emb/Concat", 1, lambda v: [ir.node("Mul", [v, half])])


def no_cache(model: ir.Model) -> None:
    """An encoder: keys are those of the tokens given."""
    for name in ("Concat", "Concat_1"):
        concat = node_named(model, f"/model/layers.0/self_attn/{name}")
        concat.outputs[0].replace_all_uses_with(concat.inputs[1], replace_graph_outputs=True)


def past_in_front_of_nothing(model: ir.Model) -> None:
    """The cache is not what the graph returns."""
    concat = node_named(model, "/model/layers.0/self_attn/Concat")
    copy = ir.node("Abs", [concat.outputs[0]], name="copy")
    copy.outputs[0].name = "copied"
    model.graph.outputs[model.graph.outputs.index(concat.outputs[0])] = copy.outputs[0]
    model.graph.insert_after(concat, copy)


def frequencies_by_length(model: ir.Model) -> None:
    """As LongRoPE: other frequencies once a position is beyond the original context."""
    positions = next(v for v in model.graph.inputs if v.name == "position_ids")
    limit = constant(model, "limit", 100, np.int64)
    factors = [constant(model, f"factor.{n}", n) for n in (1.0, 2.0)]

    def branch(factor: ir.Value, angle: ir.Value) -> ir.Graph:
        node = ir.node("Mul", [angle, factor])
        node.outputs[0].name = f"{factor.name}.angle"
        return ir.Graph([], node.outputs, nodes=[node], name=factor.name)

    def chosen(angle: ir.Value) -> list[ir.Node]:
        last = ir.node("ReduceMax", [positions], {"keepdims": 0})
        far = ir.node("Greater", [last.outputs[0], limit])
        last.outputs[0].name, far.outputs[0].name = "last", "far"
        then, other = (branch(factor, angle) for factor in factors[::-1])
        attributes = {"then_branch": then, "else_branch": other}
        scaled = ir.node("If", [far.outputs[0]], attributes, name="longrope")
        scaled.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        return [last, far, scaled]

    insert_before(model, "/model/rotary_emb/Concat", 0, chosen)
    concat = node_named(model, "/model/rotary_emb/Concat")
    concat.replace_input_with(1, concat.inputs[0])


def half_precision_cache(model: ir.Model) -> None:
    past = next(v for v in model.graph.inputs if v.name == "past_key_values.0.key")
    past.type = ir.TensorType(ir.DataType.FLOAT16)


def two_uses(model: ir.Model) -> None:
    softmax = node_named(model, "/model/layers.0/self_attn/Softmax")
    extra = ir.node("Abs", [softmax.outputs[0]], name="extra")
    extra.outputs[0].name, extra.outputs[0].type = "extra", ir.TensorType(ir.DataType.FLOAT)
    model.graph.append(extra)
    model.graph.outputs.append(extra.outputs[0])


def returned_probabilities(model: ir.Model) -> None:
    model.graph.outputs.append(node_named(model, "/model/layers.0/self_attn/Softmax").outputs[0])


def norm_of_transposed_heads(model: ir.Model) -> None:
    """x · w for the weight [D] is the same before and after the transposition to heads."""
    for suffix in ("", "_1"):
        split = node_named(model, f"/model/layers.0/self_attn/Reshape{suffix}").outputs[0]
        swap = ir.node("Transpose", [split], {"perm": [0, 2, 1, 3]}, name=f"swap{suffix}")
        norm = ir.node(
            "RMSNormalization",
            [swap.outputs[0], constant(model, f"weight{suffix}", np.ones(HEAD_DIM))],
            {"axis": -1},
            name=f"norm{suffix}",
        )
        for node in (swap, norm):
            node.outputs[0].name = f"{node.name}.output"
        transpose = node_named(model, f"/model/layers.0/self_attn/Transpose{suffix}")
        transpose.outputs[0].replace_all_uses_with(norm.outputs[0])
        model.graph.insert_after(transpose, [swap, norm])
    model.graph.opset_imports[""] = 23


REFUSALS: dict[Callable[[ir.Model], None], str] = {
    soft_cap: "The scores are soft-capped by Tanh, which tamiz.Attention has not.",
    constant_bias: "The mask adds a bias to scores that it keeps (ALiBi?).",
    first_keys: "The mask is not the causal mask of attention_mask with a window: of 6 keys a "
    "query sees 4.",
    no_mask: "The scores have no mask, expected the causal one.",
    mask_without_padding: "The mask is not the causal mask of attention_mask.",
    interleaved: "Rotary embedding: expected x·cos + concat(−x₂, x₁)·sin (half-split); interleaved "
    "pairs are not supported.",
    only_query_rotated: "Only one of query and key is rotated.",
    shifted_positions: "The rotary angles are not positions × constant frequencies (they follow "
    "another count of positions, or change with it).",
    unequal_angles: "The rotary tables are not cos and sin of the angles, repeated over both "
    "halves.",
    no_cache: "The key is not a past with new tokens appended: there is no KV cache.",
    past_in_front_of_nothing: "The key's past and present are not an input and an output of the "
    "graph.",
    norm_of_transposed_heads: "Expected the norm of the heads right after the Reshape to heads.",
    frequencies_by_length: "It depends on longrope (If), a branch or a loop.",
    half_precision_cache: "The key's past is FLOAT16, expected FLOAT.",
    returned_probabilities: "The probabilities are an output of the graph.",
    two_uses: "Expected one use of the probabilities, found 2.",
}


@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.__name__)
def test_what_is_refused_stays_and_says_why(change: Callable[[ir.Model], None]):
    model = decoder(layers=1)
    change(model)
    notes = [note for note in run_passes(model) if note.pass_name == "attention"]
    assert [(n.node, n.reason) for n in notes] == [
        ("/model/layers.0/self_attn/Softmax", REFUSALS[change])
    ]
    assert attentions(model) == []
    assert "Softmax" in ops(model)


def test_a_rotation_of_the_other_half_is_refused_by_its_results():
    model = decoder(layers=1)
    unequal_halves(model)
    (note,) = (n for n in run_passes(model) if n.pass_name == "attention")
    assert note.reason.startswith("The output is not what tamiz.Attention computes (relative error")


def test_what_onnxruntime_cannot_run_is_refused():
    def unheard(value: ir.Value) -> list[ir.Node]:
        node = ir.node("Unheard", [value])
        node.outputs[0].type = ir.TensorType(ir.DataType.BOOL)
        node.outputs[0].shape = ir.Shape([None, None])
        return [node]

    model = decoder(layers=1)
    insert_before(model, "/model/And", 0, unheard)
    (note,) = (n for n in run_passes(model) if n.pass_name == "attention")
    assert note.reason.startswith("Onnxruntime cannot load it: ")
    assert "Unheard" in note.reason


@pytest.mark.parametrize("case", CASES)
def test_a_sliding_window_is_an_attribute(case):
    model = decoder(layers=1)
    sliding_window(model)
    expected = decoder(layers=1)
    sliding_window(expected)
    run_passes(model)
    (node,) = attentions(model)
    assert (node.attributes["window"].as_int(), node.attributes["sinks"].as_int()) == (4, 0)
    assert largest_error(session(expected), session(model), case) < TOLERANCE


def test_a_window_longer_than_the_samples_is_found_by_its_constant():
    model = decoder(layers=1)
    sliding_window(model)
    model.graph.initializers["four"].const_value = ir.tensor(np.array(4096), name="four")
    run_passes(model)
    (node,) = attentions(model)
    assert node.attributes["window"].as_int() == 4096


def test_only_the_layer_that_differs_is_left():
    model = decoder()
    soft_cap(model)
    run_passes(model)
    assert [n.name for n in attentions(model)] == ["/model/layers.1/self_attn/Attention"]


def test_an_attention_op_of_another_domain_is_left_with_a_note():
    model = decoder(layers=1)
    node = ir.node(
        "GroupQueryAttention", [model.graph.inputs[0]], domain="com.microsoft", name="gqa"
    )
    node.outputs[0].name, node.outputs[0].type = "gqa", ir.TensorType(ir.DataType.FLOAT)
    model.graph.opset_imports["com.microsoft"] = 1
    model.graph.append(node)
    model.graph.outputs.append(node.outputs[0])
    notes = [(n.node, n.reason) for n in run_passes(model) if n.pass_name == "attention"]
    assert notes == [("gqa", "com.microsoft.GroupQueryAttention is left as it is.")]
