"""A bundle as standard ONNX: plain onnxruntime runs it, and gives what the bundle gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.command_line import ok, refused
from kit.few_bits import need_few_bits
from tamiz.runtime.model import Model

PROMPT = [5, 9, 33, 7, 100, 12]


def plain_logits(path: Path) -> np.ndarray:
    """Logits of the prompt by onnxruntime alone."""
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {
        "input_ids": np.array([PROMPT]),
        "attention_mask": np.ones((1, len(PROMPT)), np.int64),
        "position_ids": np.arange(len(PROMPT))[None],
    }
    for node in session.get_inputs():
        if node.name.startswith("past"):
            feeds[node.name] = np.zeros((1, node.shape[1], 0, node.shape[3]), np.float32)
    (logits,) = session.run(["logits"], feeds)
    return np.asarray(logits)


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0, Type.Q4_0, Type.Q4_1])
@pytest.mark.parametrize("tied", [True, False])
def test_a_bundle_runs_without_the_library(tmp_path: Path, kind: Type, tied: bool) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.random_model(tied=tied, biases=True), kind)
    dense, out = tmp_path / "dense", tmp_path / "out"
    ok("export", tmp_path / "m.gguf", "-o", dense)
    assert "standard ONNX" in ok("export", dense, "-o", out, "--to=onnx")
    found = onnx.load(out / "model.onnx", load_external_data=False)
    assert {entry.domain for entry in found.opset_import} == {""}
    assert (out / "tokenizer.json").is_file()
    assert not (out / "tamiz.json").exists()
    logits = plain_logits(out / "model.onnx")
    expected = Model.load(dense, threads=1).logits(np.array([PROMPT]))
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["float32", "stored"])
def test_a_built_bundle_runs_without_the_library(tmp_path: Path, dtype: str) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.random_model(biases=True), Type.Q4_0)
    ok("export", tmp_path / "m.gguf", "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "built")
    ok("export", tmp_path / "built", "-o", tmp_path / "out", "--to=onnx", f"--dtype={dtype}")
    found = onnx.load(tmp_path / "out" / "model.onnx", load_external_data=False)
    domains = {entry.domain for entry in found.opset_import}
    assert domains == {"", *(["com.microsoft"] if dtype == "stored" else [])}
    if dtype == "stored":
        need_few_bits()
    logits = plain_logits(tmp_path / "out" / "model.onnx")
    expected = Model.load(tmp_path / "built", threads=1).logits(np.array([PROMPT]))
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.abs(expected).max())


def test_a_quantised_model_comes_back_as_it_was(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.random_model(), Type.Q4_0)
    ok("export", tmp_path / "m.gguf", "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "built")
    ok("export", tmp_path / "built", "-o", tmp_path / "out", "--to=onnx", "--dtype=stored")
    ok("export", tmp_path / "out", "-o", tmp_path / "again")
    ok("build", tmp_path / "again", "-o", tmp_path / "rebuilt")
    ids = np.array([PROMPT])
    first, second = (Model.load(tmp_path / name, threads=1) for name in ("built", "rebuilt"))
    np.testing.assert_array_equal(first.logits(ids), second.logits(ids))


def test_what_is_refused(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.random_model())
    ok("export", tmp_path / "m.gguf", "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "small", "--kv-int8", "--max-dppl=off")
    words = refused("export", tmp_path / "small", "-o", tmp_path / "out", "--to=onnx")
    assert "has no form in standard ONNX" in words
    assert refused("export", tmp_path / "m.gguf", "-o", tmp_path / "out", "--to=onnx")
    assert not (tmp_path / "out").exists()
