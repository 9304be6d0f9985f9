"""A built encoder runs texts of different lengths together without padding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.command_line import ok
from kit.encoders import write_transformer
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.runtime.embedding.text_session import RUN_TOKENS, runs

TEXTS = ["w3 w4 w5 w6", "w7", " ".join(f"w{2 + n % 48}" for n in range(70)), "w9 w10", ""]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_transformer(folder / "dense", pooling="mean")
    ok("build", folder / "dense", "-o", folder / "built", "--block-quant-format=q8_0")
    return folder / "built"


@pytest.mark.parametrize("threads", [1, 2])
def test_an_embedding_has_the_same_bits_in_any_company(built: Path, threads: int) -> None:
    model = EmbeddingModel.load(built, threads=threads)
    alone = np.stack([model.embed(text) for text in TEXTS])
    for size in (2, 3, 32):
        np.testing.assert_array_equal(model.embed(TEXTS, batch_size=size), alone)
    np.testing.assert_array_equal(model.embed(TEXTS[::-1])[::-1], alone)
    np.testing.assert_array_equal(model.embed([*TEXTS, *TEXTS])[: len(TEXTS)], alone)


def test_many_texts_take_several_runs(built: Path) -> None:
    """Enough of them for three, whose embeddings have the bits of a text alone."""
    model = EmbeddingModel.load(built, threads=2)
    alone = np.stack([model.embed(text) for text in TEXTS])
    repeats = 2 * RUN_TOKENS // sum(model.count_tokens(text) for text in TEXTS) + 1
    found = model.embed(TEXTS * repeats, batch_size=len(TEXTS) * repeats)
    np.testing.assert_array_equal(found, np.tile(alone, (repeats, 1)))


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([], []),
        ([RUN_TOKENS + 5], [(0, 1)]),
        ([RUN_TOKENS - 3, 3, 1], [(0, 2), (2, 3)]),
        ([3, RUN_TOKENS + 1, 4], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_texts_of_a_run(lengths, expected) -> None:
    assert [(texts.start, texts.stop) for texts in runs(lengths)] == expected
