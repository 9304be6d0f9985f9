"""The tokens of a GGUF file: their texts, their types, and which of them end a turn."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from tamiz.api import END_NAMES, END_OR_TAG, MESSAGE_END, ends_of_turns
from tamiz_exporters.gguf_file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
#: What files write for no token: -1, perhaps as an unsigned number.
_NO_ID = (-1, 2**32 - 1)
_log = logging.getLogger(__name__)

#: Keys of ends, the one that the file calls its end first.
_END_KEYS = (
    "eos_token_id",
    "eot_token_id",
    "eom_token_id",
    "fim_pad_token_id",
    "fim_rep_token_id",
    "fim_sep_token_id",
)
#: Control tokens of filling in the middle that end nothing.
_FILL = frozenset(
    [
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ]
)
#: Tokens of the harmony format that belong to the text.
_SHOWN = frozenset(["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"])


class Vocabulary:
    """The tokens of a file.

    Attributes:
        file: The checked file.
        tokens: Text of each token; no two are equal.
        types: Type of each token.
        ids: Token ids by text.
        bos, eos, unknown, padding: Special ids; None where the file has none.
        ends: Ids that end a turn, what the file calls its end first.
    """

    def __init__(self, file: GgufFile, size: int, defaults: dict[str, int]) -> None:
        """Reads and checks the metadata.

        Args:
            file: The checked file.
            size: Number of tokens that the model knows.
            defaults: Special ids that the file need not name.

        Raises:
            TamizError: A list has another length or type, or an id is beyond the vocabulary.
        """
        self.file, self._defaults = file, defaults
        self.tokens = self._texts(size)
        self.ids = {token: number for number, token in enumerate(self.tokens)}
        self.types: list[int] = file.get("tokenizer.ggml.token_type", list, [NORMAL] * size)
        if len(self.types) != size:
            self.fail("token_type", f"{len(self.types)} entries", self._as_many)
        self.bos, self.eos = self._id("bos_token_id"), self._id("eos_token_id")
        self.unknown, self.padding = self._id("unknown_token_id"), self._id("padding_token_id")
        self.ends = self._ends()
        self._set_types()

    def special(self, *types: int) -> list[int]:
        """Ids of the tokens of some types."""
        return [number for number, kind in enumerate(self.types) if kind in types]

    def scores(self) -> list[float]:
        """How likely each token is, in SentencePiece's vocabularies.

        Raises:
            TamizError: There are none, or not as many as tokens.
        """
        scores: list[float] = self.file.get("tokenizer.ggml.scores", list)
        if len(scores) != len(self.tokens):
            self.fail("scores", f"{len(scores)} entries", f"{len(self.tokens)}")
        return scores

    def fail(self, key: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a key of the tokenizer."""
        self.file.fail(f"tokenizer.ggml.{key}", found, expected)

    def _texts(self, size: int) -> list[str]:
        """Texts of the tokens; an empty one, or one that an earlier token has, gets a name."""
        self._as_many = f"{size}, as many as token_embd.weight has rows"
        tokens: list[str] = self.file.get("tokenizer.ggml.tokens", list)
        if len(tokens) != size:
            self.fail("tokens", f"{len(tokens)} entries", self._as_many)
        if not all(isinstance(token, str) for token in tokens):
            self.fail("tokens", "numbers", "strings")
        taken = set(tokens)
        first: dict[str, int] = {}
        named = list(tokens)
        for number, token in enumerate(tokens):
            if token and first.setdefault(token, number) == number:
                continue
            name = f"[{'DUPLICATE' if token else 'EMPTY'}_{number}]"
            while name in taken:
                name = f"[{name}]"
            taken.add(name)
            named[number] = name
            _log.warning(
                "%s: tokenizer.ggml.tokens[%d] is %s; it is named %s, and no text becomes it",
                self.file.path,
                number,
                f"{token!r}, as token {first[token]}" if token else "empty",
                name,
            )
        return named

    def _id(self, key: str) -> int | None:
        ids = range(len(self.tokens))
        default = self._defaults.get(key)
        number = self.file.get(f"tokenizer.ggml.{key}", int, default if default in ids else -1)
        if number not in ids and number not in _NO_ID:
            self.fail(key, number, f"a token id below {len(self.tokens)}")
        return None if number in _NO_ID else int(number)

    def _ends(self) -> list[int]:
        by_key = [number for key in _END_KEYS if (number := self._id(key)) is not None]
        end_tokens = {name: number for name, number in self.ids.items() if name in END_NAMES}
        end_tokens |= {self.tokens[number]: number for number in by_key}
        tag = self.ids.get(END_OR_TAG)
        if tag is not None and self.types[tag] == CONTROL:
            end_tokens[END_OR_TAG] = tag
        ends = ends_of_turns(end_tokens).values()
        first = [number for number in by_key if number in ends]
        return list(dict.fromkeys([*first, *sorted(ends)]))

    def _set_types(self) -> None:
        """Makes control tokens of those that are by their names, whatever type they have."""
        for number, token in enumerate(self.tokens):
            if token in _SHOWN or (token == MESSAGE_END and number not in self.ends):
                self.types[number] = USER_DEFINED
            elif token in _FILL or token in END_NAMES:
                self.types[number] = CONTROL
