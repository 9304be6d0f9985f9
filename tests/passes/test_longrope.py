"""Attention whose rotary frequencies depend on how far a run reaches (longrope)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import tamiz_ops
from kit import tiny_gguf, tiny_safetensors
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import survey

ORIGINAL = 16


def logits(folder: Path, length: int) -> np.ndarray:
    """Logits of the last token after a prefill of all but one, whose caches it takes."""
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(folder / "model.onnx", options)
    ids = np.random.default_rng(1).integers(0, 250, (1, length))
    caches = [value for value in session.get_inputs() if value.name.startswith("past_")]
    past = [np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32) for value in caches]
    found: np.ndarray = np.empty(0)
    for begin, end in ((0, length - 1), (length - 1, length)):
        feeds = {"input_ids": ids[:, begin:end], "attention_mask": np.ones_like(ids[:, :end])}
        feeds["position_ids"] = np.arange(begin, end)[None]
        feeds |= {value.name: each for value, each in zip(caches, past, strict=True)}
        found, *past = session.run(None, feeds)
    return found[0, -1]


def test_attention_takes_the_frequencies_that_a_run_chooses(
    tmp_path: Path, plugins: Plugins
) -> None:
    factors = np.linspace(1, 3, 8, dtype=np.float32)
    model = tiny_gguf.random_model(architecture="phi3", long_factors=factors)
    source = tiny_safetensors.write(
        tmp_path / "hf", model, original_max_position_embeddings=ORIGINAL
    )
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    lengths = (ORIGINAL - 3, ORIGINAL, ORIGINAL + 1, 40)
    expected = [logits(bundle.path, length) for length in lengths]
    found = survey(bundle, plugins)
    assert found.recognised["Attention"] == model.layers, found.notes
    ir.save(found.model, tmp_path / "model.onnx", external_data="recognised.data")
    for length, wanted in zip(lengths, expected, strict=True):
        error = np.abs(logits(tmp_path, length) - wanted).max() / np.abs(wanted).max()
        assert error < 2e-6, length
