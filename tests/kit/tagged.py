"""A tiny model whose vocabulary has the tags of a form of answers as tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path

from kit import chain
from tamiz.files.bundle import Source, write_manifest

#: Stand for bytes that no text of the tests has; tags take their places.
_LETTERS = "ùúûüýþÿ"


def ids_of(tags: Iterable[str]) -> dict[str, int]:
    """Tokens of the tags, by name."""
    pairs = zip(sorted(tags), _LETTERS, strict=False)
    return {tag: chain.TOKENS.index(letter) for tag, letter in pairs}


def tagged(tiny: Path, folder: Path, tags: Iterable[str], special: bool, template: str) -> Path:
    """A copy of a bundle of the tiny model, with tags as tokens and with a chat template.

    Args:
        tiny: The bundle.
        folder: Where the copy is made.
        tags: Names of the tokens, at most seven.
        special: Whether they are control tokens, whose names are no text.
        template: The chat template.
    """
    shutil.copytree(tiny, folder)
    description = chain.read(folder, "tokenizer")
    vocabulary = description["model"]["vocab"]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    for tag, number in ids_of(tags).items():
        del vocabulary[chain.TOKENS[number]]
        vocabulary[tag] = number
        added = {"id": number, "content": tag, "special": special, **flags}
        description["added_tokens"].append(added)
    settings = {**chain.read(folder, "tokenizer_config"), "chat_template": template}
    (folder / "tokenizer.json").write_text(json.dumps(description), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    source = Source("changed by a test")
    write_manifest(folder, "built", source, kv_cache="shared", equal_runs=True)
    return folder
