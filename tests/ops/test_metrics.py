import ctypes
import json

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import tamiz_ops
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

SERIALIZED = model(
    [node("SwiGLU", ["x", "x"], ["h"], "first"), node("SwiGLU", ["h", "h"], ["y"], "second")],
    ["x"],
    ["y"],
)
X = np.ones((2, 3, 8), np.float32)


def test_calls_and_tokens_of_every_node() -> None:
    made = session(SERIALIZED)
    for _ in range(3):
        made.run(None, {"x": X})
    expected = {"calls": 3.0, "tokens": 18.0}
    assert tamiz_ops.metrics(made) == {"first": expected, "second": expected}


def test_tokens_are_those_that_the_first_stage_takes() -> None:
    """Not those of the first output: of a decoder that is the cache, or logits of few positions."""
    program = "SwiGLU : 0 0 -> 2\nLastPositions : 2 1 -> 3"
    names = ["x", "keep"]
    fused = node("Fused", names, ["y"], "decoder", program=program, outputs=[3])
    made = session(model([fused], ["x"], ["y"], {"keep": np.array([1])}))
    made.run(None, {"x": X})
    assert tamiz_ops.metrics(made)["decoder"] == {"calls": 1.0, "tokens": 6.0}


def test_reset() -> None:
    made = session(SERIALIZED)
    made.run(None, {"x": X})
    tamiz_ops.reset_metrics(made)
    assert tamiz_ops.metrics(made)["first"] == {"calls": 0.0, "tokens": 0.0}


def test_sessions_do_not_share_metrics() -> None:
    first, second = session(SERIALIZED), session(SERIALIZED)
    first.run(None, {"x": X})
    assert tamiz_ops.metrics(first)["first"]["calls"] == 1
    assert tamiz_ops.metrics(second)["first"]["calls"] == 0


def test_sessions_of_one_options_object_add_up() -> None:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    sessions = [ort.InferenceSession(SERIALIZED, options) for _ in range(2)]
    for made in sessions:
        made.run(None, {"x": X})
    assert tamiz_ops.metrics(sessions[0])["first"]["calls"] == 2


def test_a_session_without_the_library_has_no_metrics() -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    relu = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "plain", [x], [y])
    made = ort.InferenceSession(helper.make_model(relu, ir_version=10).SerializeToString())
    with pytest.raises(ValueError, match=r"call tamiz_ops\.register on its options"):
        tamiz_ops.metrics(made)


def test_options_that_only_register_the_library_count_too() -> None:
    options = ort.SessionOptions()
    options.register_custom_ops_library(tamiz_ops.library_path())
    made = ort.InferenceSession(SERIALIZED, options)
    made.run(None, {"x": X})
    assert tamiz_ops.metrics(made)["first"] == {"calls": 1.0, "tokens": 6.0}


def test_the_c_function_gives_what_python_reads() -> None:
    program = "layers.0:\nKwtaMask threshold=0.5 : 0 -> 1 - -\nSwiGLU : 0 0 -> 2"
    fused = node("Fused", ["x"], ["y"], 'a "name"\\', program=program, outputs=[2])
    made = session(model([fused], ["x"], ["y"]))
    made.run(None, {"x": X})
    tag = made.get_session_options().get_session_config_entry("tamiz.session").encode()
    read = ctypes.CDLL(tamiz_ops.library_path()).TamizMetrics
    read.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    read.restype = ctypes.c_size_t
    size = read(tag, None, 0)
    small, text = ctypes.create_string_buffer(b"", 4), ctypes.create_string_buffer(size)
    assert read(tag, small, 4) == read(tag, text, size) == size
    assert small.value == b""
    assert json.loads(text.value) == tamiz_ops.op_counts(made)
    assert json.loads(text.value)["layers.0"]["KwtaMask"]["kwta.blocks"] == X.size


def test_summaries_are_what_numpy_counts() -> None:
    """Shares and means of one step, from the reference's own masks."""
    x = np.random.default_rng(0).standard_normal((1, 1, 64)).astype(np.float32)
    [kept, *_] = reference.run("KwtaMask", [x], threshold=0.9)
    [nonzero] = reference.run("ZeroMask", [x], epsilon=0.5)
    past = np.array([[1, 0, 0]], np.float32)  # a state, not switched off
    event = {"k": 64, "n": 8, "theta": 1.1}
    [_, chosen, *_] = reference.run("EventSelect", [x, past], **event)
    nodes = [
        node("KwtaMask", ["x"], ["kwta"], "kwta", threshold=0.9),
        node("ZeroMask", ["x"], ["zero"], "zero", epsilon=0.5),
        node("EventSelect", ["x", "past"], ["d", "event", "plan", "r"], "event", **event),
    ]
    made = session(
        model(nodes, ["x", "past"], [value(v, np.uint8) for v in ("kwta", "zero", "event")])
    )
    for _ in range(2):
        made.run(None, {"x": x, "past": past})
    found = tamiz_ops.summary(made)
    assert found["KwtaMask"] == {"kwta.duty_hits": 2, "kwta.keep_ratio": kept.mean()}
    assert found["ZeroMask"] == {
        "pack.active": 2,
        "pack.density": nonzero.mean(),
        "pack.enabled": 2,
    }
    events = found["EventSelect"]
    assert 0 < chosen.sum() < 64
    assert events["event.enabled"] == 2
    assert events["event.topk_kept"] == chosen.sum()
    assert events["event.stale_pct"] == pytest.approx(100 * (1 - chosen.mean()))


def test_stages_of_one_node_add_to_one_counter() -> None:
    weight = np.zeros((2, 320), np.uint8)  # 32 outputs, 32 inputs, 4 bits
    program = "BlockMatMul bits=4 n=32 k=32 : 0 1 -> 2\nBlockMatMul bits=4 n=32 k=32 : 2 1 -> 3"
    fused = node("Fused", ["x", "w"], ["y"], "layer0", program=program, outputs=[3])
    made = session(model([fused], ["x"], ["y"], {"w": weight}))
    made.run(None, {"x": np.zeros((5, 32), np.float32)})
    found = tamiz_ops.metrics(made)["layer0"]
    assert found["calls"] == 1
    assert found["tokens"] == 5
    assert found["matmul.bytes_dense"] == found["matmul.bytes_read"] == 2 * weight.nbytes


def test_parts_of_one_node_count_for_themselves() -> None:
    weight = np.zeros((2, 320), np.uint8)  # 32 outputs, 32 inputs, 4 bits
    product = "BlockMatMul bits=4 n=32 k=32 :"
    first = f"layers.0:\n{product} 0 1 -> 2\n{product} 2 1 -> 3"
    program = f"{first}\nlayers.1:\n{product} 3 1 -> 4"
    fused = node("Fused", ["x", "w"], ["y"], "fused", program=program, outputs=[4])
    made = session(model([fused], ["x"], ["y"], {"w": weight}))
    made.run(None, {"x": np.zeros((5, 32), np.float32)})
    found = tamiz_ops.metrics(made)
    assert found["fused"] == {"calls": 1, "tokens": 5}
    assert set(found) == {"fused", "layers.0", "layers.1"}
    assert found["layers.0"]["matmul.bytes_read"] == 2 * weight.nbytes
    assert found["layers.1"]["matmul.bytes_read"] == weight.nbytes
    tamiz_ops.reset_metrics(made)
    assert tamiz_ops.metrics(made)["layers.1"]["matmul.bytes_read"] == 0
