"""The tokens of a GGUF file: their texts, their types, and which of them end a turn."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

from tamiz_exporters.gguf_file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
#: What files write for no token: -1, perhaps as an unsigned number.
_NO_ID = (-1, 2**32 - 1)
_log = logging.getLogger(__name__)

#: Tokens that end a turn by their names, as llama.cpp decides: files often name one end of several.
_ENDS = frozenset(
    [
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<|endoftext|>",
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
    ]
)
#: Control tokens of filling in the middle; the first group ends a turn, too.
_FILL_ENDS = {
    "fim_pad_token_id": ["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    "fim_rep_token_id": ["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    "fim_sep_token_id": ["<|file_sep|>"],
}
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
#: Where both groups are ends, this one ends a message, not the turn.
_INNER = "<|end|>"
_CALLS, _RETURNS = {"<|call|>", "<|calls|>"}, {"<|return|>", "<|flush|>"}
#: An end where the file calls it a control token; else, as in Gemma and Qwen, a tag of HTML.
#: llama.cpp ends there, too.
_S = "</s>"


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
        known = range(len(self.tokens))
        default = self._defaults.get(key)
        number = self.file.get(f"tokenizer.ggml.{key}", int, default if default in known else -1)
        if number not in known and number not in _NO_ID:
            self.fail(key, number, f"a token id below {len(self.tokens)}")
        return None if number in _NO_ID else int(number)

    def _ends(self) -> list[int]:
        named = [self.eos, self._id("eot_token_id"), self._id("eom_token_id")]
        for key, names in _FILL_ENDS.items():
            number = self._id(key)
            given = [self.ids.get(name) for name in names] if number is None else [number]
            named += given
        s = self.ids.get(_S)
        if s is not None and self.types[s] == CONTROL:
            named.append(s)
        by_name = [number for number, token in enumerate(self.tokens) if token in _ENDS]
        ends = [number for number in (*named[:3], *by_name, *named[3:]) if number is not None]
        texts = {self.tokens[number] for number in ends}
        inner = {_INNER} if texts & _CALLS and texts & _RETURNS else set()
        return [number for number in dict.fromkeys(ends) if self.tokens[number] not in inner]

    def _set_types(self) -> None:
        """Makes control tokens of those that are by their names, whatever type they have."""
        names = {name for group in _FILL_ENDS.values() for name in group} | _FILL | _ENDS
        for number, token in enumerate(self.tokens):
            if token in _SHOWN or (token == _INNER and number not in self.ends):
                self.types[number] = USER_DEFINED
            elif token in names:
                self.types[number] = CONTROL
