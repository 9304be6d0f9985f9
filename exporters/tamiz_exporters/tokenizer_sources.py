"""The tokenizer's files where a Hugging Face folder has others: made from what is there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, read_text
from tamiz_exporters.ends import token_text
from tamiz_exporters.pre_tokenizers import BYTE_LEVEL, PRE_TOKENIZERS
from tamiz_exporters.tokenizer import TOKENIZER_DEFAULTS
from tamiz_exporters.word_pieces import KINDS, WORD_PIECES, tokenizer_of_words, words_of

#: Byte pairs: the vocabulary, and the merges in their order.
VOCABULARY, MERGES = "vocab.json", "merges.txt"
SENTENCE_PIECE = "tokenizer.model"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
#: How classes of tokenizers in transformers, or model types, cut text before byte pairs merge.
_SPLITS = {
    **dict.fromkeys(("gpt2", "GPT2Tokenizer", "GPT2TokenizerFast"), "gpt-2"),
    **dict.fromkeys(("qwen2", "qwen3", "Qwen2Tokenizer", "Qwen2TokenizerFast"), "qwen2"),
}
_log = logging.getLogger(__name__)


def made_tokenizer(
    folders: Sequence[Path], settings: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any] | None:
    """A ``tokenizer.json`` from what older tokenizers are stored in.

    Args:
        folders: Where the files may lie; the first that holds one counts.
        settings: ``tokenizer_config.json``, perhaps empty.
        config: ``config.json``, perhaps empty.

    Returns:
        The file's contents; None where there is nothing to make it from, or the kind of tokenizer
        is not known, which a warning says.

    Raises:
        TamizError: One of the files is malformed.
    """
    kind = settings.get("tokenizer_class") or config.get("model_type")
    for folder in folders:
        if (folder / VOCABULARY).is_file() and (folder / MERGES).is_file():
            return _tokenizer_of_merges(folder, settings, kind)
        if (folder / WORD_PIECES).is_file():
            if kind in KINDS:
                path = folder / WORD_PIECES
                return tokenizer_of_words(path, words_of(path), settings)
            _warn(folder, WORD_PIECES, kind, sorted(KINDS))
            return None
        if (folder / SENTENCE_PIECE).is_file():
            _warn(folder, SENTENCE_PIECE, kind, ())
            return None
    return None


def _warn(folder: Path, files: str, kind: Any, known: Iterable[str]) -> None:
    """Says why a folder's tokenizer is not read, and a way out."""
    only = f" for a tokenizer of kind {kind}, only for {', '.join(known)}" if known else ""
    _log.warning(
        "%s: tokenizer.json is missing and cannot be made from %s%s; try "
        "AutoTokenizer.from_pretrained(...).save_pretrained(...)",
        folder,
        files,
        only,
    )


def _tokenizer_of_merges(
    folder: Path, settings: dict[str, Any], kind: Any
) -> dict[str, Any] | None:
    """A ``tokenizer.json`` from ``vocab.json`` and ``merges.txt``."""
    if kind not in _SPLITS:
        _warn(folder, f"{VOCABULARY} and {MERGES}", kind, _SPLITS)
        return None
    pre = PRE_TOKENIZERS[_SPLITS[kind]]
    vocabulary = read_json(folder / VOCABULARY)
    steps = pre.steps()
    level = BYTE_LEVEL | {"add_prefix_space": settings.get("add_prefix_space") is True}
    steps[-1] |= {"add_prefix_space": level["add_prefix_space"]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(folder, settings, vocabulary),
        "normalizer": {"type": "NFC"} if pre.composes else None,
        "pre_tokenizer": (
            steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
        ),
        "post_processor": None,
        "decoder": level | {"use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": _merges(folder / MERGES),
        },
    }


def settings_of_tokenizer(
    tokenizer: dict[str, Any], special: dict[str, Any], config: dict[str, Any]
) -> dict[str, Any]:
    """A ``tokenizer_config.json`` for a folder without one.

    Args:
        tokenizer: ``tokenizer.json``.
        special: ``special_tokens_map.json``, perhaps empty.
        config: ``config.json``, perhaps empty; it has the special tokens by their ids.
    """
    names = _names(tokenizer)
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        **TOKENIZER_DEFAULTS,
    }
    for key in _SPECIAL:
        number = config.get(f"{key}_id")
        number = number[0] if isinstance(number, list) and number else number
        text = token_text(special.get(key)) or (names.get(number) if type(number) is int else None)
        if text is not None:
            settings[key] = text
    if isinstance(length := config.get("max_position_embeddings"), int):
        settings["model_max_length"] = length
    return settings


def _names(tokenizer: dict[str, Any]) -> dict[int, str]:
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    names = {}
    if isinstance(vocabulary, dict):
        names = {number: text for text, number in vocabulary.items() if type(number) is int}
    for token in tokenizer.get("added_tokens") or ():
        if isinstance(token, dict) and type(token.get("id")) is int:
            names[token["id"]] = str(token.get("content"))
    return names


def _merges(path: Path) -> list[str]:
    """The lines of ``merges.txt`` but the first, which may name a version."""
    lines = read_text(path).split("\n")
    lines = lines[1:] if lines[0].startswith("#version") else lines
    merges = [line.rstrip("\r") for line in lines if line.strip()]
    for line in merges:
        if len(line.split(" ")) != 2:
            raise TamizError(f"{path}: found the line {line!r}, expected two tokens and a space")
    return merges


def _added(
    folder: Path, settings: dict[str, Any], vocabulary: dict[str, Any]
) -> list[dict[str, Any]]:
    """The tokens that are cut out of a text: listed with ids, or named as special ones."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added: dict[str, dict[str, Any]] = {}
    listed = settings.get("added_tokens_decoder")
    for number, token in (listed if isinstance(listed, dict) else {}).items():
        content = token_text(token)
        if content is not None and number.isdecimal():
            flags_set = {key: token[key] for key in (*flags, "special") if key in token}
            added[content] = {"id": int(number), "content": content, **flags, "special": False}
            added[content] |= flags_set
    path = folder / "added_tokens.json"
    for content, number in (read_json(path) if path.is_file() else {}).items():
        special = {"id": number, "content": content, **flags, "special": True}
        added.setdefault(content, special)
    for content in filter(None, map(token_text, _specials(settings))):
        number = vocabulary.get(content)
        if number is not None:
            special = {"id": number, "content": content, **flags, "special": True}
            added.setdefault(content, special)
    return sorted(added.values(), key=lambda token: int(token["id"]))


def _specials(settings: dict[str, Any]) -> Sequence[Any]:
    more = settings.get("additional_special_tokens")
    named = [settings.get(key) for key in _SPECIAL]
    return [*named, *(more if isinstance(more, list) else ())]
