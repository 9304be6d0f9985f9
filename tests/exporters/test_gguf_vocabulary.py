from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from kit import odd_vocabulary, piece_vocabulary
from kit.odd_vocabulary import CONTROL, NORMAL, USER_DEFINED
from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_tokenizer import GgufTokenizer

#: Ends of every odd vocabulary: names among its control tokens.
ALWAYS = {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>"}
#: More tokens with their types → those that `llama_vocab_is_eog` of llama-cpp-python 0.3.36 is true
#: for, beside the ones above.
ENDS: dict[str, tuple[dict[str, int], set[str]]] = {
    "none": ({}, set()),
    "fill in the middle": (
        dict.fromkeys(
            ("<|fim_prefix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|other|>"), CONTROL
        ),
        {"<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"},
    ),
    "harmony": (
        dict.fromkeys(("<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|channel|>"), CONTROL),
        {"<|return|>", "<|call|>"},
    ),
    "no call": (dict.fromkeys(("<|return|>", "<|end|>"), CONTROL), {"<|return|>", "<|end|>"}),
    "typed as text": (
        {"<|eom_id|>": NORMAL, "[EOT]": USER_DEFINED, "<EOT>": NORMAL},
        {"<|eom_id|>", "[EOT]", "<EOT>"},
    ),
    "deepseek": (
        dict.fromkeys(("<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"), CONTROL),
        {"<｜end▁of▁sentence｜>"},
    ),
}
#: Ids of llama-cpp-python 0.3.36 (special tokens parsed, no BOS), by `general.name`.
PHI3: dict[str, dict[str, list[int]]] = {
    "Phi3": {
        "<|user|>\nhello<|end|>\n<|assistant|>\n": [274, 269, 276, 275],
        "<|user|> hello": [274, 269],
        "</s> hello": [2, 269],
        "<s> hello": [1, 260, 268],
        "<unk> hello": [0, 260, 268],
        "<|endoftext|>\nhello": [273, 259, 13, 268],
        "<|end|>  <|end|>\n\nx": [276, 276, 259, 123],
    },
    "Other": {
        "<|user|>\nhello<|end|>\n<|assistant|>\n": [
            *(274, 259, 13, 268, 276),
            *(259, 13, 275, 259, 13),
        ],
        "<|user|> hello": [274, 260, 268],
        "</s> hello": [2, 260, 268],
        "<|end|>  <|end|>\n\nx": [276, 260, 259, 276, 259, 13, 13, 123],
    },
}


def read(path: Path, more: dict[str, int], **metadata: Any) -> tuple[list[str], GgufTokenizer]:
    tokens = odd_vocabulary.write(path, "gpt-2", more, **metadata)
    return tokens, GgufTokenizer(GgufFile(path), len(tokens))


def library(tokenizer: GgufTokenizer) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(tokenizer.tokenizer_json()))


@pytest.mark.parametrize("name", ENDS)
def test_ends_are_those_of_llama_cpp(tmp_path, name) -> None:
    more, expected = ENDS[name]
    tokens, tokenizer = read(tmp_path / "odd.gguf", more)
    ends = tokenizer.generation_config()["eos_token_id"]
    assert {tokens[number] for number in ends} == ALWAYS | expected
    assert tokens[ends[0]] == "<|endoftext|>"  # what the file calls its end


def test_a_tag_of_html_is_no_end(tmp_path) -> None:
    # </s> in Gemma 3 and Qwen 2.5; llama.cpp ends there.
    path = tmp_path / "pieces.gguf"
    piece_vocabulary.write(path, "Gemma")  # its </s> is user-defined
    tokenizer = GgufTokenizer(GgufFile(path), len(piece_vocabulary.TOKENS))
    ends = [piece_vocabulary.TOKENS[n] for n in tokenizer.generation_config()["eos_token_id"]]
    assert ends == ["<|endoftext|>", "<|end|>"]


@pytest.mark.parametrize("name", PHI3)
def test_control_tokens_of_phi_3_take_the_white_space_after_them(tmp_path, name) -> None:
    path = tmp_path / "pieces.gguf"
    piece_vocabulary.write(path, name)
    tokenizer = library(GgufTokenizer(GgufFile(path), len(piece_vocabulary.TOKENS)))
    found = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in PHI3[name]}
    assert found == PHI3[name]


def test_one_text_at_two_ids(tmp_path, caplog, monkeypatch) -> None:
    path = tmp_path / "odd.gguf"
    tokens = odd_vocabulary.write(path, "gpt-2", {"<unused1>": NORMAL, "<unused2>": NORMAL})
    file = GgufFile(path)
    listed = file.metadata["tokenizer.ggml.tokens"]
    listed[-1], listed[-2] = "Hello", ""  # Hello is a merge of the vocabulary
    tokenizer = GgufTokenizer(file, len(tokens))
    vocabulary = tokenizer.tokenizer_json()["model"]["vocab"]
    last = len(tokens) - 1
    assert vocabulary[f"[DUPLICATE_{last}]"] == last
    assert vocabulary[f"[EMPTY_{last - 1}]"] == last - 1
    assert library(tokenizer).encode("Hello").ids == [tokens.index("Hello")]
    assert f"tokenizer.ggml.tokens[{last}] is 'Hello', as token" in caplog.text


def test_an_end_after_every_text(tmp_path) -> None:
    _, tokenizer = read(
        tmp_path / "odd.gguf",
        {},
        tokenizer__ggml__add_eos_token=True,
        tokenizer__ggml__add_bos_token=True,
    )
    assert tokenizer.tokenizer_config(8)["add_eos_token"] is True
    ids = library(tokenizer).encode("a").ids
    assert (ids[0], ids[-1]) == (0, 2)


@pytest.mark.parametrize("none", [-1, 2**32 - 1])
def test_files_write_no_token_as_minus_one(tmp_path, none) -> None:
    path = tmp_path / "odd.gguf"
    tokens = odd_vocabulary.write(path, "gpt-2")
    file = GgufFile(path)
    file.metadata["tokenizer.ggml.eos_token_id"] = none
    ends = GgufTokenizer(file, len(tokens)).generation_config()["eos_token_id"]
    assert {tokens[number] for number in ends} == ALWAYS


def test_an_unknown_pre_tokenizer_is_refused(tmp_path) -> None:
    odd_vocabulary.write(tmp_path / "odd.gguf", "kayak")
    with pytest.raises(
        TamizError, match=r"tokenizer\.ggml\.pre: found kayak, expected one of default, gpt-2"
    ):
        GgufTokenizer(GgufFile(tmp_path / "odd.gguf"), 10)
