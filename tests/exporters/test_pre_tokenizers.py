"""Every pre-tokenizer of llama.cpp splits odd strings as llama.cpp does.

The vocabulary's merges join whole odd strings, so that every other split gives other ids.
``token_ids/pre_tokenizers.json`` holds digests of the ids that llama.cpp gives for
each odd string (special tokens parsed, no BOS), by names that give the same ids:

    Llama(path, vocab_only=True).tokenize(text.encode(), add_bos=False, special=True)
    odd_vocabulary.digest(ids)
"""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest
import tokenizers

from kit import odd_vocabulary
from kit.odd_strings import ODD_STRINGS
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_tokenizer import GgufTokenizer
from tamiz_exporters.pre_tokenizers import PRE_TOKENIZERS

GROUPS = json.loads(
    (Path(__file__).parent / "token_ids" / "pre_tokenizers.json").read_text("utf-8")
)
EXPECTED = {name: group["digests"].split() for group in GROUPS for name in group["names"]}


def digests(path: Path, pre: str | None) -> list[str]:
    tokens = odd_vocabulary.write(path, pre)
    description = GgufTokenizer(GgufFile(path), len(tokens)).tokenizer_json()
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(description))
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in ODD_STRINGS]
    return [odd_vocabulary.digest(each) for each in ids]


def test_all_names_have_expected_ids() -> None:
    characters = {name for name, pre in PRE_TOKENIZERS.items() if pre.sentencepiece}
    assert set(EXPECTED) - {""} == set(PRE_TOKENIZERS) - characters


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group["names"][0] or "none")
def test_ids_equal_those_of_llama_cpp(tmp_path, group) -> None:
    for name in group["names"]:
        found = digests(tmp_path / "odd.gguf", name or None)
        different = [
            text
            for text, digest, expected in zip(ODD_STRINGS, found, EXPECTED[name], strict=True)
            # Qwen 2's own tokenizer composes characters, which llama.cpp leaves out.
            if digest != expected and (unicodedata.is_normalized("NFC", text) or "qwen" not in name)
        ]
        assert not different, name


def test_a_missing_pre_tokenizer_is_a_warning(tmp_path, caplog) -> None:
    digests(tmp_path / "odd.gguf", None)
    assert "tokenizer.ggml.pre is missing; the default split of llama.cpp is used" in caplog.text
