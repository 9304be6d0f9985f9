"""Every mistake gives one sentence that names the node, the field, what was found and expected."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.ops_graphs import model, node, session, value

F = np.float32
ATTENTION_INPUTS = ["q", "k", "v", "past_key", "past_value", "mask", "positions"]


def attention_feeds(**changes) -> dict[str, np.ndarray]:
    feeds: dict[str, Any] = {
        "q": np.zeros((1, 2, 8), F),
        "k": np.zeros((1, 2, 4), F),
        "v": np.zeros((1, 2, 4), F),
        "past_key": np.zeros((1, 1, 3, 4), F),
        "past_value": np.zeros((1, 1, 3, 4), F),
        "mask": np.ones((1, 5), np.int64),
        "positions": np.zeros((1, 2), np.int64),
    }
    return feeds | changes


def attention_session(**attributes) -> Any:
    inputs = [value(name) for name in ATTENTION_INPUTS[:5]]
    inputs += [value(name, np.int64) for name in ATTENTION_INPUTS[5:]]
    made = node("Attention", ATTENTION_INPUTS, ["y", "pk", "pv"], "layer7", **attributes)
    return session(model([made], inputs, ["y", "pk", "pv"]))


def test_attention_accepts_what_the_other_tests_break() -> None:
    y, key, _ = attention_session(num_heads=2, kv_heads=1).run(None, attention_feeds())
    assert y.shape == (1, 2, 8)
    assert key.shape == (1, 1, 5, 4)


def test_missing_attribute() -> None:
    with pytest.raises(Exception, match="attribute 'kv_heads' is missing") as raised:
        attention_session(num_heads=2)
    assert "tamiz.Attention node 'layer7'" in str(raised.value)


def test_attribute_of_another_type() -> None:
    with pytest.raises(Exception, match="attribute 'kv_heads' is of another type, expected an int"):
        attention_session(num_heads=2, kv_heads=1.0)


def test_attribute_out_of_range() -> None:
    with pytest.raises(Exception, match="num_heads is 3 and kv_heads is 2"):
        attention_session(num_heads=3, kv_heads=2)


def test_wrong_dtype_is_refused_when_the_model_loads() -> None:
    graph = model([node("SwiGLU", ["x", "x"], ["y"])], [value("x", np.float16)], ["y"])
    with pytest.raises(Exception, match="float16"):
        session(graph)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"q": np.zeros((2, 8), F)}, r"q has shape \[2, 8\], expected 3 dimensions"),
        ({"q": np.zeros((1, 2, 7), F)}, "q has 7 columns"),
        ({"mask": np.ones((1, 9), np.int64)}, "past_key holds 3 keys"),
        ({"past_value": np.zeros((1, 1, 4, 4), F)}, "past_value has shape"),
    ],
)
def test_wrong_rank_or_size(changes, expected) -> None:
    made = attention_session(num_heads=2, kv_heads=1)
    with pytest.raises(Exception, match=expected) as raised:
        made.run(None, attention_feeds(**changes))
    assert "tamiz.Attention node 'layer7': " in str(raised.value)
    assert str(raised.value).rstrip().endswith(".")
    assert "\n" not in str(raised.value).rstrip()


WEIGHT = np.zeros((2, 320), np.uint8)  # 32 outputs, 32 inputs, 4 bits


def matmul_session(weight=None, **attributes) -> Any:
    attributes = {"bits": 4, "n": 32, "k": 32} | attributes
    made = node("BlockMatMul", ["x", "w"], ["y"], "layer2", **attributes)
    if weight is None:
        return session(model([made], ["x", value("w", np.uint8)], ["y"]))
    return session(model([made], ["x"], ["y"], {"w": weight}))


@pytest.mark.parametrize(
    ("weight", "attributes", "expected"),
    [
        (WEIGHT, {"bits": 5}, "'bits' is 5, expected 4 or 8"),
        (WEIGHT, {"k": 64}, r"weight has shape \[2, 320\]"),
        (WEIGHT, {"n": 33}, r"weight has shape \[2, 320\]"),
        (WEIGHT.reshape(-1), {}, r"weight has shape \[640\]"),
    ],
)
def test_constant_weight_is_checked_when_the_model_loads(weight, attributes, expected) -> None:
    with pytest.raises(Exception, match=expected) as raised:
        matmul_session(weight, **attributes)
    assert "tamiz.BlockMatMul node 'layer2': " in str(raised.value)


def test_weight_that_is_an_input_is_checked_when_it_runs() -> None:
    made = matmul_session()
    made.run(None, {"x": np.zeros((1, 32), F), "w": WEIGHT})
    with pytest.raises(Exception, match=r"weight has shape \[1, 320\]"):
        made.run(None, {"x": np.zeros((1, 32), F), "w": WEIGHT[:1]})


def test_constant_weight_of_a_stage_is_checked_when_the_model_loads() -> None:
    program = "SwiGLU : 0 0 -> 2\nBlockMatMul bits=4 n=48 k=32 : 2 1 -> 3"
    made = node("Fused", ["x", "w"], ["y"], "layer3", program=program, outputs=[3])
    sentence = r"node 'layer3': line 2 \(BlockMatMul\): weight has shape \[2, 320\]"
    with pytest.raises(Exception, match=sentence):
        session(model([made], ["x"], ["y"], {"w": WEIGHT}))


def test_rank_that_no_tensor_may_have() -> None:
    made = session(model([node("SwiGLU", ["x", "x"], ["y"])], ["x"], ["y"]))
    with pytest.raises(Exception, match="rank 9, expected at most 8"):
        made.run(None, {"x": np.zeros((1,) * 9, F)})


def test_a_session_recovers_after_an_error() -> None:
    made = attention_session(num_heads=2, kv_heads=1)
    before = made.run(None, attention_feeds())
    with pytest.raises(Exception, match="q has 7 columns"):
        made.run(None, attention_feeds(q=np.zeros((1, 2, 7), F)))
    for first, second in zip(before, made.run(None, attention_feeds()), strict=True):
        np.testing.assert_array_equal(first, second)


X = np.zeros((2, 4), F)
UNALIGNED = np.zeros(33, np.uint8)[1:].view(F).reshape(2, 4)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [
        ("Nothing", [X], {}, "'Nothing' is not an op of tamiz, expected one of: .*Fused"),
        ("RMSNorm", [X], {}, "input weight is missing"),
        ("RMSNorm", [X, None], {}, "input weight is missing"),
        ("SwiGLU", [X, X, X], {}, "has 3 inputs, expected at most 2"),
        ("SwiGLU", [X, X.astype(np.int64)], {}, "input up is int64, expected float32"),
        ("SwiGLU", [X, X.astype(np.complex64)], {}, "complex64, a type that no op takes"),
        ("SwiGLU", [X, X], {"gamma": 1}, "unknown attribute 'gamma', SwiGLU has: activation"),
        ("RMSNorm", [X, X[0]], {"eps": 1}, "unknown attribute 'eps', RMSNorm has: epsilon"),
        ("RMSNorm", [X, X[0]], {"epsilon": "small"}, "attribute 'epsilon' is of another type"),
        ("RMSNorm", [X, X[0, :3]], {}, "weight has 3 elements, expected a divisor"),
    ],
)
def test_run_on_arrays(op, inputs, attributes, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        tamiz_ops.run(op, inputs, **attributes)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"isa": "sse9"}, "isa is 'sse9', expected one of"),
        ({"threads": 0}, "threads is 0, expected 1 or more"),
        ({"out": [True, True]}, "has 2 outputs, expected at most 1"),
        ({"out": [None]}, "output y is missing"),
        ({"out": [np.zeros((2, 5), F)]}, r"out\[0\] has another type or shape"),
        ({"out": [np.zeros((4, 2), F).T]}, r"out\[0\] is not C-contiguous"),
        ({"out": [UNALIGNED]}, r"out\[0\] is not aligned in memory"),
    ],
)
def test_run_arguments(arguments, expected) -> None:
    with pytest.raises(ValueError, match=expected):
        tamiz_ops.run("SwiGLU", [X, X], **arguments)


def test_an_input_that_is_not_aligned_is_copied() -> None:
    values = np.arange(8, dtype=F).reshape(2, 4)
    UNALIGNED[:] = values
    np.testing.assert_array_equal(
        tamiz_ops.run("SwiGLU", [UNALIGNED, UNALIGNED])[0],
        tamiz_ops.run("SwiGLU", [values, values])[0],
    )
