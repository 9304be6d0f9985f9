"""Runs an encoder bundle in onnxruntime: token ids to embeddings.

e = s / ‖s‖        s = Σ_t h_t, or h_0 where the first token stands for the text

h_t is the model's first output at position t.
"""

from __future__ import annotations

import os
from collections.abc import Sequence as Ids

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.session import load_session

Float32 = NDArray[np.float32]

_INPUTS = {"input_ids", "attention_mask", "token_type_ids"}
#: Says how sentence-transformers makes an embedding of hidden states.
_POOLING = "1_Pooling/config.json"
#: Model types whose positions begin after the id of the padding token.
_AFTER_PADDING = {"camembert", "mpnet", "roberta", "xlm-roberta"}


class Encoder:
    """An encoder bundle, loaded. Several threads may run it.

    Attributes:
        bundle: The bundle.
        width: Numbers of an embedding.
        first: Whether the first token stands for a text.
    """

    def __init__(
        self, bundle: Bundle, session: ort.InferenceSession, constants: Ids[ort.OrtValue] = ()
    ) -> None:
        """Wraps a session and the constants that were read for it; use `load_model`.

        Raises:
            TamizError: The model takes or gives something else than an encoder does.
        """
        self.bundle, self.first = bundle, takes_first_token(bundle)
        self._session, self._constants = session, constants
        self._inputs = [value.name for value in session.get_inputs()]
        first = session.get_outputs()[0]
        if "input_ids" not in self._inputs or set(self._inputs) - _INPUTS:
            found = ", ".join(self._inputs)
            raise TamizError(
                f"{bundle.model}: takes {found}, expected a decoder with a KV cache, or an encoder "
                f"with input_ids and at most {', '.join(sorted(_INPUTS - {'input_ids'}))}"
            )
        if first.type != "tensor(float)" or len(first.shape) != 3:
            raise TamizError(
                f"{bundle.model}: gives {first.name}, {first.type} {first.shape}, expected floats "
                "[texts, tokens, width]"
            )
        self.width = int(first.shape[-1])
        self._output = first.name

    def embeddings(self, ids: NDArray[np.int64]) -> Float32:
        """Embeddings of texts of the same length.

        Args:
            ids: Token ids ``[texts, tokens]``, with those that begin and end a text.

        Returns:
            ``[texts, width]``, each of length 1.
        """
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        given["token_type_ids"] = np.zeros_like(ids)
        feeds = {name: given[name] for name in self._inputs}
        hidden = self._session.run([self._output], feeds)[0]
        sums = hidden[:, 0] if self.first else hidden.sum(axis=1)
        found: Float32 = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return found


def load_model(
    directory: str | os.PathLike[str], threads: int | None = None, without: Ids[str] = ()
) -> Model | Encoder:
    """Opens a bundle of a decoder or of an encoder.

    Args:
        directory: The bundle.
        threads: Threads that work on one run; None leaves it to onnxruntime (physical cores).
        without: Techniques of a decoder to switch off.

    Raises:
        TamizError: No valid bundle, or onnxruntime refuses it; or one of `without` cannot be
            switched off.
    """
    bundle = Bundle.open(directory)
    session, constants = load_session(bundle, threads)
    if any(value.name == "logits" for value in session.get_outputs()):
        return Model(bundle, session, constants, without)
    if without:
        raise TamizError(
            f"{bundle.path}: is an encoder, of which nothing can be switched off, found "
            f"--without={','.join(without)}"
        )
    return Encoder(bundle, session, constants)


def takes_first_token(bundle: Bundle) -> bool:
    """Whether the first token stands for a text, as models of sentence-transformers may say."""
    if _POOLING not in bundle.manifest.files:
        return False
    return bundle.json(_POOLING).get("pooling_mode_cls_token") is True


def most_tokens(bundle: Bundle) -> int | None:
    """Tokens that a sequence can have; None where config.json does not say."""
    config = bundle.json("config.json")
    limit, padding = (config.get(name) for name in ("max_position_embeddings", "pad_token_id"))
    if not isinstance(limit, int) or limit <= 0:
        return None
    if config.get("model_type") in _AFTER_PADDING and isinstance(padding, int):
        limit -= padding + 1
    return max(limit, 1)
