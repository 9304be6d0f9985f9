"""A bundle of an encoder in sentence-transformers, by the lines of the guide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.command_line import ok
from kit.encoders import write_tokenizer
from kit.hf_encoders import network_of
from tamiz.inference.embedding_model import EmbeddingModel

pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
pytest.importorskip("optimum.onnxruntime", reason="needs optimum: pip install 'tamiz[export]'")

TEXTS = ["w3 w4 w5 w6", "w7", "w8 w9 w10"]


def options() -> ort.SessionOptions:
    """Session options with the ops of tamiz."""
    made = ort.SessionOptions()
    tamiz_ops.register(made)
    return made


def built(folder: Path, head: str) -> Path:
    """A built bundle of a small BERT."""
    network_of("Bert", folder / "hf", head)
    write_tokenizer(folder / "hf")
    ok("export", folder / "hf", "-o", folder / "dense")
    ok("build", folder / "dense", "-o", folder / "built")
    return folder / "built"


def test_sentence_transformers_embeds(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs sentence-transformers")
    bundle = built(tmp_path, "Model")
    given: dict[str, Any] = {"file_name": "model.onnx", "session_options": options()}
    model = library.SentenceTransformer(str(bundle), backend="onnx", model_kwargs=given)
    expected = EmbeddingModel.load(bundle).embed(TEXTS)
    np.testing.assert_allclose(model.encode(TEXTS), expected, atol=2e-3)
