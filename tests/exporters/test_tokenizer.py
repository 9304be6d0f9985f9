from __future__ import annotations

import json
import logging
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import GGUFWriter
from tokenizers import models, normalizers, pre_tokenizers, trainers

from kit import tiny_gguf
from kit.tokenizer_files import CORPUS, OPERATOR_DIFFERS, differing, encode, session, texts
from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_tokenizer import GgufTokenizer
from tamiz_exporters.tokenizer import write_tokenizer


def trained_bpe() -> tuple[list[str], list[str]]:
    """Tokens and merges of a byte-level BPE."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(tiny_gguf.SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([CORPUS], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    return tokens, [" ".join(merge) for merge in model["merges"]]


def byte_level_gguf(path: Path, pre: str) -> int:
    tokens, merges = trained_bpe()
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    close(writer)
    return len(tokens)


def sentencepiece_gguf(path: Path, **flags: bool) -> int:
    """A vocabulary as SentencePiece makes it: bytes, pieces with falling scores, characters."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    trainer = trainers.BpeTrainer(vocab_size=500, show_progress=False)
    tokenizer.train_from_iterator(CORPUS.splitlines(), trainer)
    learnt = tokenizer.get_vocab()
    pieces = sorted(learnt, key=lambda piece: (len(piece) == 1, learnt[piece]))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * len(pieces)])
    writer.add_token_scores([0.0] * 259 + [-float(rank) for rank in range(len(pieces))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    for flag, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{flag}", value)
    close(writer)
    return len(tokens)


def close(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def files(folder: Path, path: Path, vocabulary: int) -> tokenizers.Tokenizer:
    """Writes tokenizer.json and tokenizer.onnx; returns the library's tokenizer."""
    tokenizer = GgufTokenizer(GgufFile(path), vocabulary)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer.tokenizer_json()))
    assert write_tokenizer(folder)
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_ids_equal_those_of_tokenizers(tmp_path, pre) -> None:
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", pre)
    reference = files(tmp_path, tmp_path / "t.gguf", vocabulary)
    composed = {text for text in texts() if unicodedata.normalize("NFC", text) != text}
    expected = OPERATOR_DIFFERS | (composed if pre == "qwen2" else set())
    assert differing(session(tmp_path), reference) == expected


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe"])
def test_decoding_gives_the_text_back(tmp_path, pre) -> None:
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", pre)
    reference = files(tmp_path, tmp_path / "t.gguf", vocabulary)
    model = session(tmp_path)
    for text in texts():
        if text in OPERATOR_DIFFERS:
            continue
        ids = encode(model, text)
        assert reference.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize("hole", ["<|im_start|>", "the", "Ą"])
def test_ids_without_a_token_are_filled(tmp_path, hole) -> None:
    """onnxruntime-extensions writes beyond its table where ids have holes."""
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", "smollm")
    content = GgufTokenizer(GgufFile(tmp_path / "t.gguf"), vocabulary).tokenizer_json()
    content["added_tokens"] = [t for t in content["added_tokens"] if t["content"] != hole]
    content["model"]["vocab"].pop(hole, None)
    merges = content["model"]["merges"]
    kept = [m for m in merges if hole not in (*m.split(), m.replace(" ", ""))]
    content["model"]["merges"] = kept
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert write_tokenizer(tmp_path)
    reference = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert differing(session(tmp_path), reference) == OPERATOR_DIFFERS


def test_special_tokens_may_be_among_the_added_ones_only(tmp_path) -> None:
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", "smollm")
    content = GgufTokenizer(GgufFile(tmp_path / "t.gguf"), vocabulary).tokenizer_json()
    for name in tiny_gguf.SPECIAL:
        del content["model"]["vocab"][name]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert write_tokenizer(tmp_path)
    assert encode(session(tmp_path), "<|im_start|>")[0] < len(tiny_gguf.SPECIAL)


@pytest.mark.parametrize("number", [[1], {"a": 1}, "1", -1, 1.0, True, None, 2**32 - 1, 2**70])
def test_an_id_that_is_no_small_count_costs_one_sentence(tmp_path, number) -> None:
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", "smollm")
    content = GgufTokenizer(GgufFile(tmp_path / "t.gguf"), vocabulary).tokenizer_json()
    content["model"]["vocab"]["the"] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(TamizError, match=r"tokenizer\.json: .*the id of token 'the' is"):
        write_tokenizer(tmp_path)


def test_digits_stand_alone_in_smollm(tmp_path) -> None:
    vocabulary = byte_level_gguf(tmp_path / "t.gguf", "smollm")
    reference = files(tmp_path, tmp_path / "t.gguf", vocabulary)
    tokens = [reference.id_to_token(n) for n in encode(session(tmp_path), "1234  56")]
    assert tokens[:4] == ["1", "2", "3", "4"]
    assert tokens[-2:] == ["5", "6"]


def test_sentencepiece_ids_equal_those_of_tokenizers(tmp_path) -> None:
    vocabulary = sentencepiece_gguf(tmp_path / "t.gguf")
    reference = files(tmp_path, tmp_path / "t.gguf", vocabulary)
    assert differing(session(tmp_path), reference) == OPERATOR_DIFFERS
    assert reference.encode("the").tokens[0] == "<s>"
    assert reference.decode(encode(session(tmp_path), "añb 1 \U0001f600")) == "añb 1 \U0001f600"


def test_sentencepiece_merges_the_best_scored_pair_first(tmp_path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "b", "c", "bc", "ab", "▁a"]
    scores = [0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0]
    writer = GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([2, 3, 3, *[1] * 7])
    writer.add_token_scores(scores)
    writer.add_bos_token_id(1)
    close(writer)
    reference = files(tmp_path, tmp_path / "t.gguf", len(tokens))
    assert reference.encode("abc", add_special_tokens=False).tokens == ["▁a", "bc"]
    assert encode(session(tmp_path), "abc") == [9, 7]


def test_what_the_operator_cannot_do_is_told(tmp_path, caplog) -> None:
    caplog.set_level(logging.INFO, "tamiz_exporters.tokenizer")
    assert not write_tokenizer(tmp_path)
    vocabulary = sentencepiece_gguf(tmp_path / "t.gguf", add_space_prefix=False)
    tokenizer = GgufTokenizer(GgufFile(tmp_path / "t.gguf"), vocabulary).tokenizer_json()
    word_piece = {"model": {"type": "WordPiece", "vocab": {}}, "added_tokens": []}
    punctuation = tokenizer | {"pre_tokenizer": {"type": "Punctuation", "behavior": "Isolated"}}
    pattern = {"pattern": {"Regex": r"\w+"}, "behavior": "Isolated", "invert": False}
    split = tokenizer | {"normalizer": None, "pre_tokenizer": {"type": "Split", **pattern}}
    for content in (tokenizer, word_piece, punctuation, split):
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        assert not write_tokenizer(tmp_path)
    reasons = ["has no tokenizer.json", "('Replace',)", "WordPiece", "'Punctuation'", "('Split',)"]
    for record, reason in zip(caplog.records, reasons, strict=True):
        assert reason in record.getMessage()
    assert not (tmp_path / "tokenizer.onnx").exists()


@pytest.mark.parametrize(
    "content", ["{", "[]", "{}", '{"model": []}', '{"model": {"type": "BPE"}, "pre_tokenizer": 1}']
)
def test_a_malformed_tokenizer_costs_one_sentence(tmp_path, content) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TamizError, match=r"tokenizer\.json: "):
        write_tokenizer(tmp_path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "model": (
        {"model": "bert"},
        "tokenizer.ggml.model: found bert, expected gpt2, gemma4 or llama",
    ),
    "pre": ({"pre": "gpt-9"}, "tokenizer.ggml.pre: found gpt-9, expected one of default"),
    "length": ({"tokens": ["a"]}, "tokenizer.ggml.tokens: found 1 entries, expected 3"),
    "types": ({"types": [1]}, "tokenizer.ggml.token_type: found 1 entries, expected 3"),
    "merge": ({"merges": ["a c"]}, r"tokenizer.ggml.merges\[0\]: found 'a c', expected two tokens"),
    "id": ({"bos": 3}, "tokenizer.ggml.bos_token_id: found 3, expected a token id below 3"),
    "bos": ({"pre": "llama-bpe"}, "tokenizer.ggml.bos_token_id: found nothing, expected a token"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_metadata_costs_one_sentence(tmp_path, name) -> None:
    change, message = REFUSED[name]
    writer = GGUFWriter(tmp_path / "t.gguf", "llama")
    writer.add_tokenizer_model(change.get("model", "gpt2"))
    writer.add_tokenizer_pre(change.get("pre", "smollm"))
    writer.add_token_list(change.get("tokens", ["a", "b", "ab"]))
    writer.add_token_types(change.get("types", [1, 1, 1]))
    writer.add_token_merges(change.get("merges", ["a b"]))
    if "bos" in change:
        writer.add_bos_token_id(change["bos"])
    close(writer)
    with pytest.raises(TamizError, match=message):
        GgufTokenizer(GgufFile(tmp_path / "t.gguf"), 3).tokenizer_json()
