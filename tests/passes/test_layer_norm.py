"""Norms and activations of encoders become ops of the domain, which one node runs."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.arrays import random
from kit.decoders import ops
from tamiz_passes.layer_norm import RecogniseLayerNorm
from tamiz_passes.shapes import infer_shapes

WIDTH = 8
GELU = """
    scaled = Div(h, root)
    error = Erf(scaled)
    shifted = Add(error, one)
    halved = Mul(h, half)
    z = Mul(halved, shifted)
"""


def graph(body: str, *, outputs: str = "float[B, S, 8] z", opset: int = 18) -> ir.Model:
    """An encoder's block with an attention of the domain before `body`, which reads `a` and x."""
    text = f"""
    <ir_version: 8, opset_import: ["" : {opset}, "tamiz" : 1]>
    block (float[B, S, 8] x, int64[B, S] attention_mask) => ({outputs})
    <float[8] weight = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[8] bias = {{8, 7, 6, 5, 4, 3, 2, 1}},
     float root = {{1.4142135}}, float one = {{1.0}}, float half = {{0.5}}>
    {{ a = tamiz.TextAttention<num_heads = 2>(x, x, x, attention_mask) {body} }}
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    infer_shapes(model)
    return model


def run(model: ir.Model) -> list[np.ndarray]:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(ir.to_proto(model).SerializeToString(), options)
    x, mask = random(2, 5, WIDTH, scale=2), np.ones((2, 5), np.int64)
    return session.run(None, {"x": x, "attention_mask": mask})


NORM = "s = Add(a, x) h = LayerNormalization<axis = -1, epsilon = 0.01>(s, weight, bias)"


def test_the_norm_takes_the_addition_and_the_activation_is_one_op() -> None:
    before, model = run(graph(NORM + GELU)), graph(NORM + GELU)
    assert RecogniseLayerNorm()(model).modified
    assert ops(model) == ["TextAttention", "LayerNorm", "SwiGLU"]
    norm = next(node for node in model.graph if node.op_type == "LayerNorm")
    assert [value.name for value in norm.inputs] == ["a", "weight", "bias", "x"]
    np.testing.assert_allclose(run(model)[0], before[0], rtol=2e-6, atol=2e-6)
    assert not RecogniseLayerNorm()(model).modified


def test_the_sum_is_given_where_something_else_reads_it() -> None:
    body, outputs = NORM + " z = Identity(h)", "float[B, S, 8] z, float[B, S, 8] s"
    before, model = run(graph(body, outputs=outputs)), graph(body, outputs=outputs)
    assert RecogniseLayerNorm()(model).modified
    for got, expected in zip(run(model), before, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


def test_an_addition_that_may_broadcast_stays() -> None:
    body = "s = Add(a, bias) z = LayerNormalization<axis = 2>(s, weight)"
    before, model = run(graph(body)), graph(body)
    assert RecogniseLayerNorm()(model).modified
    assert ops(model) == ["TextAttention", "Add", "LayerNorm"]
    np.testing.assert_allclose(run(model)[0], before[0], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("z = LayerNormalization<axis = 1>(a, w2)", "over axis 1, expected -1"),
        ("z, mean = LayerNormalization(a, weight) m = Neg(mean)", "mean or deviation is read"),
        ("z = LayerNormalization(a, x)", "not a constant of 8 elements"),
    ],
)
def test_other_norms_stay_and_say_why(body: str, reason: str) -> None:
    if "w2" in body:
        body = "w2 = Constant<value = float[1, 8] {1, 1, 1, 1, 1, 1, 1, 1}>() " + body
    outputs = "float[B, S, 8] z, float[B, S, 1] m" if "Neg" in body else "float[B, S, 8] z"
    model, recogniser = graph(body, outputs=outputs), RecogniseLayerNorm()
    assert not recogniser(model).modified
    (note,) = recogniser.notes
    assert reason in note.reason


def test_a_graph_without_an_attention_of_texts_stays() -> None:
    model = graph(NORM + " z = Identity(h)")
    for node in model.graph:
        if node.op_type == "TextAttention":
            node.outputs[0].replace_all_uses_with(model.graph.inputs[0])
            model.graph.remove(node, safe=True)
    assert not RecogniseLayerNorm()(model).modified
