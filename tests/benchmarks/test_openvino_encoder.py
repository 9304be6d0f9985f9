"""OpenVINO as a peer of encoders gives the embeddings of ONNX Runtime in float32."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines.openvino_encoder import OpenVinoEncoder, models
from benchmarks.quality.encoders import encoder
from kit.encoders import write_encoder

pytestmark = pytest.mark.slow


def test_embeddings_are_those_of_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    reference = write_encoder(tmp_path / "dense")
    texts = np.random.default_rng(2).integers(50, size=(6, 9))
    found = models(reference, tmp_path, texts)
    ours = encoder(reference, 1)
    expected = ours.embeddings(texts)
    given = {name: OpenVinoEncoder(folder, ours, 1) for name, folder in found.items()}
    for name, peer in given.items():
        # bfloat16, the default on processors that have it, has 8 bits of mantissa.
        assert ((peer.embeddings(texts) * expected).sum(axis=1) > 0.9999).all(), name


def test_texts_of_different_lengths_are_padded(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("nncf")
    reference = write_encoder(tmp_path / "dense")
    texts = np.random.default_rng(2).integers(50, size=(4, 9))
    rows = [row[:length].tolist() for row, length in zip(texts, (9, 2, 5, 7), strict=True)]
    ours = encoder(reference, 1)
    expected = np.concatenate([ours.embeddings([row]) for row in rows])
    for name, folder in models(reference, tmp_path, texts).items():
        found = OpenVinoEncoder(folder, ours, 1).encode(rows)
        assert ((found * expected).sum(axis=1) > 0.9999).all(), name
