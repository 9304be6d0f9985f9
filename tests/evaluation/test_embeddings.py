"""How close embeddings are, and which texts are read."""

from pathlib import Path

import numpy as np
import pytest

from kit.encoders import write_encoder, write_text
from tamiz.evaluation.embeddings import closeness, compare, nearest, read_texts
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.load import load_model


def loaded(folder: Path) -> Encoder:
    model = load_model(folder, threads=1)
    assert isinstance(model, Encoder)
    return model


def test_a_text_is_not_its_own_neighbour() -> None:
    angles = np.array([0.0, 0.1, 1.0, 1.2])
    found = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert nearest(found).tolist() == [1, 0, 3, 2]
    turned = closeness(found, found[:, ::-1])
    assert turned["same_nearest"] == 1
    cosines = np.sin(2 * angles)
    assert turned["cos_mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert turned["cos_p05"] == pytest.approx(np.quantile(cosines, 0.05), abs=1e-6)
    assert closeness(found, found[[2, 1, 0, 3]])["same_nearest"] == 0
    assert "same_nearest" not in closeness(found[:2], found[:2])


def test_texts_begin_and_end_as_the_tokenizer_says(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    text = write_text(tmp_path / "text.txt", 45)
    found = read_texts(text, Bundle.open(folder), None, length=12, most=3)
    assert found.shape == (3, 12)
    assert (found[:, 0] == 0).all()
    assert (found[:, -1] == 1).all()
    assert (found[:, 1:-1] > 1).all()
    assert read_texts(text, Bundle.open(folder), None, length=12, most=9).shape == (4, 12)
    with pytest.raises(TamizError, match=r"text\.txt: the text has 45 tokens, expected at least"):
        read_texts(text, Bundle.open(folder), 5, length=12, most=9)
    missing = tmp_path / "missing.txt"
    with pytest.raises(TamizError) as told:
        read_texts(missing, Bundle.open(folder), 5, length=12, most=9)
    assert str(told.value).count(missing.name) == 1


@pytest.mark.parametrize("at_once", [1, 3])
def test_embeddings_are_compared_text_by_text(tmp_path: Path, at_once: int) -> None:
    dense, built = (write_encoder(tmp_path / f"{noise}", noise) for noise in (0.0, 0.5))
    texts = np.random.default_rng(1).integers(50, size=(19, 6))
    read: list[int] = []
    found = compare(loaded(built), loaded(dense), texts, at_once, read.append)
    assert read == [8, 16, 19]
    ours, theirs = (loaded(folder).embeddings(texts) for folder in (built, dense))
    cosines = (ours * theirs).sum(axis=1)
    assert found["cos_mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert found["same_nearest"] == (nearest(ours) == nearest(theirs)).mean()
    assert found["windows"] == 19


def test_embeddings_of_other_widths_are_refused(tmp_path: Path) -> None:
    wide, narrow = (loaded(write_encoder(tmp_path / f"{n}", width=n)) for n in (8, 4))
    with pytest.raises(TamizError, match=r"has embeddings of 8 numbers, but .* of 4"):
        compare(wide, narrow, np.zeros((2, 3), np.int64))
