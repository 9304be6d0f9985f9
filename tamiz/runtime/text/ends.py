"""Tokens that end an answer: by id, by name, from all files of a bundle.

All that any file names ends an answer, and also the tokens that end a turn by their names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.interface.end_names import END_NAMES, END_OR_TAG, ends_of_turns

if TYPE_CHECKING:
    from tamiz.runtime.text.tokenizer import Tokenizer

#: Files with ids of ends, under ``eos_token_id``.
_FILES = ("generation_config.json", "config.json")


def ends_by_id(bundle: Bundle) -> frozenset[int]:
    """The ids of generation_config.json and config.json: each has one, several, or none.

    Raises:
        TamizError: ``eos_token_id`` is something else.
    """
    ends = set[int]()
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
        ends.update(ids)
    return frozenset(ends)


def stop_strings(bundle: Bundle) -> tuple[str, ...]:
    """The strings of generation_config.json at which an answer ends.

    Raises:
        TamizError: ``stop_strings`` is something else.
    """
    name = _FILES[0]
    value = bundle.json(name).get("stop_strings") if name in bundle.manifest.files else None
    strings = value if isinstance(value, list) else [] if value is None else [value]
    if any(not isinstance(text, str) or not text for text in strings):
        raise TamizError(
            f"{bundle.path / name}: stop_strings is {value!r}, expected texts that are not empty"
        )
    return tuple(strings)


def ends_by_name(tokenizer: Tokenizer) -> frozenset[int]:
    """The token that tokenizer_config.json names, and the tokens whose names are those of ends."""
    ends = ends_of_turns(tokenizer.ids_of(END_NAMES))
    tag = tokenizer.ids_of([END_OR_TAG])
    ends |= {name: token for name, token in tag.items() if token in tokenizer.controls}
    if (end := tokenizer.special("eos_token")) is not None:
        ends |= tokenizer.ids_of([end])
    return frozenset(ends.values())
