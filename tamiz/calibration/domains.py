"""The text that ships with tamiz, by domain: prose, documents, dialogue, code, data and others.

Builds read it where no text is given (``tamiz/data/domains.zip``; `NOTICE.txt` in it names the
sources, `tools/domains/make.py` makes it). Each domain has two parts without a document in common:
fits and predictions read ``fit``, and what is built is measured on ``judge``.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from tamiz.evaluation.windows import Window, cut
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, did_you_mean
from tamiz.runtime.text.chat_template import ChatTemplate
from tamiz.runtime.text.tokenizer import Tokenizer

#: The shipped domains, in the order in which they are read.
DOMAINS = (
    "prose",
    "technical",
    "dialogue",
    "code",
    "data",
    "mathematics",
    "languages",
    "lists",
)
#: The name of the text that a model writes itself, where it is a domain.
OWN = "own"
#: Windows of each domain that fits read, and most windows that judge: enough that joined ones have
#: 4,096 tokens.
FITTED, JUDGED = 3, 8

ARCHIVE = Path(__file__).parents[1] / "data" / "domains.zip"

Part = Literal["fit", "judge"]

#: Time that chat templates write: equal builds have equal bytes on any day.
_NOW = datetime(2025, 1, 1)


def shipped_windows(
    bundle: Bundle, part: Part, length: int, names: Sequence[str] = DOMAINS
) -> list[Window]:
    """Windows of the shipped text that follow each other, domain after domain.

    Args:
        bundle: Has the tokenizer, and the chat template in which dialogues are read.
        part: What is read: ``fit`` or ``judge``.
        length: Tokens of a window.
        names: The domains.

    Returns:
        At most `FITTED` or `JUDGED` windows of each domain. A domain of which the tokenizer reads
        less than a window is left out.

    Raises:
        TamizError: The bundle has no tokenizer.
    """
    tokenizer, most = Tokenizer(bundle), FITTED if part == "fit" else JUDGED
    windows: list[Window] = []
    with zipfile.ZipFile(ARCHIVE) as archive:
        for name in names:
            if name == "dialogue":
                talks = json.loads(archive.read(f"{name}/{part}.json"))
                ids = _conversations(tokenizer, talks, most * length)
            else:
                text = archive.read(f"{name}/{part}.txt").decode("utf-8")
                ids = _passages(tokenizer, text.split("\n\n"), most * length)
            pieces = cut(ids, min(most, len(ids) // length), length)
            windows += [Window(name, piece) for piece in pieces]
    return windows


def check_domains(names: Sequence[str]) -> None:
    """Refuses names of no domain.

    Raises:
        TamizError: There is no such domain.
    """
    expected = (*DOMAINS, OWN)
    for name in names:
        if name not in expected:
            close = did_you_mean(name, expected)
            raise TamizError(
                f"--domains={name}: expected all, none, or some of {', '.join(expected)}{close}"
            )


def _passages(tokenizer: Tokenizer, passages: Sequence[str], most: int) -> list[int]:
    """Tokens of the passages that the tokenizer has all characters of, until there are enough."""
    ids: list[int] = []
    for passage in passages:
        with suppress(TamizError):
            ids += tokenizer.encode(passage + "\n\n", bos=False)
        if len(ids) >= most:
            break
    return ids


def _conversations(
    tokenizer: Tokenizer, talks: Sequence[Sequence[dict[str, str]]], most: int
) -> list[int]:
    """Tokens of conversations as a model reads them, each whole, until there are enough."""
    ids: list[int] = []
    template = _template(tokenizer)
    for talk in talks:
        with suppress(TamizError):
            ids += _conversation(tokenizer, template, talk)
        if len(ids) >= most:
            break
    return ids


def _template(tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's chat template; None where it has none that renders a conversation."""
    try:
        template = ChatTemplate(tokenizer.settings, _NOW)
        template.render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    except TamizError:
        return None
    return template


def _conversation(
    tokenizer: Tokenizer, template: ChatTemplate | None, talk: Sequence[dict[str, str]]
) -> list[int]:
    if template is None:
        lines = (f"{turn['role'].capitalize()}: {turn['content']}\n\n" for turn in talk)
        return tokenizer.encode("".join(lines), bos=False)
    said = [tokenizer.protect(turn["content"]) for turn in talk]
    turns = zip(talk, said, strict=True)
    text = template.render([{**turn, "content": content} for turn, content in turns])
    before, last, after = text.rpartition(said[-1])
    # Templates end with what begins another answer: after the token that ends the last one.
    ends = [after.find(name) + len(name) for name in tokenizer.controls.values() if name in after]
    text = before + last + after[: min(ends, default=len(after))]
    return tokenizer.encode(text, bos=False, control_tokens=True)
