"""Attention that is left as it is, and the notes that say why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest

from kit.decoders import (
    CASES,
    HEAD_DIM,
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


def tanh_of_masked_scores(model: ir.Model) -> None:
    insert_before(model, "/model/layers.0/self_attn/Softmax", 0, lambda v: [ir.node("Tanh", [v])])


def before_mask(model: ir.Model, make: Callable[[ir.Value], list[ir.Node]]) -> None:
    """Puts nodes between the scores and their mask."""

    def named(value: ir.Value) -> list[ir.Node]:
        nodes = make(value)
        for number, node in enumerate(nodes):
            node.outputs[0].name = f"before_mask.{number}"
        return nodes

    insert_before(model, "/model/layers.0/self_attn/Add", 0, named)


def tanh_of_tanh(model: ir.Model) -> None:
    def twice(value: ir.Value) -> list[ir.Node]:
        first = ir.node("Tanh", [value])
        return [first, ir.node("Tanh", [first.outputs[0]])]

    before_mask(model, twice)


def tanh_of_biased_scores(model: ir.Model) -> None:
    bias = constant(model, "bias", 0.5)

    def biased(value: ir.Value) -> list[ir.Node]:
        add = ir.node("Add", [value, bias])
        return [add, ir.node("Tanh", [add.outputs[0]])]

    before_mask(model, biased)


def tanh_beside_scores(model: ir.Model) -> None:
    def both(value: ir.Value) -> list[ir.Node]:
        tanh = ir.node("Tanh", [value])
        return [tanh, ir.node("Mul", [value, tanh.outputs[0]])]

    before_mask(model, both)


def negative_cap(model: ir.Model) -> None:
    cap = constant(model, "cap", -2.0)

    def capped(value: ir.Value) -> list[ir.Node]:
        tanh = ir.node("Tanh", [value])
        return [tanh, ir.node("Mul", [tanh.outputs[0], cap])]

    before_mask(model, capped)


def constant_bias(model: ir.Model) -> None:
    bias = constant(model, "bias", [[[[0.5]]]])
    insert_before(
        model, "/model/layers.0/self_attn/Softmax", 0, lambda v: [ir.node("Add", [v, bias])]
    )


def squared_places(model: ir.Model) -> None:
    key = node_named(model, "/model/Range").outputs[0]
    axes = constant(model, "axes", [0, 1, 2], np.int64)

    def added(scores: ir.Value) -> list[ir.Node]:
        place = ir.node("Cast", [key], {"to": 1})
        square = ir.node("Mul", [place.outputs[0], place.outputs[0]])
        bias = ir.node("Unsqueeze", [square.outputs[0], axes])
        for number, node in enumerate((place, square, bias)):
            node.outputs[0].name = f"squared_places.{number}"
        return [place, square, bias, ir.node("Add", [scores, bias.outputs[0]])]

    insert_before(model, "/model/layers.0/self_attn/Softmax", 0, added)


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
    tanh_of_masked_scores: "Expected query times key, times numbers, inside of the soft cap "
    "(Tanh), found Add.",
    tanh_of_tanh: "Expected query times key, times numbers, inside of the soft cap (Tanh), found "
    "Tanh.",
    tanh_of_biased_scores: "Expected query times key, times numbers, inside of the soft cap "
    "(Tanh), found Add.",
    tanh_beside_scores: "Expected query times key plus a mask before Softmax, found Mul plus "
    "Where.",
    negative_cap: "The soft cap of the scores is -2, expected a positive number.",
    constant_bias: "The mask has shape [1, 1, 1, 1], expected [B, heads, S, P + S].",
    squared_places: "The mask adds a bias to scores that it keeps, which is no slope times the "
    "distance.",
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
    frequencies_by_length: "It depends on longrope (If), a branch or a loop.",
    half_precision_cache: "The key's past is FLOAT16, expected FLOAT.",
    returned_probabilities: "The probabilities are an output of the graph.",
    two_uses: "Expected one use of the probabilities, found 2.",
}


@pytest.mark.parametrize("change", REFUSALS, ids=lambda change: change.__name__)
def test_what_is_refused_stays_and_says_why(change: Callable[[ir.Model], None]) -> None:
    model = decoder(layers=1)
    change(model)
    notes = [note for note in run_passes(model) if note.pass_name == "attention"]
    assert [(n.node, n.reason) for n in notes] == [
        ("/model/layers.0/self_attn/Softmax", REFUSALS[change])
    ]
    assert attentions(model) == []
    assert "Softmax" in ops(model)


def test_norms_of_transposed_heads_are_recognised() -> None:
    model = decoder(layers=1)
    norm_of_transposed_heads(model)
    before = session(model.clone())
    assert [n.reason for n in run_passes(model) if n.pass_name == "attention"] == []
    assert len(attentions(model)) == 1
    assert all(largest_error(before, session(model), case) < 1e-5 for case in CASES)


def test_a_rotation_of_the_other_half_is_refused_by_its_results() -> None:
    model = decoder(layers=1)
    unequal_halves(model)
    (note,) = (n for n in run_passes(model) if n.pass_name == "attention")
    assert note.reason.startswith("The output is not what tamiz.Attention computes (relative error")


def test_what_onnxruntime_cannot_run_is_refused() -> None:
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


def test_only_the_layer_that_differs_is_left() -> None:
    model = decoder()
    tanh_of_masked_scores(model)
    run_passes(model)
    assert [n.name for n in attentions(model)] == ["/model/layers.1/self_attn/Attention"]
