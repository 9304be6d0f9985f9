"""Encoders in GGUF files, exported without torch.

The values are those that transformers computed of the same weights; see `test_encoder_folders`. The
names of tensors and keys, and how tokens are written, are those of llama.cpp's converter.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnxruntime as ort
import pytest
import tokenizers

import tamiz
from kit.command_line import refused
from kit.encoder_files import CASE, random_tensors
from tamiz.files.bundle import Bundle
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.plugins import Plugins
from tamiz.survey.export import export

MODELS = json.loads(Path(__file__).with_name("reference_encoders.json").read_text())["models"]
#: Parts of the names of tensors: transformers → GGUF.
NAMES = {
    r"^(roberta|bert)\.": "",
    r"embeddings\.word_embeddings": "token_embd",
    r"embeddings\.position_embeddings": "position_embd",
    r"embeddings\.token_type_embeddings": "token_types",
    r"embeddings\.LayerNorm|emb_ln": "token_embd_norm",
    r"encoder\.layers?\.(\d)": r"blk.\1",
    r"attention\.self\.(q|k|v)\w+": r"attn_\1",
    r"attn\.Wqkv": "attn_qkv",
    r"attention\.output\.dense|attn\.out_proj": "attn_output",
    r"attention\.output\.LayerNorm|norm1": "attn_output_norm",
    r"intermediate\.dense|mlp\.fc11": "ffn_up",
    r"mlp\.fc12": "ffn_gate",
    r"output\.dense|mlp\.fc2": "ffn_down",
    r"(blk\.\d\.)output\.LayerNorm|norm2": r"\1layer_output_norm",
    r"classifier\.dense": "cls",
    r"classifier\.out_proj": "cls.output",
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sie", "##ve", "##s", "a", "is", "cafe", "!"]
TEXTS = ["A sieve is a cafe!", "Sieves, sieve", "Café", "[MASK] sie", ""]


def write(
    path: Path, name: str, pooling: int, tokens: list[str] | None = None, **keys: Any
) -> Path:
    """The GGUF file of a model; `keys` are more of its keys, None for one that is left out."""
    model, architecture = MODELS[name], "nomic-bert" if "Nomic" in name else "bert"
    config = model["config"]
    writer = gguf.GGUFWriter(path, architecture)
    skipped = config["pad_token_id"] + 1 if "Roberta" in name else 0
    writer.add_context_length(config["max_position_embeddings"] - skipped)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType(pooling))
    if architecture == "nomic-bert":
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    words = tokens or [*WORDS, *(f"w{n}" for n in range(len(WORDS), config["vocab_size"]))]
    given = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [_in_gguf(word) for word in words],
        "tokenizer.ggml.token_type_count": config["type_vocab_size"],
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.mask_token_id": 4,
        **keys,
    }
    for key, value in given.items():
        if isinstance(value, list):
            writer.add_array(key, value)
        elif value is not None:
            writer.add_key_value(key, value, _kind(value))
    for tensor, values in random_tensors(model["shapes"]).items():
        target = tensor
        for pattern, replacement in NAMES.items():
            target = re.sub(pattern, replacement, target)
        if "pooler" not in target:
            writer.add_tensor(target, values[skipped:] if "position" in target else values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _kind(value: object) -> gguf.GGUFValueType:
    kinds = {bool: gguf.GGUFValueType.BOOL, int: gguf.GGUFValueType.UINT32}
    return kinds.get(type(value), gguf.GGUFValueType.STRING)


def _in_gguf(word: str) -> str:
    """A token as the converter writes it: what begins a word is marked, and nothing else."""
    if word.startswith("["):
        return word
    return word.removeprefix("##") if word.startswith("##") else f"▁{word}"


@pytest.mark.parametrize(
    ("name", "pooling"),
    [("BertModel", 1), ("NomicBertModel", 1), ("RobertaForSequenceClassification", 4)],
)
def test_values_are_those_of_transformers(
    name: str, pooling: int, tmp_path: Path, plugins: Plugins
) -> None:
    bundle = export(str(write(tmp_path / "m.gguf", name, pooling)), tmp_path / "dense", plugins)
    session = ort.InferenceSession(bundle.model, providers=["CPUExecutionProvider"])
    given = dict(zip(("input_ids", "attention_mask", "token_type_ids"), CASE, strict=True))
    found = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]
    found = found[1, 18, :6] if found.ndim == 3 else found.ravel()
    expected = np.array(MODELS[name]["expected"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("lower", [True, False])
def test_words_are_split_as_by_the_tokenizer_of_bert(
    lower: bool, tmp_path: Path, plugins: Plugins
) -> None:
    """The reference is BertWordPieceTokenizer of the library tokenizers."""
    words = WORDS if lower else [*WORDS[:-1], "Café"]
    words = [*words, *(f"w{n}" for n in range(len(words), 50))]
    bundle = export(str(write(tmp_path / "m.gguf", "BertModel", 1, words)), tmp_path / "d", plugins)
    found = tokenizers.Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    vocabulary = {word: number for number, word in enumerate(words)}
    expected = tokenizers.BertWordPieceTokenizer(vocabulary, lowercase=lower)
    for text in TEXTS:
        assert found.encode(text).ids == expected.encode(text).ids, text
    pair = found.encode("a cafe", "is")
    assert pair.type_ids == expected.encode("a cafe", "is").type_ids


def test_embeddings_are_pooled_as_the_file_says_and_of_length_1(
    tmp_path: Path, plugins: Plugins
) -> None:
    found = {}
    for pooling in (1, 2, 3):
        file = write(tmp_path / f"{pooling}.gguf", "BertModel", pooling)
        model = EmbeddingModel.load(export(str(file), tmp_path / str(pooling), plugins).path)
        found[pooling] = model.embed(["a sieve is"])[0]
    states = ort.InferenceSession(Bundle.open(tmp_path / "1").model)
    ids = np.array([[2, 8, 5, 6, 9, 3]])
    given = {"input_ids": ids, "attention_mask": ids**0, "token_type_ids": 0 * ids}
    hidden = states.run(None, given)[0][0]
    for pooling, wanted in {1: hidden.mean(0), 2: hidden[0], 3: hidden[-1]}.items():
        np.testing.assert_allclose(found[pooling], wanted / np.linalg.norm(wanted), atol=1e-6)


def test_a_reranker_is_loaded_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys = {"bert.classifier.output_labels": ["no", "yes"]}
    file = write(tmp_path / "m.gguf", "RobertaForSequenceClassification", 4, **keys)
    model = tamiz.load(file)
    assert isinstance(model, CrossEncoder)
    assert list(model.labels) == ["no", "yes"]
    assert model.classify(["a sieve"]).shape == (1, 2)


#: Pieces with scores, and ids by llama.cpp 0.3.36 (`Llama(…, vocab_only=True).tokenize`).
PIECES = {
    **{"<s>": 0.0, "<pad>": 0.0, "</s>": 0.0, "<unk>": 0.0, "▁": -4.0, "▁si": -3.0, "eve": -3.5},
    **{"s": -5.0, "i": -5.0, "e": -5.0, "v": -5.0, "▁a": -2.0, "a": -6.0, "▁sieve": -8.0},
}
IDS = {"a sieve": [0, 11, 5, 6, 2], "sieves  a": [0, 5, 6, 7, 11, 2], "x a": [0, 4, 3, 11, 2]}


def test_pieces_are_chosen_as_by_llama_cpp(tmp_path: Path, plugins: Plugins) -> None:
    bundle = export(str(_pieces(tmp_path / "m.gguf")), tmp_path / "d", plugins)
    found = tokenizers.Tokenizer.from_file(str(bundle.path / "tokenizer.json"))
    assert {text: found.encode(text).ids for text in IDS} == IDS
    assert found.encode("a", "a").ids == [0, 11, 2, 2, 11, 2]


def _pieces(path: Path) -> Path:
    pieces = [*PIECES, *(f"w{n}" for n in range(len(PIECES), 50))]
    scores = [*PIECES.values(), *([-10.0] * (50 - len(PIECES)))]
    keys: dict[str, Any] = {
        "model": "t5",
        "tokens": pieces,
        "scores": scores,
        "token_type": [3, 3, 3, 2, *([1] * 46)],
        "bos_token_id": 0,
        "eos_token_id": 2,
        "seperator_token_id": 2,
        "unknown_token_id": 3,
        "padding_token_id": 1,
        "mask_token_id": None,
        "add_bos_token": True,
        "add_space_prefix": True,
        "remove_extra_whitespaces": True,
    }
    given = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    return write(path, "BertModel", 1, pieces, **given)


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("BertModel", {"tokenizer.ggml.model": "gpt2"}, "found gpt2, expected bert or t5"),
        ("BertModel", {"bert.expert_count": 8}, "expected 0 or no such key (a mixture of experts)"),
        ("BertModel", {"tokenizer.ggml.token_type_count": 3}, "found 2 rows, expected 3"),
        ("BertModel", {"tokenizer.ggml.unknown_token_id": 50}, "expected a token id below 50"),
    ],
)
def test_what_is_not_read_is_refused(
    name: str, keys: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "m.gguf", name, 1, **keys)
    assert reason in refused("export", file, "-o", tmp_path / "dense")
    assert not (tmp_path / "dense").exists()


def test_a_reranker_without_its_first_product_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", "BertModel", 4)
    assert "tensor cls.weight: found no such tensor" in refused(
        "export", file, "-o", tmp_path / "d"
    )
