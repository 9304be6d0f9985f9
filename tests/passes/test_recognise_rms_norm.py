from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.decoders import ops, session
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.rms_norm import RecogniseRMSNorm

#: Spellings of the norm: exporters', and what other tools make of them. Opset, then the body.
SPELLINGS = {
    "transformers in torch, with its casts": (
        18,
        """
        x32 = Cast<to = 1>(x)
        square = Pow(x32, two)
        mean = ReduceMean<keepdims = 1>(square, axes)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        inverse = Div(one, root)
        scaled = Mul(x32, inverse)
        back = Cast<to = 1>(scaled)
        y = Mul(weight, back)
        """,
    ),
    "x times x, Reciprocal, weight last": (
        18,
        """
        square = Mul(x, x)
        mean = ReduceMean<keepdims = 1>(square, axes)
        shifted = Add(epsilon, mean)
        root = Sqrt(shifted)
        inverse = Reciprocal(root)
        scaled = Mul(inverse, x)
        y = Mul(scaled, weight)
        """,
    ),
    "Sqrt then Div, axes as an attribute": (
        17,
        """
        square = Pow(x, two)
        mean = ReduceMean<axes = [-1], keepdims = 1>(square)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        scaled = Div(x, root)
        y = Mul(scaled, weight)
        """,
    ),
    "Gemma's one plus weight": (
        18,
        """
        square = Pow(x, two)
        mean = ReduceMean<keepdims = 1>(square, axes)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        inverse = Div(one, root)
        scaled = Mul(x, inverse)
        more = Add(one, weight)
        y = Mul(scaled, more)
        """,
    ),
    "the last axis counted from the front": (
        18,
        """
        square = Pow(x, two)
        mean = ReduceMean<keepdims = 1>(square, third)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        scaled = Div(x, root)
        y = Mul(scaled, weight)
        """,
    ),
}


def norm(body: str, opset: int = 18) -> ir.Model:
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}]>
    norm (float[B, S, 8] x) => (float[B, S, 8] y)
    <float two = {{2.0}}, float three = {{3.0}}, float one = {{1.0}}, float epsilon = {{0.001}},
     int64[1] axes = {{-1}}, int64[1] second = {{1}}, int64[1] third = {{2}},
     float[8] weight = {{0.5, 1.0, 1.5, 2.0, -1.0, 0.1, 0.2, 0.3}},
     float[1, 8] matrix = {{0.5, 1.0, 1.5, 2.0, -1.0, 0.1, 0.2, 0.3}}>
    {{ {body} }}
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def recognise(model: ir.Model) -> RecogniseRMSNorm:
    CleanUp()(model)
    recogniser = RecogniseRMSNorm()
    recogniser(model)
    return recogniser


def check_recognised(model: ir.Model, expected_ops: list[str]) -> None:
    """All norms are recognised, and the graph computes what it did."""
    x = np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)
    (expected,) = session(model).run(None, {"x": x})
    assert recognise(model).notes == []
    assert sorted(ops(model)) == expected_ops
    (found,) = session(model).run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_becomes_one_node_with_the_same_results(spelling: str) -> None:
    opset, body = SPELLINGS[spelling]
    model = norm(body, opset)
    check_recognised(model, ["RMSNorm"])
    assert model.graph[0].attributes["epsilon"].as_float() == pytest.approx(0.001)


def test_norms_of_one_value_that_share_their_nodes_become_one_node_each() -> None:
    """Where keys are values, both have a norm, and clean-up keeps one of what they share."""
    model = norm(
        """
        square = Pow(x, two)
        mean = ReduceMean<keepdims = 1>(square, axes)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        scaled = Div(x, root)
        more = Add(one, weight)
        of_keys = Mul(scaled, more)
        of_values = Mul(scaled, weight)
        y = Sub(of_keys, of_values)
        """
    )
    check_recognised(model, ["RMSNorm", "RMSNorm", "Sub"])


@pytest.mark.parametrize("op_type", ["RMSNormalization", "SimplifiedLayerNormalization"])
def test_ops_that_mean_the_same_are_taken(op_type: str) -> None:
    model = norm("y = RMSNormalization<axis = -1, epsilon = 0.01>(x, weight)", 23)
    model.graph[0].op_type = op_type
    assert recognise(model).notes == []
    assert ops(model) == ["RMSNorm"]
    assert model.graph[0].attributes["epsilon"].as_float() == pytest.approx(0.01)


REFUSALS = {
    "The norm does not square its input.": ("two", "three"),
    "The norm divides another number than 1 by the deviation.": ("one, root", "two, root"),
    "The norm's mean is over axes [1], expected [-1].": ("axes", "second"),
    "The norm's epsilon is not a constant.": ("mean, epsilon", "mean, mean"),
    "The norm's weight is not a constant vector.": ("scaled, weight", "scaled, matrix"),
}


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_is_refused_stays_and_says_why(reason: str) -> None:
    body = """
        square = Pow(x, two)
        mean = ReduceMean<keepdims = 1>(square, axes)
        shifted = Add(mean, epsilon)
        root = Sqrt(shifted)
        inverse = Div(one, root)
        scaled = Mul(x, inverse)
        y = Mul(scaled, weight)
    """
    model = norm(body.replace(*REFUSALS[reason]))
    notes = recognise(model).notes
    assert reason in {note.reason for note in notes}
    assert "RMSNorm" not in ops(model)


def test_a_layer_norm_in_primitive_ops_is_noted() -> None:
    model = norm("mean = ReduceMean<keepdims = 1>(x, axes)  y = Sub(x, mean)")
    (note,) = recognise(model).notes
    assert note.reason == "This mean is not part of w·x / sqrt(mean(x²) + ε)."


def test_a_norm_over_another_axis_is_refused() -> None:
    model = norm("y = RMSNormalization<axis = 1>(x, weight)", 23)
    (note,) = recognise(model).notes
    assert note.reason == "The norm is over axis 1, expected -1."
