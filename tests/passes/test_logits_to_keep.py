"""A caller may say for how many positions the head is computed."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import tamiz_ops
from tamiz_passes.logits_to_keep import LogitsToKeep

WEIGHT = np.random.default_rng(0).normal(size=(8, 5)).astype(np.float32)
HIDDEN = np.random.default_rng(1).normal(size=(3, 6, 8)).astype(np.float32)


def graph(
    *after: onnx.NodeProto,
    weight_is_input: bool = False,
    rank: int = 3,
    kind: int = onnx.TensorProto.FLOAT,
) -> ir.Model:
    """hidden → MatMul → `after` → logits."""
    sizes: list[str | int | None] = ["batch", "sequence", 8]
    shape = sizes[-rank:]
    inputs = [helper.make_tensor_value_info("hidden", kind, shape)]
    constants = [numpy_helper.from_array(np.float32(2).reshape(()), "two")]
    if weight_is_input:
        inputs.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8, 5]))
    else:
        constants.append(numpy_helper.from_array(WEIGHT, "w"))
    head = helper.make_node("MatMul", ["hidden", "w"], ["y" if after else "logits"], name="head")
    logits = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [*shape[:-1], 5])
    proto = helper.make_graph([head, *after], "g", inputs, [logits], constants)
    opset = [helper.make_opsetid("", 18)]
    return ir.from_proto(helper.make_model(proto, opset_imports=opset, ir_version=9))


def session(model: ir.Model) -> ort.InferenceSession:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    tamiz_ops.register(options)
    return ort.InferenceSession(proto.SerializeToString(), options)


@pytest.mark.parametrize(
    "after",
    [
        (),
        (helper.make_node("Mul", ["y", "two"], ["logits"]),),
        (helper.make_node("Tanh", ["y"], ["z"]), helper.make_node("Mul", ["z", "two"], ["logits"])),
    ],
    ids=["plain", "scaled", "soft cap"],
)
def test_the_last_positions_are_computed(after) -> None:
    model = graph(*after)
    expected = session(graph(*after)).run(None, {"hidden": HIDDEN})[0]
    assert LogitsToKeep()(model).modified
    rewritten = session(model)
    assert [value.name for value in rewritten.get_inputs()] == ["hidden"]
    np.testing.assert_array_equal(rewritten.run(None, {"hidden": HIDDEN})[0], expected)
    for count in (1, 4, 6):
        feeds = {"hidden": HIDDEN, "logits_to_keep": np.array([count])}
        kept = rewritten.run(None, feeds)[0]
        np.testing.assert_allclose(kept, expected[:, -count:], rtol=1e-6)


def test_a_second_run_changes_nothing() -> None:
    model = graph()
    assert LogitsToKeep()(model).modified
    assert not LogitsToKeep()(model).modified


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (graph(weight_is_input=True), "logits come from no MatMul with a constant"),
        (graph(rank=2), "expected rank 3"),
        (graph(kind=onnx.TensorProto.FLOAT16), "works on FLOAT16, expected FLOAT"),
    ],
)
def test_other_heads_stay_and_the_reason_is_noted(model, reason) -> None:
    rule = LogitsToKeep()
    assert not rule(model).modified
    assert reason in rule.notes[0].reason
