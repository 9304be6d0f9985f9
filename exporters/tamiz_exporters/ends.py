"""Which tokens end a generation, from all files of a Hugging Face folder that say it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tamiz.api import TamizError, read_json, write_json
from tamiz_exporters.checked_file import reading

_EOS = "eos_token_id"
_IDS = ("bos_token_id", _EOS, "pad_token_id")


def complete_ends(generation: Path, config: Path, tokens: Path, tokenizer: Path) -> None:
    """Writes all ends into ``generation_config.json``, which is made where it is absent.

    A generation ends at what any of three files calls an end: ``generation_config.json``,
    ``config.json``, and, by its text, ``tokenizer_config.json``.

    Args:
        generation: ``generation_config.json``.
        config: ``config.json``; nothing happens without it.
        tokens: ``tokenizer_config.json``.
        tokenizer: ``tokenizer.json``, which gives the token's id.

    Raises:
        TamizError: One of the files holds something else.
    """
    if not config.is_file():
        return
    described = read_json(config)
    written = read_json(generation) if generation.is_file() else None
    settings = written
    if settings is None:
        settings = {key: described[key] for key in _IDS if described.get(key) is not None}
    ends = dict.fromkeys(_numbers(generation, settings))
    for of in (described, described.get("text_config")):
        ends |= dict.fromkeys(_numbers(config, of) if isinstance(of, dict) else ())
    ends |= dict.fromkeys(_named(tokens, tokenizer))
    if ends != dict.fromkeys(_numbers(generation, settings)):
        complete = list(ends)
        settings = settings | {_EOS: complete[0] if len(complete) == 1 else complete}
    if settings != written:
        write_json(generation, settings)


def token_text(value: Any) -> str | None:
    """The text of a token in a configuration: a string, or an object with its content."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def token_id(tokenizer: dict[str, Any], text: str) -> int | None:
    """The id of a token in a ``tokenizer.json``; None where it has none."""
    for token in tokenizer.get("added_tokens") or ():
        if isinstance(token, dict) and token.get("content") == text:
            return token.get("id")
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    return vocabulary.get(text) if isinstance(vocabulary, dict) else None


def _numbers(path: Path, values: dict[str, Any]) -> Iterator[int]:
    value = values.get(_EOS)
    numbers = value if isinstance(value, list) else [] if value is None else [value]
    for number in numbers:
        if type(number) is not int or number < 0:
            raise TamizError(f"{path}: {_EOS}: found {value!r}, expected token ids")
        yield number


def _named(tokens: Path, tokenizer: Path) -> Iterator[int]:
    if not tokens.is_file() or not tokenizer.is_file():
        return
    text = token_text(read_json(tokens).get("eos_token"))
    with reading(tokenizer):
        number = None if text is None else token_id(read_json(tokenizer), text)
    if type(number) is int:
        yield number
