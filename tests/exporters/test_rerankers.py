"""Decoders that score texts, exported without torch: Qwen3-Reranker and what was made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import tamiz
from kit import tiny_gguf, tiny_safetensors
from kit.command_line import ok, refused
from kit.encoders import write_tokenizer
from tamiz import TamizError
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export

MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "rotary_dim": 32},
    "gemma3": {"architecture": "gemma3", "layers": 7, "window": 8, "rope_base": 1e6},
}
YES, NO = 40, 12
TEMPLATE = (
    "{%- for message in messages -%}{%- if message.role == 'system' %}w3 {% endif -%}"
    "{{ message.content }} w4 {% endfor -%}{%- if add_generation_prompt %}w5 w6{% endif -%}"
)
QUERY = "w7 w8 w9"
TEXTS = ["w10", "w11 w12 w13 w14 w15 w16 w17 w18 w19 w20", "w21 w22"]


def write_reranker(folder: Path, model: tiny_gguf.TinyModel, **config: Any) -> Path:
    """A folder of sentence-transformers whose score is the logit of YES less that of NO."""
    tiny_safetensors.write(folder, model, **config)
    write_tokenizer(folder)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    own = "sentence_transformers.base.modules.transformer.Transformer"
    score = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    modules = [{"path": "", "type": own}, {"path": "1_LogitScore", "type": score}]
    (folder / "modules.json").write_text(json.dumps(modules))
    texts = {
        "modality_config": {"text": {}, "message": {"format": "flat"}},
        "processing_kwargs": {"chat_template": {"add_generation_prompt": True}},
    }
    (folder / "sentence_bert_config.json").write_text(json.dumps(texts))
    given = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    named = {"prompts": {"rule": "w30"}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(given | named))
    tokens = {"true_token_id": YES, "false_token_id": NO}
    (folder / "1_LogitScore").mkdir()
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    return folder


def pair_ids(text: str, prompt: str = "") -> list[int]:
    before = f"w3 {prompt} w4" if prompt else ""
    return [int(word[1:]) for word in f"{before} {QUERY} w4 {text} w4 w5 w6".split()]


@pytest.mark.parametrize("name", MODELS)
def test_a_score_is_a_difference_of_logits(name: str, tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**MODELS[name])
    tiny_safetensors.write(tmp_path / "decoder", model)
    decoder = export(str(tmp_path / "decoder"), tmp_path / "d", plugins, "float32")
    folder = write_reranker(tmp_path / "hf", model)
    export(str(folder), tmp_path / "dense", plugins, "float32")
    reranker = CrossEncoder.load(tmp_path / "dense")
    for prompt in ("", "w30"):
        rows = [pair_ids(text, prompt) for text in TEXTS]
        logits = [Model.load(decoder.path, threads=1).logits(np.array([r]))[0, -1] for r in rows]
        expected = [row[YES] - row[NO] for row in logits]
        scores = reranker.rerank(QUERY, TEXTS, prompt=prompt)
        np.testing.assert_allclose(scores, expected, atol=1e-4 * np.abs(logits).max())
    np.testing.assert_array_equal(reranker.rerank(QUERY, TEXTS, prompt_name="rule"), scores)


@pytest.mark.parametrize("name", MODELS)
def test_a_built_one_gives_a_pair_the_same_bits_in_any_company(name: str, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "hf", tiny_gguf.random_model(**MODELS[name]))
    ok("build", folder, "-o", tmp_path / "built")
    ok("export", folder, "-o", tmp_path / "dense")
    built = CrossEncoder.load(tmp_path / "built")
    dense = CrossEncoder.load(tmp_path / "dense").rerank(QUERY, TEXTS)
    together = built.rerank(QUERY, TEXTS)
    assert np.corrcoef(together, dense)[0, 1] > 0.99
    np.testing.assert_array_equal(together[::-1], built.rerank(QUERY, TEXTS[::-1]))
    for text, score in zip(TEXTS, together, strict=True):
        np.testing.assert_array_equal(built.rerank(QUERY, [text]), [score])


def test_a_long_document_is_cut_before_the_end_of_the_template(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "hf", tiny_gguf.random_model(**MODELS["qwen3"]))
    ok("export", folder, "-o", tmp_path / "dense")
    reranker = CrossEncoder.load(tmp_path / "dense", context=10)
    whole = pair_ids(TEXTS[1])
    assert reranker.encode((QUERY, TEXTS[1]))[0] == [*whole[:7], *whole[-3:]]
    assert reranker.count_tokens((QUERY, TEXTS[1])) == len(whole)


def test_a_head_of_labels_reads_the_last_token(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**MODELS["qwen3"])
    folder = tiny_safetensors.write(
        tmp_path / "hf", model, architectures=["Qwen3ForSequenceClassification"]
    )
    write_tokenizer(folder)
    tensors = load_file(folder / "model.safetensors")
    tensors.pop("lm_head.weight", None)
    head = np.random.default_rng(0).standard_normal((3, model.hidden), np.float32)
    save_file(tensors | {"score.weight": head}, folder / "model.safetensors")
    bundle = export(str(folder), tmp_path / "dense", plugins, "float32")
    (folder / "modules.json").write_text("[]")
    states = export(str(folder), tmp_path / "embedder", plugins, "float32")
    classifier, embedder = tamiz.load(bundle.path), tamiz.load(states.path)
    assert isinstance(classifier, tamiz.CrossEncoder)
    assert isinstance(embedder, tamiz.EmbeddingModel)
    (folder / "modules.json").unlink()
    found = classifier.logits(TEXTS)
    assert found.shape == (3, 3)
    ok("build", folder, "-o", tmp_path / "built")
    built = tamiz.load(tmp_path / "built")
    assert isinstance(built, tamiz.CrossEncoder)
    assert np.corrcoef(built.logits(TEXTS).ravel(), found.ravel())[0, 1] > 0.99


@pytest.mark.parametrize(("tokens", "reason"), [
    ({}, "true_token_id is None, expected a token id"),
    ({"true_token_id": 1, "false_token_id": "no"}, "false_token_id is 'no', expected a token id"),
    ({"true_token_id": 1 << 20}, "more than the token 1048576 of scores"),
])  # fmt: skip
def test_what_is_refused(tokens: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "hf", tiny_gguf.random_model(**MODELS["qwen3"]))
    (folder / "1_LogitScore" / "config.json").write_text(json.dumps(tokens))
    assert reason in refused("export", folder, "-o", tmp_path / "dense")


def test_a_template_without_documents_is_refused(tmp_path: Path) -> None:
    folder = write_reranker(tmp_path / "hf", tiny_gguf.random_model(**MODELS["qwen3"]))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": "w3 w4"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    ok("export", folder, "-o", tmp_path / "dense")
    with pytest.raises(TamizError, match="leaves out messages of the role document"):
        CrossEncoder.load(tmp_path / "dense")
