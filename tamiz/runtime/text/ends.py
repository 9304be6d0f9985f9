"""Tokens that end an answer: by id, by name, from all files of a bundle.

Models name their ends in one file or another, and chat models often name only the end of a
document, not that of a turn. So all that any file names ends an answer, and also the control tokens
that end a turn by their name, which are those of llama.cpp (`special_eog_ids`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.runtime.text.tokenizer import Tokenizer

#: Files with ids of ends, under ``eos_token_id``.
_FILES = ("generation_config.json", "config.json")
#: Names of tokens that end a turn, a document, or a file within a document.
_NAMES = frozenset(
    {
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "</s>",
        "<|eom_id|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "<|end_of_text|>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",
        "[e~[",
        "<|fim_pad|>",
        "<fim-pad>",
        "<fim_pad>",
        "<PAD>",
        "[PAD]",
        "<|fim_repo|>",
        "<|repo_name|>",
        "<fim-repo>",
        "<REPO>",
        "<reponame>",
        "<|file_sep|>",
    }
)
#: Where all of the first are ends, the second is not: it ends a part of an answer, or is text.
_PARTS = (
    ({"<|return|>", "<|call|>"}, "<|end|>"),
    ({"<|return|>", "<|calls|>"}, "<|end|>"),
    ({"<|call|>", "<|flush|>"}, "<|end|>"),
    ({"<|calls|>", "<|flush|>"}, "<|end|>"),
    ({"<|tool_response>"}, "</s>"),
)


def ends_by_id(bundle: Bundle) -> frozenset[int]:
    """The ids of generation_config.json and config.json: each has one, several, or none.

    Raises:
        TamizError: ``eos_token_id`` is something else.
    """
    found = set[int]()
    for name in _FILES:
        if name not in bundle.manifest.files:
            continue
        value = bundle.json(name).get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(type(token) is not int for token in ids):
            raise TamizError(
                f"{bundle.path / name}: eos_token_id is {value!r}, expected an int or a list of"
                " ints"
            )
        found.update(ids)
    return frozenset(found)


def ends_by_name(tokenizer: Tokenizer) -> frozenset[int]:
    """The token that tokenizer_config.json names, and the tokens whose names are those of ends."""
    found = tokenizer.ids_of(_NAMES)
    for others, part in _PARTS:
        if others <= found.keys():
            found.pop(part, None)
    if (end := tokenizer.special("eos_token")) is not None:
        found |= tokenizer.ids_of([end])
    return frozenset(found.values())
