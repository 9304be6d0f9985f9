"""Text to token ids and back, by the `tokenizers` library on the bundle's `tokenizer.json`.

Control tokens (`<|im_end|>`) mark the speaker. Text of a user or a file never becomes one:
every control token is added to the tokenizer a second time, under its name after a random mark,
and only text that a chat template wrote gets that mark before it is encoded.
"""

from __future__ import annotations

import codecs
import json
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import tokenizers

from tamiz.files.bundle import VOCABULARY, Bundle
from tamiz.files.errors import TamizError

SETTINGS = "tokenizer_config.json"

_HALF_CHARACTER = re.compile("[\ud800-\udfff]")
#: The settings that name a control token.
_NAMED = ("bos_token", "eos_token", "pad_token", "cls_token", "sep_token", "mask_token")


class Tokenizer:
    """The tokenizer of a bundle.

    Attributes:
        settings: Contents of tokenizer_config.json.
        path: Its tokenizer.json.
        controls: Names of the control tokens, by id.
        bytes: The byte of each token that stands for a single one (``<0x0A>``), by id.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Loads it.

        Raises:
            TamizError: A file is missing or is not of the expected form.
        """
        if not bundle.has_tokenizer:
            raise TamizError(f"{bundle.path}: has no {VOCABULARY}, so it cannot read text")
        self.settings = bundle.json(SETTINGS)
        self.path = bundle.file(VOCABULARY)
        with malformed(self.path):
            self._library = tokenizers.Tokenizer.from_buffer(self.path.read_bytes())
            self._library.no_truncation()
            self._library.no_padding()
            self.controls = self._find_controls()
            self._lossy = _Lossy(self._library, self.controls)
            # Digits and a noncharacter: no filter of a template (`lower`, `trim`) changes them.
            self.bytes = self._find_bytes()
            self._written, self._quoted = (f"\ufdd0{secrets.randbits(64)}\ufdd0" for _ in "12")
            self._marked = self._add_marked()
        names = sorted(self.controls.values(), key=len, reverse=True)
        self._name = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._any_case = re.compile(self._name.pattern, re.IGNORECASE)
        self._bos = self._beginning(bundle)

    def encode(
        self, text: str, bos: bool = True, control_tokens: bool = False, most: int | None = None
    ) -> list[int]:
        """Token ids of a text.

        Args:
            text: The text.
            bos: Put the beginning-of-text token first if tokenizer_config.json says so
                (``add_bos_token``); a rendered chat template has its own.
            control_tokens: The name of a control token becomes that token, except in text from
                `protect`. By default it is text as any other.
            most: Refuse a text that is certainly longer than this many tokens, before it is read
                into tokens, which takes much time and memory; None for no limit.

        Raises:
            TamizError: The text holds half a character, the mark of input that was not UTF-8,
                or a character for which the vocabulary has no token; or it is longer than `most`.
        """
        if most is not None:
            self.check_length(text, most)
        if bad := _HALF_CHARACTER.search(text):
            raise TamizError(
                f"the text holds {bad[0]!r} at character {bad.start()}, expected UTF-8"
            )
        if control_tokens:
            text = self._name.sub(lambda name: self._written + name[0], text)
            # A template may write a text as JSON in ASCII.
            for mark in (self._quoted, json.dumps(self._quoted)[1:-1]):
                text = text.replace(mark, "")
        if lost := self._lossy.first_lost(text.replace(self._written, "")):
            raise TamizError(f"the text holds {lost!r}, for which {VOCABULARY} has no token")
        with malformed(self.path):
            ids = self._library.encode(text, add_special_tokens=False).ids
        ids = [self._marked.get(token, token) for token in ids]
        return self._bos + ids if bos else ids

    def check_length(self, text: str, most: int) -> None:
        """Refuses a text that has certainly more than `most` tokens, without reading it.

        Raises:
            TamizError: It has more characters than that many of the longest tokens.
        """
        if len(text) <= most:
            return
        length = len(text.replace(self._quoted, ""))
        vocabulary = self._library.get_vocab()
        longest = max(len(name) for name, token in vocabulary.items() if token not in self._marked)
        if length > most * longest:
            raise TamizError(
                f"the text's {length} characters do not fit: the model's limit is {most} tokens"
                f" (max_position_embeddings of config.json), of at most {longest} characters each"
            )

    def ends(self) -> tuple[list[int], list[int]]:
        """The tokens that an encoder expects before and after a text."""
        with malformed(self.path):
            encoded = self._library.encode("a")
        inner = [place for place, end in enumerate(encoded.special_tokens_mask) if not end]
        if not inner:
            return [], []
        return encoded.ids[: inner[0]], encoded.ids[inner[-1] + 1 :]

    def pair(self, a: str, b: str) -> tuple[list[int], list[int], list[int | None]]:
        """Two texts with the tokens around them.

        Returns:
            Ids, kinds, and which text a token is of: 0, 1, or None.
        """
        with malformed(self.path):
            encoded = self._library.encode(a, b)
        return encoded.ids, encoded.type_ids, encoded.sequence_ids

    def protect(self, text: str) -> str:
        """The text with a mark in every name of a control token, so that the name remains text.

        The mark comes after the name's first character, in any case of its letters, and in a name
        that the text ends in the middle of. `encode` removes the marks.
        """
        text = self._any_case.sub(lambda name: name[0][:1] + self._quoted + name[0][1:], text)
        body = text.rstrip()
        longest = max(map(len, self.controls.values()), default=0)
        for length in range(min(longest - 1, len(body)), 0, -1):
            begun = body[-length:].lower()
            if any(name.lower().startswith(begun) for name in self.controls.values()):
                place = len(body) - length + 1
                return text[:place] + self._quoted + text[place:]
        return text

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids.

        Args:
            ids: Token ids.
            special: Show control tokens instead of leaving them out.

        Raises:
            TamizError: The vocabulary has no such token.
        """
        stream = self.stream(special)
        return "".join(map(stream.push, ids)) + stream.end()

    def stream(self, special: bool = False) -> TextStream:
        """Decodes token by token."""
        return TextStream(self, special)

    def special(self, key: str) -> str | None:
        """The text of a token that the settings name, `eos_token` for one; None if they do not."""
        return content(self.settings.get(key))

    def ids_of(self, names: Iterable[str]) -> dict[str, int]:
        """Ids of the tokens with these names, as far as there are such."""
        named_ids = ((name, self._library.token_to_id(name)) for name in names)
        return {name: token for name, token in named_ids if token is not None}

    def lacks(self, ids: Iterable[int]) -> list[int]:
        """Those of the token ids that the vocabulary does not have."""
        return [token for token in ids if not self._has(token)]

    def _has(self, token: int) -> bool:
        exists = 0 <= token < 1 << 32 and self._library.id_to_token(token) is not None
        return exists and token not in self._marked

    def _find_controls(self) -> dict[int, str]:
        """Names of the control tokens by id: special ones, and those that the settings name."""
        named = [self.settings.get(key) for key in _NAMED]
        more = self.settings.get("additional_special_tokens")
        named += more if isinstance(more, list) else []
        contents = {content(token) for token in named}
        added = self._library.get_added_tokens_decoder()
        controls = {
            number: token
            for number, token in added.items()
            if token.content and (token.special or token.content in contents)
        }
        for token in controls.values():
            token.special = True
        self._library.add_special_tokens(list(controls.values()))
        self._library.encode_special_tokens = True
        return {number: token.content for number, token in controls.items()}

    def _find_bytes(self) -> dict[int, bytes]:
        """Tokens that a decoder with byte fallback takes for bytes."""
        if "ByteFallback" not in f"{self._library.decoder}":
            return {}
        names = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}
        return {token: names[name] for name, token in self.ids_of(names).items()}

    def _add_marked(self) -> dict[int, int]:
        """Adds every control token under its marked name; returns its id by the id of that name."""
        added = self._library.get_added_tokens_decoder()
        twins = [
            tokenizers.AddedToken(
                self._written + name,
                lstrip=added[number].lstrip,
                rstrip=added[number].rstrip,
                normalized=False,
            )
            for number, name in self.controls.items()
        ]
        self._library.add_tokens(twins)
        after = self._library.get_added_tokens_decoder()
        numbers = {token.content: number for number, token in after.items()}
        pairs = zip(twins, self.controls, strict=True)
        return {numbers[twin.content]: number for twin, number in pairs}

    def _beginning(self, bundle: Bundle) -> list[int]:
        if not self.settings.get("add_bos_token", False):
            return []
        token = self.special("bos_token")
        number = None if token is None else self._library.token_to_id(token)
        if number is None:
            raise TamizError(
                f"{bundle.path / SETTINGS}: bos_token is {token!r}, which {VOCABULARY} lacks"
            )
        return [number]


class TextStream:
    """Text of tokens as they come; a character appears when its last byte has come.

    Bytes that are no character become U+FFFD: one for each byte of a token such as ``<0xF0>``, as
    the library decodes them, and one for each broken character of a byte-level vocabulary.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool) -> None:
        """Starts a text; see `Tokenizer.stream`."""
        self._tokenizer = tokenizer
        self._decode = partial(tokenizer._library.decode, skip_special_tokens=not special)
        #: Bytes of tokens of single bytes that are no character yet.
        self._bytes = codecs.getincrementaldecoder("utf-8")(_EACH)
        #: The last tokens whose text is complete: a token's text may depend on its neighbour.
        self._before: list[int] = []
        #: Tokens whose last character may be incomplete, and how much of their text was given.
        self._open: list[int] = []
        self._given = 0

    def push(self, token: int) -> str:
        """The text that `token` completes, possibly none.

        Raises:
            TamizError: The vocabulary has no such token.
        """
        if self._tokenizer.lacks([token]):
            path = self._tokenizer.path
            raise TamizError(f"{path}: has no token {token}, which was to be decoded")
        if token in self._tokenizer.bytes:
            text = self._close()
            self._before = [token]
            return text + self._bytes.decode(self._tokenizer.bytes[token])
        lost = self._bytes.decode(b"", final=True)
        self._open.append(token)
        text = self._text()
        whole = not text.endswith("\ufffd")
        new = text[self._given : None if whole else -1]
        self._given += len(new)
        if whole:
            self._before, self._open, self._given = self._open, [], 0
        return lost + new

    def end(self) -> str:
        """What is left of an unfinished character, as U+FFFD."""
        return self._close() + self._bytes.decode(b"", final=True)

    def _close(self) -> str:
        text = self._text()[self._given :] if self._open else ""
        self._open, self._given = [], 0
        return text

    def _text(self) -> str:
        """The text of the open tokens."""
        with malformed(self._tokenizer.path):
            before = self._decode(self._before) if self._before else ""
            text: str = self._decode(self._before + self._open)
        return text[len(before) :]


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    """Replaces every byte that is lost, as the library does; Python has one U+FFFD for several."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


_EACH = "tamiz-each-byte"
codecs.register_error(_EACH, _replace_each)


class _Lossy:
    """Finds characters that the library would leave out: BPE drops what has no token."""

    def __init__(self, library: tokenizers.Tokenizer, controls: dict[int, str]) -> None:
        """Notes what the vocabulary holds."""
        model = library.model
        self._drops = isinstance(model, tokenizers.models.BPE) and model.unk_token is None
        self._library = library
        self._byte_level = "ByteLevel" in f"{library.pre_tokenizer}{library.normalizer}"
        added = library.get_added_tokens_decoder()
        texts = (token.content for number, token in added.items() if number not in controls)
        self._known = set("".join(texts))

    def first_lost(self, text: str) -> str | None:
        """A character of the text that would be lost; None if all are kept."""
        if not self._drops:
            return None
        if self._library.normalizer is not None and not self._byte_level:
            text = self._library.normalizer.normalize_str(text)
        unknown = (character for character in set(text) if not self._has(character))
        return min(unknown, default=None)

    def _has(self, character: str) -> bool:
        if character in self._known:
            return True
        if self._byte_level:
            names = [_CHARACTER_OF[byte] for byte in character.encode()]
        else:
            if character.isspace() or self._library.token_to_id(character) is not None:
                return True
            names = [f"<0x{byte:02X}>" for byte in character.encode()]
        return all(self._library.token_to_id(name) is not None for name in names)


def _byte_table() -> dict[int, str]:
    """GPT-2's table: the printable character of each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {byte: chr(byte) for byte in visible}
    return table | {byte: chr(256 + place) for place, byte in enumerate(hidden)}


_CHARACTER_OF = _byte_table()


def content(token: Any) -> str | None:
    """Name of a token, which transformers writes as a string or with its flags."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


@contextmanager
def malformed(path: Path) -> Iterator[None]:
    """Turns what the library raises, its panics as well, into one sentence that names the file."""
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = " ".join(str(error).split())
        raise TamizError(f"{path}: not a file of the tokenizers library: {reason}") from error
