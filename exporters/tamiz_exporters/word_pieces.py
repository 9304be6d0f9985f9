"""``tokenizer.json`` from a ``vocab.txt`` of BERT: words, then the longest pieces from the left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_text
from tamiz_exporters.ends import token_text

WORD_PIECES = "vocab.txt"
#: Classes of tokenizers in transformers, or model types, that read the file alike.
KINDS = frozenset(
    {
        *("bert", "BertTokenizer", "BertTokenizerFast"),
        *("distilbert", "DistilBertTokenizer", "DistilBertTokenizerFast"),
        *("electra", "ElectraTokenizer", "ElectraTokenizerFast"),
    }
)
#: Special tokens, by their settings, where these do not name them.
_SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
_MOST_CHARACTERS = 100


def words_of(path: Path) -> list[str]:
    """The tokens of a ``vocab.txt``: one in each line, whose number is its id."""
    lines = read_text(path).split("\n")
    return [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def tokenizer_of_words(path: Path, tokens: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """A ``tokenizer.json`` as transformers' BertTokenizer makes it.

    Args:
        path: The file that has the tokens, for messages.
        tokens: All of them, by id.
        settings: ``tokenizer_config.json``, perhaps empty.

    Raises:
        TamizError: A special token is missing.
    """
    vocabulary = {token: number for number, token in enumerate(tokens)}
    names = {key: token_text(settings.get(key)) or name for key, name in _SPECIAL.items()}
    if missing := [name for name in names.values() if name not in vocabulary]:
        raise TamizError(f"{path}: found no token {missing[0]!r}, expected this special token")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special_tokens(names.values(), vocabulary),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": settings.get("tokenize_chinese_chars") is not False,
            "strip_accents": settings.get("strip_accents"),
            "lowercase": settings.get("do_lower_case") is not False,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": around(names["cls_token"], names["sep_token"], vocabulary),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {
            "type": "WordPiece",
            "unk_token": names["unk_token"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": _MOST_CHARACTERS,
            "vocab": vocabulary,
        },
    }


def special_tokens(names: Iterable[str], vocabulary: Mapping[str, int]) -> list[dict[str, Any]]:
    """The added tokens of a ``tokenizer.json`` that are special, by id."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": vocabulary[name], "content": name, **flags, "special": True}
        for name in sorted(set(names), key=vocabulary.__getitem__)
    ]


def around(
    begin: str, end: str, vocabulary: dict[str, int], *, twice: bool = False
) -> dict[str, Any]:
    """The tokens around a text, and around two.

    Args:
        begin: The first token.
        end: The token behind each text.
        vocabulary: Ids by token.
        twice: Whether two ends lie between texts, which then are of one kind, as in RoBERTa.
    """

    def token(name: str, text: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": name, "type_id": text}}

    first = [token(begin, 0), {"Sequence": {"id": "A", "type_id": 0}}, token(end, 0)]
    kind, more = (0, [token(end, 0)]) if twice else (1, [])
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, *more, {"Sequence": {"id": "B", "type_id": kind}}, token(end, kind)],
        "special_tokens": {
            name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in (begin, end)
        },
    }
