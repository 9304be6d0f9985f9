"""The door for programs: embeddings of encoders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tamiz
from kit.encoders import WIDTH, write_encoder, write_transformer
from tamiz import TamizError
from tamiz.files.bundle import Source, write_manifest
from tamiz.inference.embedding_model import EmbeddingModel

TEXTS = ["w3 w4 w5 w6", "w7", "w3 w4 w5 w6 w8", "w20 w21 w22 w23 w24 w25 w26", "w9 w10"]


def with_files(folder: Path, **files: Any) -> Path:
    """An encoder with JSON files; ``__`` in a name stands for a folder."""
    write_encoder(folder)
    for name, content in files.items():
        path = folder / f"{name.replace('__', '/')}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(content))
    write_manifest(folder, "dense", Source("made"))
    return folder


def hidden(folder: Path, ids: list[int]) -> np.ndarray:
    (constant,) = onnx.load(folder / "model.onnx").graph.initializer
    rows: np.ndarray = onnx.numpy_helper.to_array(constant)[ids]
    return rows


def test_texts_of_different_lengths_have_the_embeddings_that_they_have_alone(
    tmp_path: Path,
) -> None:
    for mode in ("cls", "mean", "max", "lasttoken", "mean_sqrt_len_tokens", "weightedmean"):
        folder = write_transformer(tmp_path / mode, pooling=mode)
        with EmbeddingModel.load(folder, threads=1) as model:
            together = model.embed(TEXTS)
            assert together.shape == (len(TEXTS), model.width)
            assert together.dtype == np.float32
            for text, row in zip(TEXTS, together, strict=True):
                np.testing.assert_allclose(row, model.embed(text), atol=1e-5)
            by_two = model.embed(TEXTS, batch_size=2)
            np.testing.assert_allclose(by_two, together, atol=1e-5)
            unit = model.embed(TEXTS, normalize=True)
            np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-6)
        with pytest.raises(TamizError, match="closed"):
            model.embed(TEXTS)


def test_no_text_gives_no_row(tmp_path: Path) -> None:
    model = EmbeddingModel.load(write_encoder(tmp_path / "e"))
    assert model.embed([]).shape == (0, WIDTH)


def test_prompts_are_put_before_texts(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "w40 w41 ", "none": ""}, "default_prompt_name": "query"}
    folder = with_files(tmp_path / "e", config_sentence_transformers=prompts)
    model = EmbeddingModel.load(folder)
    expected = hidden(folder, [0, 40, 41, 3, 1]).mean(axis=0)
    for found in (
        model.embed("w3"),
        model.embed("w3", prompt_name="query"),
        model.embed("w3", prompt="w40 w41 "),
        model.embed("w40 w41 w3", prompt_name="none"),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(TamizError, match="no prompt 'querry'; did you mean 'query'"):
        model.embed("w3", prompt_name="querry")


def test_tokens_of_a_prompt_may_not_count(tmp_path: Path) -> None:
    """As in sentence-transformers, the token that begins a text is one of the prompt's."""
    folder = with_files(
        tmp_path / "e",
        config_sentence_transformers={"prompts": {"query": "w40 w41 "}},
        **{"1_Pooling__config": {"pooling_mode": "mean", "include_prompt": False}},
    )
    found = EmbeddingModel.load(folder).embed(["w3 w4"], prompt_name="query")
    np.testing.assert_allclose(found[0], hidden(folder, [3, 4, 1]).mean(axis=0), atol=1e-6)


def test_long_texts_are_cut_and_letters_made_small(tmp_path: Path) -> None:
    settings = {"max_seq_length": 4, "do_lower_case": True}
    folder = with_files(tmp_path / "e", sentence_bert_config=settings)
    model = EmbeddingModel.load(folder)
    assert model.context == 4
    assert model.count_tokens("W3 w4 w5 w6") == 6
    expected = hidden(folder, [0, 3, 4, 1]).mean(axis=0)
    np.testing.assert_allclose(model.embed("W3 w4 w5 w6"), expected, atol=1e-6)
    shorter = EmbeddingModel.load(folder, context=3).embed("w3 w4")
    np.testing.assert_allclose(shorter, hidden(folder, [0, 3, 1]).mean(axis=0), atol=1e-6)
    with pytest.raises(TamizError, match="context is 9, expected 3 to 4 tokens"):
        EmbeddingModel.load(folder, context=9)


@pytest.mark.parametrize(
    ("written", "limit"), [(5, 5), (10**30, None), (1000000000000000019884624838656, None)]
)
def test_the_tokenizer_s_longest_text_counts_where_nothing_else_says_one(
    tmp_path: Path, written: int, limit: int | None
) -> None:
    """As sentence-transformers takes `model_max_length`."""
    folder = with_files(tmp_path / "e", tokenizer_config={"model_max_length": written})
    usual = EmbeddingModel.load(write_encoder(tmp_path / "usual")).context
    assert EmbeddingModel.load(folder).context == (limit or usual)


@pytest.mark.parametrize(("name", "content", "reason"), [
    ("sentence_bert_config", {"max_seq_length": "9"}, "max_seq_length is '9', expected int"),
    ("config_sentence_transformers", {"prompts": {"a": 1}}, "the prompt 'a' is no text"),
    ("config_sentence_transformers", {"default_prompt_name": "b"}, "default_prompt_name is 'b'"),
])  # fmt: skip
def test_settings_of_another_type_are_named(
    name: str, content: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TamizError, match=reason):
        EmbeddingModel.load(with_files(tmp_path / "e", **{name: content}))


def test_load_gives_the_model_of_a_bundle(tmp_path: Path, dense_dir: Path) -> None:
    folder = write_encoder(tmp_path / "e")
    assert isinstance(tamiz.load(folder), tamiz.EmbeddingModel)
    with pytest.raises(TamizError, match="an encoder, which guesses no tokens"):
        tamiz.load(folder, speculation="ngram")
    with pytest.raises(TamizError, match="is a decoder, expected an encoder"):
        EmbeddingModel.load(dense_dir)


def test_the_first_numbers_of_an_embedding(tmp_path: Path) -> None:
    """Matryoshka: as in sentence-transformers, only `normalize` makes them a direction again."""
    folder = with_files(tmp_path / "e", config_sentence_transformers={"truncate_dim": 5})
    model = EmbeddingModel.load(folder)
    whole = model.embed("w3 w4", truncate_dim=WIDTH)
    np.testing.assert_array_equal(model.embed("w3 w4"), whole[:5])
    found = model.embed("w3 w4", truncate_dim=3, normalize=True)
    np.testing.assert_allclose(found, whole[:3] / np.linalg.norm(whole[:3]), rtol=1e-6)
    with pytest.raises(TamizError, match=f"truncate_dim is 9, expected 1 to {WIDTH}"):
        model.embed("w3", truncate_dim=9)


def test_progress_and_speed_of_embeddings(tmp_path: Path) -> None:
    model = EmbeddingModel.load(write_encoder(tmp_path / "e"))
    seen: list[tuple[int, int]] = []
    model.embed(TEXTS, batch_size=2, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert model.speed.texts == len(TEXTS)
    assert model.speed.tokens == sum(map(model.count_tokens, TEXTS))
