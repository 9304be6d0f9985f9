"""Graphs in the forms that other tools write: passes leave what they compute as it is.

The reference of every test is plain ONNX Runtime on the graph before the passes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.equal_passes import check_each_pass, recognised
from tamiz.api.invariants import BrokenGraphError
from tamiz.api.nodes import draws
from tamiz.api.passes import GraphPass, Phase
from tamiz_passes.swiglu import RecogniseSwiGLU

FLOAT = onnx.TensorProto.FLOAT


def parsed(text: str, **constants: Any) -> ir.Model:
    """A model of ONNX's text form, with more initializers."""
    proto = onnx.parser.parse_model(text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(proto)


def model(body: str, signature: str, opset: int = 18, domain: str = "", **constants: Any) -> Any:
    more = f', "{domain}" : 1' if domain else ""
    text = f'<ir_version: 8, opset_import: ["" : {opset}{more}]> g {signature} {{ {body} }}'
    return parsed(text, **constants)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


X = {"x": numbers(3, 64)}


def names(values: Any) -> list[str]:
    return [value.name for value in values]


def test_an_output_that_is_read_by_an_identity_keeps_its_name() -> None:
    graph = model(
        "y = Relu(x) z = Identity(y)", "(float[n, 64] x) => (float[n, 64] y, float[n, 64] z)"
    )
    check_each_pass(graph, X)
    assert names(recognised(graph).graph.outputs) == ["y", "z"]


@pytest.mark.parametrize(
    "body",
    [
        "y = Identity(x) z = Identity(y)",
        "y = Identity(w) z = Identity(y)",
        "a = Relu(x) y = Identity(a) z = Identity(a)",
        "a = Relu(x) y = Identity(a) b = Identity(y) z = Abs(b)",
        "y = Relu(x) z = Relu(x)",
        "a = Relu(x) y = Relu(x) z = Neg(a)",
        "y = Abs(w) z = Abs(w)",
    ],
)
def test_names_and_order_of_outputs_stay(body) -> None:
    graph = model(body, "(float[n, 64] x) => (float[n, 64] y, float[n, 64] z)", w=numbers(3, 64))
    check_each_pass(graph, X)


@pytest.mark.parametrize(
    "draw",
    [
        "a = Bernoulli(x) b = Bernoulli(x)",
        "a = RandomNormalLike(x) b = RandomNormalLike(x)",
        "a = RandomUniform <shape = [3, 64]> () b = RandomUniform <shape = [3, 64]> ()",
        "a = Dropout(x, ratio, on) b = Dropout(x, ratio, on)",
    ],
)
def test_equal_draws_stay_two(draw) -> None:
    body = f"{draw} y = Sub(a, b)"
    graph = model(
        body,
        "(float[n, 64] x) => (float[3, 64] y)",
        ratio=np.float32(0.5),
        on=np.array(True),
    )
    result = recognised(graph)
    assert sum(map(draws, result.graph)) == 2


def test_dropout_outside_of_training_goes() -> None:
    graph = model("a = Dropout(x) y = Relu(a)", "(float[n, 64] x) => (float[n, 64] y)")
    assert [node.op_type for node in recognised(graph).graph] == ["Relu"]


NORM = """
    s = Mul(x, x) m = ReduceMean <axes = [-1]> (s) e = Add(m, eps) r = Sqrt(e) d = Div(x, r)
    y = Mul(d, w)
"""


def test_a_norm_of_unknown_width_is_refused() -> None:
    graph = model(
        f"x = com.microsoft.Unknown(h) {NORM}",
        "(float[n, k] h) => (float[n, k] y)",
        17,
        "com.microsoft",
        w=numbers(1),
        eps=np.float32(1e-5),
    )
    assert "RMSNorm" not in [node.op_type for node in recognised(graph).graph]


@pytest.mark.parametrize("weight", [1, 64])
def test_a_norm_behind_an_op_of_onnxruntime_has_a_known_width(weight) -> None:
    graph = model(
        f"x = com.microsoft.QuickGelu(h) {NORM}",
        "(float[n, 64] h) => (float[n, 64] y)",
        17,
        "com.microsoft",
        w=numbers(weight),
        eps=np.float32(1e-5),
    )
    found = [node.op_type for node in check_each_pass(graph, {"h": X["x"]}).graph]
    assert ("RMSNorm" in found) == (weight == 64)


def test_an_output_without_a_shape_stays_one() -> None:
    """What replaces the op that gives it has the shape of its input."""
    text, signature = "y = com.microsoft.QuickGelu(h)", "(float[n, 64] h) => (float y)"
    graph = model(text, signature, 17, "com.microsoft")
    graph.graph.outputs[0].shape = None
    found = check_each_pass(graph, {"h": X["x"]}).graph
    assert "QuickGelu" not in [node.op_type for node in found]
    assert found.outputs[0].shape is None


def test_a_norm_whose_constants_raise_the_rank_is_refused() -> None:
    epsilon = np.full((1, 1, 1), 1e-5, np.float32)
    signature = "(float[n, 64] x) => (float[1, n, 64] y)"
    check_each_pass(model(NORM, signature, 17, w=numbers(64), eps=epsilon), X)


def test_a_norm_in_float16_is_refused() -> None:
    graph = model(
        NORM,
        "(float16[n, 64] x) => (float16[n, 64] y)",
        17,
        w=numbers(64, dtype=np.float16),
        eps=np.float16(1e-3),
    )
    check_each_pass(graph, {"x": X["x"].astype(np.float16)})


@pytest.mark.parametrize(
    ("up", "fused"),
    [
        ("float[n, 64]", True),
        ("float[64]", False),
        ("float[m, 64]", False),
        ("float[1, 64]", False),
    ],
)
def test_swiglu_needs_equal_shapes(up, fused) -> None:
    graph = model(
        "s = Sigmoid(x) g = Mul(x, s) y = Mul(g, v)",
        f"(float[n, 64] x, {up} v) => (float[n, 64] y)",
    )
    shape = (64,) if up == "float[64]" else (3 if fused else 1, 64)
    result = check_each_pass(graph, X | {"v": numbers(*shape)})
    assert ("SwiGLU" in [node.op_type for node in result.graph]) == fused


def test_shapes_that_are_not_known_are_called_so() -> None:
    graph = model(
        "s = Sigmoid(x) g = Mul(x, s) y = Mul(g, v)",
        "(float[n, 64] x, float[n, 64] v) => (float[n, 64] y)",
    )
    for value in graph.graph.inputs:
        value.shape = None
    graph_pass = RecogniseSwiGLU()
    graph_pass(graph)
    reasons = {note.reason for note in graph_pass.notes}
    assert "The shapes of gate and up are not known." in reasons


def test_a_swish_with_an_alpha_is_refused() -> None:
    graph = model(
        "g = Swish <alpha = 1.7> (x) y = Mul(g, v)",
        "(float[n, 64] x, float[n, 64] v) => (float[n, 64] y)",
        24,
    )
    assert "SwiGLU" not in [node.op_type for node in recognised(graph).graph]


@pytest.mark.parametrize("opset", [11, 13, 17])
def test_sequences_of_constants_stay_at_their_opset(opset) -> None:
    graph = model(
        """
        s = SplitToSequence <axis = 0> (w, parts)
        c = ConcatFromSequence <axis = 0> (s)
        y = Add(x, c)
        """,
        "(float[n, 64] x) => (float[n, 64] y)",
        opset,
        w=numbers(3, 64),
        parts=np.array([1, 2]),
    )
    check_each_pass(graph, X)


@pytest.mark.parametrize("attribute", ["alpha = 0.5", "transA = 1"])
def test_constants_are_folded_by_onnxruntime_at_the_opset_of_the_model(attribute) -> None:
    graph = model(
        f"c = Gemm <{attribute}> (a, a) y = Add(x, c)",
        "(float[4, 4] x) => (float[4, 4] y)",
        13,
        a=numbers(4, 4),
    )
    result = check_each_pass(graph, {"x": numbers(4, 4)})
    assert [node.op_type for node in result.graph] == ["Add"]


def test_a_branch_that_reads_a_value_stays_around_it() -> None:
    graph = parsed(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 64] x, bool c) => (float[n, 64] y) {
            h = Relu(x)
            z = If (c) <
                then_branch = t () => (float[n, 64] a) { a = Add(h, b) },
                else_branch = e () => (float[n, 64] f) { f = Neg(h) }
            >
            y = Add(z, h)
        }
        """,
        b=numbers(64),
    )
    for chosen in (True, False):
        check_each_pass(graph, X | {"c": np.array(chosen)})


class _Broken(GraphPass):
    name = "broken"
    phase = Phase.RECOGNISE

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.change(model)
        return ir.passes.PassResult(model, modified=True)

    @staticmethod
    def change(model: ir.Model) -> None:
        raise NotImplementedError


def _rename(model: ir.Model) -> None:
    model.graph.outputs[0].name = "other"


def _swap(model: ir.Model) -> None:
    outputs = list(model.graph.outputs)
    model.graph.outputs.clear()
    model.graph.outputs.extend(reversed(outputs))


def _reshape(model: ir.Model) -> None:
    model.graph.outputs[0].shape = ir.Shape([1, 2])


def _add_input(model: ir.Model) -> None:
    model.graph.inputs.append(ir.Value(name="more", type=ir.TensorType(ir.DataType.FLOAT)))


def _raise_opset(model: ir.Model) -> None:
    model.graph.opset_imports[""] = 20


def _newer_op(model: ir.Model) -> None:
    node = ir.node("Swish", [model.graph.inputs[0]])
    model.graph.append(node)


def _unordered(model: ir.Model) -> None:
    first = model.graph[0]
    model.graph.remove(first)
    model.graph.append(first)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_rename, r"outputs were \[y, z\] and are \[other, z\]"),
        (_swap, r"outputs were \[y, z\] and are \[z, y\]"),
        (_reshape, "the graph's y was"),
        (_add_input, "adds the input more without a default"),
        (_raise_opset, "opsets were"),
        (_newer_op, "Swish is no op of opset 18"),
        (_unordered, "before it is computed"),
    ],
)
def test_a_pass_that_breaks_the_graph_is_stopped(change, reason) -> None:
    graph = model("y = Relu(x) z = Abs(y)", "(float[n, 64] x) => (float[n, 64] y, float[n, 64] z)")
    broken = type("Broken", (_Broken,), {"change": staticmethod(change)})
    with pytest.raises(BrokenGraphError, match=reason):
        broken()(graph)


def test_a_pass_that_drops_a_draw_is_stopped() -> None:
    graph = model("a = Bernoulli(x) y = Add(a, x)", "(float[n, 64] x) => (float[n, 64] y)")

    def change(model: ir.Model) -> None:
        model.graph[1].replace_input_with(0, model.graph.inputs[0])

    broken = type("Broken", (_Broken,), {"change": staticmethod(change)})
    with pytest.raises(BrokenGraphError, match="a, which is drawn at random, is gone"):
        broken()(graph)


def test_a_branch_that_nobody_needs_goes_with_what_only_it_reads() -> None:
    graph = parsed(
        """
        <ir_version: 8, opset_import: ["" : 18]>
        g (float[n, 64] x, bool c) => (float[n, 64] y) {
            h = MatMul(x, w)
            z = If (c) <
                then_branch = t () => (float[n, 64] a) { a = Relu(h) },
                else_branch = e () => (float[n, 64] f) { f = Neg(h) }
            >
            y = Abs(x)
        }
        """,
        w=numbers(64, 64),
    )
    result = check_each_pass(graph, X | {"c": np.array(True)})
    assert [node.op_type for node in result.graph] == ["Abs"]
