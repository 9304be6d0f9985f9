"""Exported decoders are recognised whole, and compute the same with tamiz' ops."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import test_gguf
import tiny_gguf

import tamiz_ops
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle, Source
from tamiz.plugins import load_plugins
from tamiz.survey.survey import survey

RELATIVE_ERROR = 2e-5


@pytest.mark.parametrize("name", test_gguf.MODELS)
def test_every_layer_is_recognised(tmp_path, name):
    held, folder = test_gguf.export(tmp_path, tiny_gguf.random_model(**test_gguf.MODELS[name]))
    bundles.write_manifest(folder, "dense", Source("tiny.gguf"))
    found = survey(Bundle.open(folder), load_plugins())
    assert found.recognised["Attention"] == held.layers, found.notes
    assert found.recognised["SwiGLU"] == held.layers, found.notes
    nodes = [node for node in found.model.graph if node.op_type == "Attention"]
    windows = [node.attributes.get("window") for node in nodes]
    windows = [0 if window is None else window.as_int() for window in windows]
    assert windows == [held.window_of(layer) for layer in range(held.layers)]
    ids = test_gguf.random_ids(2, 33)
    mask = np.ones_like(ids)
    positions = np.broadcast_to(np.arange(33), ids.shape)
    expected = tiny_gguf.logits(held, ids, mask, positions)
    ir.save(found.model, folder / "recognised.onnx", external_data="recognised.data")
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(folder / "recognised.onnx", options)
    feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    for value in session.get_inputs():
        if value.name.startswith("past_"):
            feeds[value.name] = np.zeros((2, value.shape[1], 0, value.shape[3]), np.float32)
    (logits,) = session.run(["logits"], feeds)
    assert test_gguf.relative_error(logits, expected) < RELATIVE_ERROR
