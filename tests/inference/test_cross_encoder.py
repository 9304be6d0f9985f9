"""The door for programs: scores of passages, probabilities of labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tokenizers

import tamiz
from kit.encoders import write_classifier, write_encoder
from tamiz import TamizError
from tamiz.files.bundle import Source, write_manifest
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.runtime.text.pairs import cut_pair

IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}
QUERY = "w3 w4"
TEXTS = ["w5", "w6 w7 w8 w9", "w10 w11", ""]


def table(folder: Path) -> np.ndarray:
    """The row of each token."""
    found: np.ndarray = onnx.numpy_helper.to_array(
        onnx.load(folder / "model.onnx").graph.initializer[0]
    )
    return found


def logit(folder: Path, query: str, text: str) -> np.ndarray:
    """What the graph gives for [CLS] query [SEP] text [SEP], whose second part has kind 1."""
    words = [[int(word[1:]) for word in part.split()] for part in (query, text)]
    ids = [0, *words[0], 1, *words[1], 1]
    found: np.ndarray = table(folder)[ids].sum(axis=0) + len(words[1]) + 1
    return found


def test_scores_are_a_sigmoid_of_each_pair(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "c")
    model = tamiz.load(folder)
    assert isinstance(model, tamiz.CrossEncoder)
    scores = model.rerank(QUERY, TEXTS, batch_size=3)
    assert scores.shape == (4,)
    assert scores.dtype == np.float32
    for text, score in zip(TEXTS, scores, strict=True):
        (expected,) = logit(folder, QUERY, text)
        assert score == pytest.approx(1 / (1 + np.exp(-expected)), rel=1e-5)
    assert model.rerank(QUERY, []).shape == (0,)
    assert model.speed.texts == 0


@pytest.mark.parametrize("config", [
    {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}},
    {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
])  # fmt: skip
def test_the_activation_of_the_configuration(config: dict[str, Any], tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "c", **config)
    scores = CrossEncoder.load(folder).rerank(QUERY, TEXTS)
    expected = [logit(folder, QUERY, text)[0] for text in TEXTS]
    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_the_activation_that_newer_versions_write(tmp_path: Path) -> None:
    """sentence-transformers 5.4 and later write it beside config.json, whose own does not count."""
    old = {"activation_fn": "torch.nn.modules.activation.Tanh"}
    folder = write_classifier(tmp_path / "c", sentence_transformers=old)
    given = {"activation_fn": "torch.nn.modules.linear.Identity", "prompts": {"rule": "w20 w21 "}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(given))
    write_manifest(folder, "dense", Source("made"))
    model = CrossEncoder.load(folder)
    expected = [logit(folder, QUERY, text)[0] for text in TEXTS]
    np.testing.assert_allclose(model.rerank(QUERY, TEXTS), expected, rtol=1e-5)
    expected = [logit(folder, f"w20 w21 {QUERY}", text)[0] for text in TEXTS]
    found = model.rerank(QUERY, TEXTS, prompt_name="rule")
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_array_equal(model.rerank(QUERY, TEXTS, prompt="w20 w21 "), found)
    with pytest.raises(TypeError, match="exclude each other"):
        model.rerank(QUERY, TEXTS, prompt="w20", prompt_name="rule")


def test_the_general_tokenizer_of_transformers_5_gives_no_types(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "c", sentence_transformers=IDENTITY)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text()) | {"tokenizer_class": "TokenizersBackend"}
    expected = CrossEncoder.load(folder).rerank(QUERY, TEXTS)
    kinds = np.array([len(text.split()) + 1 for text in TEXTS])
    for names, typed in ((None, 0), (["input_ids", "token_type_ids"], 1)):
        path.write_text(json.dumps(settings | {"model_input_names": names}))
        write_manifest(folder, "dense", Source("made"))
        found = CrossEncoder.load(folder).rerank(QUERY, TEXTS)
        np.testing.assert_allclose(found, expected - (1 - typed) * kinds, rtol=1e-5)


def test_an_unknown_activation_is_named(tmp_path: Path) -> None:
    own = {"activation_fn": "novelty.Act"}
    with pytest.raises(TamizError, match=r"activation_fn is 'novelty.Act', expected one of torch"):
        CrossEncoder.load(write_classifier(tmp_path / "c", sentence_transformers=own))


def test_labels_have_probabilities(tmp_path: Path) -> None:
    names = {"0": "no", "1": "maybe", "2": "yes"}
    model = CrossEncoder.load(write_classifier(tmp_path / "softmax", 3, id2label=names))
    assert model.labels == ["no", "maybe", "yes"]
    found = model.classify(["w3 w4", ("w3", "w4")])
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(model.classify("w3 w4"), found[0], rtol=1e-6)
    powers = np.exp(model.logits(["w3 w4"]))
    np.testing.assert_allclose(found[:1], powers / powers.sum(), rtol=1e-5)
    with pytest.raises(TamizError, match=r"3 labels \(no, maybe, yes\), expected one score"):
        model.rerank("w3", ["w4"])
    folder = write_classifier(tmp_path / "many", 3, problem_type="multi_label_classification")
    many = CrossEncoder.load(folder)
    expected = 1 / (1 + np.exp(-many.logits(["w3 w4"])))
    np.testing.assert_allclose(many.classify(["w3 w4"]), expected, rtol=1e-5)
    number = CrossEncoder.load(write_classifier(tmp_path / "r", 1, problem_type="regression"))
    np.testing.assert_array_equal(number.classify(["w3"]), number.logits(["w3"]))


def test_long_pairs_are_cut_as_the_library_cuts_them(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "c")
    library = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for context in (7, 10, 11):
        library.enable_truncation(context)
        model = CrossEncoder.load(folder, context=context)
        for a, b in ((3, 3), (2, 20), (20, 2), (9, 8), (5, 5), (0, 30)):
            words = [" ".join(f"w{2 + n}" for n in range(count)) for count in (a, b)]
            expected = library.encode(words[0], words[1])
            assert model.encode((words[0], words[1])) == (expected.ids, expected.type_ids)
    with pytest.raises(TamizError, match="context is 4, expected 5 to 512 tokens"):
        CrossEncoder.load(folder, context=4)


def test_nothing_is_cut_that_fits() -> None:
    a, b = [1, 2], [3]
    cut_pair(a, b, 3)
    assert (a, b) == ([1, 2], [3])


def test_progress_and_speed(tmp_path: Path) -> None:
    model = CrossEncoder.load(write_classifier(tmp_path / "c"))
    seen: list[tuple[int, int]] = []
    model.rerank(QUERY, TEXTS, batch_size=3, progress=lambda done, of: seen.append((done, of)))
    assert seen == [(3, 4), (4, 4)]
    assert (model.speed.texts, model.speed.tokens) == (4, 4 * 5 + 7)
    assert model.speed.texts_s is not None


def test_a_classifier_is_no_encoder(tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="has no head that classifies"):
        CrossEncoder.load(write_encoder(tmp_path / "e"))
    model = CrossEncoder.load(write_classifier(tmp_path / "c"))
    model.close()
    with pytest.raises(TamizError, match="closed"):
        model.rerank("w3", ["w4"])
    with pytest.raises(TamizError, match="guesses no tokens"):
        tamiz.load(tmp_path / "c", speculation="ngram")


def test_labels_without_a_name(tmp_path: Path) -> None:
    folder = write_classifier(tmp_path / "c", 2)
    assert CrossEncoder.load(folder).labels == ["LABEL_0", "LABEL_1"]
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] == 2
