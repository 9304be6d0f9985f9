"""Runs the graph of an encoder, with or without a head, on token ids."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.interface.states import TEXT_BEGINS, TEXTS, reads_texts

Float32 = NDArray[np.float32]

#: Tokens of a run without padding. What the layers of more tokens compute does not stay in the
#: caches; fewer would read the weights too often.
RUN_TOKENS = 1024


class TextSession:
    """A session that reads texts. Several threads may run it.

    Attributes:
        bundle: The bundle.
        output: Its first output.
        packs: Whether a run can have texts of different lengths without padding.
    """

    def __init__(
        self, bundle: Bundle, session: ort.InferenceSession, constants: Ids[ort.OrtValue] = ()
    ) -> None:
        """Wraps a session and the constants that were read for it.

        Raises:
            TamizError: The model takes something else than an encoder does.
        """
        self.bundle = bundle
        self._session, self._constants = session, constants
        self._inputs = [value.name for value in session.get_inputs()]
        optional = {value.name for value in session.get_overridable_initializers()}
        self.packs = TEXT_BEGINS in optional
        self.output: Any = session.get_outputs()[0]
        if not reads_texts(self._inputs):
            found = ", ".join(self._inputs)
            raise TamizError(
                f"{bundle.model}: takes {found}, expected a decoder with a KV cache, or an encoder "
                f"with input_ids and at most {', '.join(sorted(TEXTS - {'input_ids'}))}"
            )

    def run(
        self,
        ids: NDArray[np.int64],
        mask: NDArray[np.int64],
        types: NDArray[np.int64] | None = None,
    ) -> Float32:
        """The first output.

        Args:
            ids: Token ids ``[texts, tokens]``.
            mask: ``[texts, tokens]``: 1 for a token, 0 for padding.
            types: Kinds of the tokens; None for 0.
        """
        types = np.zeros_like(ids) if types is None else types
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        feeds = {name: given[name] for name in self._inputs}
        found: Float32 = self._session.run([self.output.name], feeds)[0]
        return found

    def run_packed(
        self, rows: Ids[Ids[int]], types: Ids[Ids[int]] | None = None
    ) -> Iterator[tuple[slice, Float32]]:
        """Runs texts that follow each other in one row, if the model `packs`.

        Args:
            rows: Token ids of each text.
            types: Kinds of the tokens; None for 0.

        Yields:
            Which texts a run had, and the first output for them. A run has at most `RUN_TOKENS`
            tokens, or one text.
        """
        for texts in runs([len(row) for row in rows]):
            yield texts, self._run_packed(rows[texts], None if types is None else types[texts])

    def _run_packed(self, rows: Ids[Ids[int]], types: Ids[Ids[int]] | None) -> Float32:
        ids, begins = _joined(rows), np.repeat(*_begins(rows))
        given = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids) if types is None else _joined(types),
        }
        feeds = {name: given[name] for name in self._inputs}
        if len(rows) > 1:
            feeds[TEXT_BEGINS] = begins
        found: Float32 = self._session.run([self.output.name], feeds)[0]
        return found


def runs(lengths: Ids[int]) -> Iterator[slice]:
    """Texts of each run without padding.

    Args:
        lengths: Tokens of each text.
    """
    first = tokens = 0
    for number, length in enumerate(lengths):
        if number > first and tokens + length > RUN_TOKENS:
            yield slice(first, number)
            first, tokens = number, 0
        tokens += length
    if lengths:
        yield slice(first, len(lengths))


def _joined(rows: Ids[Ids[int]]) -> NDArray[np.int64]:
    """The tokens of all texts, ``[1, tokens]``."""
    return np.concatenate([np.asarray(row, np.int64) for row in rows])[None]


def _begins(rows: Ids[Ids[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first token of each text, and its tokens."""
    lengths = np.array([len(row) for row in rows], np.int64)
    return np.cumsum(lengths) - lengths, lengths


def padded(rows: Ids[Ids[int]], filling: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows of different lengths as one array, padded on the right, and the mask of what is not.

    Args:
        rows: Token ids, or whatever each token has.
        filling: What stands at padding.
    """
    found = np.full((len(rows), max(map(len, rows), default=0)), filling, np.int64)
    mask = np.zeros_like(found)
    for row, of_row, given in zip(found, mask, rows, strict=True):
        row[: len(given)], of_row[: len(given)] = given, 1
    return found, mask


def padding_of(bundle: Bundle) -> int:
    """The id of padding, at which models such as RoBERTa recognise it."""
    config = bundle.json("config.json") if "config.json" in bundle.manifest.files else {}
    number = config.get("pad_token_id")
    return number if type(number) is int and number >= 0 else 0
