"""What a model loses at its outputs, against the dense model.

    loss of a row     ½ ‖y − ŷ‖² / ‖y‖²          1 − cosine where ŷ is as long as y
    loss of an output mean over rows

A row is an output along its last axis, or all of it where that axis has one number, such as a
score. A row of nearly nothing counts as one of a hundredth of the usual length. Of integers the
loss is the share that differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.bundle import MODEL, Bundle
from tamiz.files.errors import TamizError
from tamiz.files.onnx_versions import graph_inputs
from tamiz.interface import states
from tamiz.survey.sample_inputs import Feeds
from tamiz.survey.self_check import Reference
from tamiz.survey.whole_run import first_line, open_session, run_changed, tensors

#: Inputs that are made up.
_DRAWS = 8
#: Texts of a run.
_TEXTS = 8
#: Least length of a row, as a share of the root mean square length of an output's rows.
_LEAST = 0.01


def reads_texts(bundle: Bundle) -> bool:
    """Whether a model reads whole texts, and the bundle has the tokenizer for them."""
    return bundle.has_tokenizer and states.reads_texts(graph_inputs(bundle.model))


def references(
    dense: Bundle,
    samples: Sequence[Path],
    texts: Collection[NDArray[np.int64]],
    at_once: int,
    vocabulary: int | None = None,
) -> list[Reference]:
    """What a dense model gives on samples, else on texts, else on made-up inputs.

    Args:
        dense: Its bundle.
        samples: ``.npz`` files with an input each.
        texts: Token ids ``[texts, tokens]``, each part of texts of one length.
        at_once: Runs side by side.
        vocabulary: Integers of inputs that are made up are below this; None where it is not known.

    Returns:
        What it gives on each; nothing where no valid input is known.

    Raises:
        TamizError: It does not run.
    """
    if texts and not samples:
        return Reference.on(dense.model, _feeds(texts), at_once)
    return Reference.several(dense.model, _DRAWS, vocabulary, samples)


def losses(
    references: Sequence[Reference],
    candidate: Path,
    at_once: int,
    progress: Callable[[int], None] = lambda runs: None,
) -> dict[str, list[float]]:
    """The losses of each output, on each input.

    Args:
        references: What the dense model gives.
        candidate: Bundle of the other model.
        at_once: Runs side by side.
        progress: Takes the number of runs that are done.

    Raises:
        TamizError: It does not run.
    """
    lost: dict[str, list[float]] = {}
    try:
        session = open_session(candidate / MODEL)
        with ThreadPoolExecutor(at_once) as pool:
            runs = pool.map(lambda reference: run_changed(session, reference.feeds), references)
            for done, (reference, found) in enumerate(zip(references, runs, strict=True), 1):
                for name in reference.outputs.keys() & found.keys():
                    pair = (tensors([outputs[name]]) for outputs in (reference.outputs, found))
                    lost.setdefault(name, []).append(loss_of(*pair))
                progress(done)
    except Exception as error:  # onnxruntime raises a class for every status
        raise TamizError(f"{candidate}: {first_line(error)}") from error
    return lost


def loss_of(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """What the tensors of an output lose: the largest loss of one; infinite for another shape."""
    if len(expected) != len(found):
        return math.inf
    return max((_loss(*pair) for pair in zip(expected, found, strict=True)), default=0.0)


def _loss(expected: Any, found: Any) -> float:
    """The mean loss of the rows of a tensor; those that are not finite in `expected` are left
    out."""
    if expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind not in "fc":
        return float(np.mean(expected != found)) if expected.size else 0.0
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    size = expected.shape[-1] if expected.ndim and expected.shape[-1] > 1 else expected.size
    y, other = (v.astype(wide).reshape(-1, size) for v in (expected, found))
    known = np.isfinite(y).all(axis=1)
    y, other = y[known], other[known]
    if not y.size:
        return 0.0
    if not np.isfinite(other).all():
        return math.inf
    squares, errors = ((np.abs(v) ** 2).sum(axis=1) for v in (y, y - other))
    least = _LEAST**2 * squares.mean()
    if least == 0:
        return float(errors.any())
    return float((errors / np.maximum(squares, least)).mean() / 2)


def _feeds(parts: Iterable[NDArray[np.int64]]) -> Iterator[Feeds]:
    """Runs of a few texts of one length."""
    for texts in parts:
        for at in range(0, len(texts), _TEXTS):
            ids = texts[at : at + _TEXTS]
            mask = np.ones_like(ids)
            yield {"input_ids": ids, "attention_mask": mask, "token_type_ids": 1 - mask}
