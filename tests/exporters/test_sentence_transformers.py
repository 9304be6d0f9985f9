"""Embeddings and scores of small random models, as sentence-transformers computes them in float32.

docs/guides/embeddings.md lists the kinds. They need sentence-transformers, and those that the
installed version of transformers lacks are skipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamiz
from kit.encoders import write_tokenizer
from kit.hf_encoders import HEADLESS, KINDS, network_of
from tamiz.plugins import Plugins
from tamiz.survey.export import export

torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
transformers = pytest.importorskip("transformers", reason="needs transformers")
library = pytest.importorskip(
    "sentence_transformers", reason="needs sentence-transformers: pip install sentence-transformers"
)

TEXTS = ["w7 w8 w9", "w10", "w11 w12 w13 w14 w15 w16 w17 w18 w19 w20 w21 w22 w23", "w24 w25"]
TOLERANCE = 1e-5


def made(kind: str, folder: Path, head: str, **changes: Any) -> Path:
    if not hasattr(transformers, f"{kind}{head}"):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}{head}")
    network_of(kind, folder, head, **changes)
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("kind", [*KINDS, *HEADLESS])
def test_embeddings_are_those_of_the_library(kind: str, tmp_path: Path, plugins: Plugins) -> None:
    folder = made(kind, tmp_path / "hf", "Model")
    model = library.SentenceTransformer(str(folder), device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.encode(TEXTS)
    bundle = export(str(tmp_path / "saved"), tmp_path / "dense", plugins, dtype="float32")
    encoder = tamiz.load(bundle.path)
    assert isinstance(encoder, tamiz.EmbeddingModel)
    np.testing.assert_allclose(encoder.embed(TEXTS), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_library(kind: str, tmp_path: Path, plugins: Plugins) -> None:
    folder = made(kind, tmp_path / "hf", "ForSequenceClassification", num_labels=1)
    model = library.CrossEncoder(str(folder), device="cpu")
    model.save_pretrained(str(tmp_path / "saved"))
    expected = model.predict([(TEXTS[0], text) for text in TEXTS])
    bundle = export(str(tmp_path / "saved"), tmp_path / "dense", plugins, dtype="float32")
    reranker = tamiz.load(bundle.path)
    assert isinstance(reranker, tamiz.CrossEncoder)
    np.testing.assert_allclose(reranker.rerank(TEXTS[0], TEXTS), expected, atol=TOLERANCE, rtol=0)
