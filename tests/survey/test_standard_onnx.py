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
from tamiz.runtime.model import Model

PROMPT = [5, 9, 33, 7, 100, 12]


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
    session = ort.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, np.ndarray] = {
        "input_ids": np.array([PROMPT]),
        "attention_mask": np.ones((1, len(PROMPT)), np.int64),
        "position_ids": np.arange(len(PROMPT))[None],
    }
    for node in session.get_inputs():
        if node.name.startswith("past"):
            feeds[node.name] = np.zeros((1, node.shape[1], 0, node.shape[3]), np.float32)
    (logits,) = session.run(["logits"], feeds)
    expected = Model.load(dense, threads=1).logits(np.array([PROMPT]))
    np.testing.assert_allclose(logits, expected, atol=2e-3 * np.abs(expected).max())


def test_what_is_refused(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "m.gguf", tiny_gguf.random_model())
    ok("export", tmp_path / "m.gguf", "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "small")
    words = refused("export", tmp_path / "small", "-o", tmp_path / "out", "--to=onnx")
    assert "is a built bundle" in words
    assert refused("export", tmp_path / "m.gguf", "-o", tmp_path / "out", "--to=onnx")
    assert not (tmp_path / "out").exists()
