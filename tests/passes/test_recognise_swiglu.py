from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.decoders import ops, session
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.swiglu import RecogniseSwiGLU

_GELU = (
    "three = Constant<value_float = 3.0>() c = Constant<value_float = 0.044715>()"
    " root = Constant<value_float = 0.7978845608>() half = Constant<value_float = 0.5>()"
    " one = Constant<value_float = 1.0>() g3 = Pow(gate, three) g4 = Mul(c, g3) g5 = Add(gate, g4)"
    " g6 = Mul(g5, root) t = Tanh(g6) t1 = Add(one, t)"
)
_CUBE = "g2 = Mul(gate, gate) g3 = Mul(g2, gate)"
_ERF = (
    "root = Constant<value_float = 1.4142135624>() half = Constant<value_float = 0.5>()"
    " one = Constant<value_float = 1.0>() d = Div(gate, root) e = Erf(d) e1 = Add(e, one)"
)
SPELLINGS = {
    "silu first": "s = Sigmoid(gate) a = Mul(gate, s) y = Mul(a, up)",
    "up first": "s = Sigmoid(gate) a = Mul(s, gate) y = Mul(up, a)",
    "gelu, halved first": f"{_GELU} h = Mul(half, gate) a = Mul(h, t1) y = Mul(a, up)",
    "gelu, a cube of two products": _GELU.replace("g3 = Pow(gate, three)", _CUBE)
    + " h = Mul(half, gate) a = Mul(h, t1) y = Mul(a, up)",
    "gelu, halved last": f"{_GELU} h = Mul(gate, t1) a = Mul(half, h) y = Mul(up, a)",
    "exact gelu, halved first": f"{_ERF} h = Mul(gate, half) a = Mul(h, e1) y = Mul(a, up)",
    "exact gelu, halved last": f"{_ERF} h = Mul(gate, e1) a = Mul(h, half) y = Mul(up, a)",
    "quick gelu": "c = Constant<value_float = 1.702>() g = Mul(gate, c) s = Sigmoid(g)"
    " a = Mul(gate, s) y = Mul(a, up)",
    "relu": "a = Relu(gate) y = Mul(up, a)",
    "relu2": "a = Relu(gate) b = Mul(a, a) y = Mul(b, up)",
}


def graph(body: str, up: str = "float[B, S, 8]") -> ir.Model:
    text = f"""
    <ir_version: 8, opset_import: ["" : 18]>
    gated (float[B, S, 8] gate, {up} up) => (float[B, S, 8] y) {{ {body} }}
    """
    return ir.from_proto(onnx.parser.parse_model(text))


def recognise(model: ir.Model) -> RecogniseSwiGLU:
    CleanUp()(model)
    recogniser = RecogniseSwiGLU()
    recogniser(model)
    return recogniser


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_an_activation_times_up_becomes_one_node_with_the_same_results(spelling: str) -> None:
    model = graph(SPELLINGS[spelling])
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal((2, 3, 8), np.float32) for name in ("gate", "up")}
    (expected,) = session(model).run(None, feeds)
    assert recognise(model).notes == []
    assert ops(model) == ["SwiGLU"]
    assert [v.name for v in model.graph[0].inputs] == ["gate", "up"]
    (found,) = session(model).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_without_up_it_becomes_one_node_in_a_decoder(spelling: str) -> None:
    body = re.sub(r" y = Mul\((a|b|up), (a|b|up)\)", "", SPELLINGS[spelling])
    body = re.sub(r"\b(a|b)( = \S+\([^()]*\))$", r"y\2", body)
    model = graph(body)
    feeds = {"gate": np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)}
    (expected,) = session(model).run(None, {**feeds, "up": feeds["gate"]})
    recognise(model)
    assert "SwiGLU" not in ops(model)
    model.graph.inputs[1].name = "past_key_values.0.key"
    assert recognise(model).notes == []
    assert ops(model) == ["SwiGLU"]
    (found,) = session(model).run(None, {**feeds, "past_key_values.0.key": feeds["gate"]})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("attribute", "activation"),
    [('<approximate = "tanh">', "gelu_tanh"), ('<approximate = "none">', "gelu"), ("", "gelu")],
)
def test_the_operator_gelu_is_exact_or_the_approximation_by_tanh(
    attribute: str, activation: str
) -> None:
    model = graph(f"a = Gelu{attribute}(gate) y = Mul(a, up)")
    model.graph.opset_imports[""] = 20
    recognise(model)
    assert ops(model) == ["SwiGLU"]
    assert model.graph[0].attributes["activation"].as_string() == activation


def test_another_constant_of_gelu_is_noted() -> None:
    body = _GELU.replace("0.044715", "0.05") + " h = Mul(half, gate) a = Mul(h, t1) y = Mul(a, up)"
    notes = recognise(graph(body)).notes
    assert [n.reason for n in notes if "cubic" in n.reason] == [
        "gelu_tanh has 0.05000000074505806 for cubic, expected 0.044715."
    ]


def test_opset_24_spells_silu_as_swish() -> None:
    model = graph("a = Abs(gate) y = Mul(a, up)")
    model.graph[0].op_type = "Swish"
    model.graph.opset_imports[""] = 24
    recognise(model)
    assert ops(model) == ["SwiGLU"]


def test_another_activation_is_noted() -> None:
    model = graph("a = Tanh(gate) y = Mul(a, up)")
    (note,) = recognise(model).notes
    assert note.reason == "Tanh is not part of an activation that tamiz fuses."
    assert ops(model) == ["Tanh", "Mul"]


def test_an_up_that_broadcasts_is_refused() -> None:
    model = graph(SPELLINGS["silu first"], up="float[B, S, 1]")
    notes = recognise(model).notes
    assert "Gate [B, S, 8] and up [B, S, 1] are not known to have the same shape." in {
        note.reason for note in notes
    }
    assert "SwiGLU" not in ops(model)


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(gate) a = Mul(gate, s) y = Mul(a, a)",
        "s = Sigmoid(gate) a = Mul(gate, s) y = Mul(a, s)",
    ],
)
def test_an_activation_times_a_part_of_itself_keeps_its_results(body: str) -> None:
    model = graph(body)
    gate = np.random.default_rng(0).standard_normal((2, 3, 8), np.float32)
    feeds = {"gate": gate, "up": gate}
    (expected,) = session(model).run(None, feeds)
    recognise(model)
    (found,) = session(model).run(None, feeds)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
