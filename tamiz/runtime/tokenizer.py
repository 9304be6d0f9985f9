"""Text to token ids and back, from the files of a bundle.

Encoding runs `tokenizer.onnx` (onnxruntime-extensions). Decoding joins the bytes of the tokens:
onnxruntime-extensions' decoder emits U+FFFD inside characters of several bytes, which a stream
must not show.
"""

from __future__ import annotations

import codecs
import importlib.machinery
import importlib.util
import json
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError

MODEL = "tokenizer.onnx"
VOCABULARY = "tokenizer.json"
SETTINGS = "tokenizer_config.json"

_UNREADABLE = re.compile("[\0\ud800-\udfff]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """The tokenizer of a bundle.

    Attributes:
        settings: Contents of tokenizer_config.json.
    """

    def __init__(self, bundle: Bundle) -> None:
        """Loads it.

        Raises:
            TamizError: A file is missing or is not of the expected form.
        """
        if MODEL not in bundle.manifest.files:
            raise TamizError(f"{bundle.path}: has no {MODEL}, so it cannot read text")
        self.settings = bundle.json(SETTINGS)
        self._session = _session(bundle.file(MODEL))
        description = bundle.json(VOCABULARY)
        self._tokens = _Tokens(bundle.file(VOCABULARY), description)
        # The one normaliser that tokenizer.onnx has not.
        self._composes = '"NFC"' in json.dumps(description.get("normalizer"))
        self._bos = self._beginning(bundle)

    def encode(self, text: str, bos: bool = True) -> list[int]:
        """Token ids of a text; special tokens written in it are recognised.

        Args:
            text: The text.
            bos: Put the beginning-of-text token first if tokenizer_config.json says so
                (``add_bos_token``); a rendered chat template has its own.

        Raises:
            TamizError: The text holds what onnxruntime's strings cannot: a NUL, where they end, or
                half a character, which stands for input that was not UTF-8.
        """
        if bad := _UNREADABLE.search(text):
            raise TamizError(
                f"the text holds {bad[0]!r} at character {bad.start()}, expected UTF-8 without NUL"
            )
        if self._composes:
            text = unicodedata.normalize("NFC", text)
        ids: list[int] = self._session.run(None, {"text": np.array([text])})[0].tolist()
        return self._bos + ids if bos else ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """The text of token ids.

        Args:
            ids: Token ids.
            special: Show special tokens instead of leaving them out.
        """
        stream = self.stream(special)
        return "".join(map(stream.push, ids)) + stream.end()

    def stream(self, special: bool = False) -> TextStream:
        """Decodes token by token."""
        return TextStream(self._tokens, special)

    def _beginning(self, bundle: Bundle) -> list[int]:
        if not self.settings.get("add_bos_token", False):
            return []
        token = self.settings.get("bos_token")
        if isinstance(token, dict):  # as transformers writes a token with its flags
            token = token.get("content")
        if not isinstance(token, str) or token not in self._tokens.ids:
            raise TamizError(
                f"{bundle.path / SETTINGS}: bos_token is {token!r}, which {VOCABULARY} lacks"
            )
        return [self._tokens.ids[token]]


class TextStream:
    """Text of tokens as they come; a character appears when its last byte has come."""

    def __init__(self, tokens: _Tokens, special: bool) -> None:
        """Starts a text; see `Tokenizer.stream`."""
        self._tokens = tokens
        self._hidden = frozenset() if special else tokens.special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drop_space = tokens.drops_first_space

    def push(self, token: int) -> str:
        """The text that `token` completes, possibly none.

        Raises:
            TamizError: The vocabulary has no such token.
        """
        if token in self._hidden:
            return ""
        data = self._tokens.bytes_of(token)
        if self._drop_space and data:
            data = data.removeprefix(b" ")
            self._drop_space = False
        return self._decoder.decode(data)

    def end(self) -> str:
        """What is left of an unfinished character, as U+FFFD."""
        return self._decoder.decode(b"", True)


class _Tokens:
    """The bytes of every token, from a ``tokenizer.json`` of byte-level or SentencePiece style."""

    def __init__(self, path: Path, description: dict[str, Any]) -> None:
        self._path = path
        try:
            vocabulary: dict[str, int] = dict(description["model"]["vocab"])
            added: dict[str, int] = {t["content"]: t["id"] for t in description["added_tokens"]}
            special = {t["id"] for t in description["added_tokens"] if t.get("special")}
            self._added = {token: content.encode() for content, token in added.items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise TamizError(
                f"{path}: expected model.vocab (token → id) and added_tokens (content, id,"
                f" special): {error!r}"
            ) from error
        decoder = json.dumps(description.get("decoder"))
        self._bytes_of_text = _byte_level if "ByteLevel" in decoder else _sentence_piece
        self.drops_first_space = "Strip" in decoder
        self.ids = vocabulary | added
        self.special = frozenset(special)
        self._text = {token: text for text, token in vocabulary.items()}

    def bytes_of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token]
        try:
            return self._bytes_of_text(self._text[token])
        except KeyError as error:
            raise TamizError(
                f"{self._path}: token {token} is {self._text.get(token)!r}, expected a token of"
                " the vocabulary in its decoder's alphabet"
            ) from error


def _byte_table() -> dict[str, int]:
    """GPT-2's table: the printable character that stands for each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    table = {chr(byte): byte for byte in visible}
    return table | {chr(256 + place): byte for place, byte in enumerate(hidden)}


_BYTE_OF = _byte_table()


def _byte_level(token: str) -> bytes:
    return bytes(_BYTE_OF[character] for character in token)


def _sentence_piece(token: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace("▁", " ").encode()


def _session(path: Path) -> ort.InferenceSession:
    """A session with onnxruntime-extensions' ops.

    The library is looked up without importing its package, which imports onnx.
    """
    package = importlib.util.find_spec("onnxruntime_extensions")
    if package is None or package.origin is None:
        raise TamizError(
            "onnxruntime-extensions is not installed; install it to encode text:"
            " pip install onnxruntime-extensions"
        )
    native = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    library = next(
        path
        for path in Path(package.origin).parent.glob("_extensions_pydll*")
        if path.name.endswith(native)
    )
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # errors are raised, and told once
    options.register_custom_ops_library(str(library))
    try:
        return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = str(error).strip().splitlines()[0]
        raise TamizError(f"{path}: onnxruntime cannot load it: {reason}") from error
