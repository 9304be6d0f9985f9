"""Scores of a bundle that is neither a decoder nor an encoder: its outputs beside another's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def of_outputs(
    built: Bundle,
    dense: Bundle,
    samples: Sequence[Path],
    texts: Sequence[NDArray[np.int64]],
    at_once: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Cosines of a model's outputs with those of another.

    Args:
        built: The bundle.
        dense: What to compare with.
        samples: ``.npz`` files with an input each.
        texts: Token ids ``[texts, tokens]``, each part of texts of one length. Without samples and
            texts inputs are made up.
        at_once: Runs side by side.
        progress: Takes a sentence that says how far the scoring is.

    Returns:
        ``outputs``: ``cosine`` of each by name; and ``output_cosine``, the smallest of them.

    Raises:
        TamizError: A model does not run, or no valid input is known.
    """
    from tamiz.evaluation.output_losses import losses, references

    known = references(dense, samples, texts, at_once)
    if not known:
        raise TamizError(f"{dense.path}: no valid input is known; give some with --sample")

    def done(runs: int) -> None:
        progress(f"{runs} of {len(known)} runs are compared")

    lost = losses(known, built.path, at_once, done)
    if not lost:
        raise TamizError(f"{built.path}: has no output that {dense.path} has")
    for name, each in lost.items():
        if not math.isfinite(sum(each)):
            raise TamizError(
                f"{built.path}: output {name} has another shape than in {dense.path}, or is not "
                "finite; expected a bundle of the same model"
            )
    outputs = {name: {"cosine": 1 - sum(each) / len(each)} for name, each in lost.items()}
    return {"outputs": outputs, "output_cosine": min(each["cosine"] for each in outputs.values())}


def texts_of(
    bundle: Bundle, text: Path | None, domains: Sequence[str], count: int, length: int
) -> list[NDArray[np.int64]]:
    """Texts ``[texts, tokens]`` of a file, and of domains of the text that ships with tamiz.

    Args:
        bundle: Has the tokenizer.
        text: UTF-8 text; None for none.
        domains: Names of domains.
        count: Texts of the file at most.
        length: Tokens of each.

    Raises:
        TamizError: A text cannot be read or tokenised, or is too short.
    """
    from tamiz.calibration.calibrate import window_length
    from tamiz.calibration.domains import shipped_windows
    from tamiz.evaluation.embeddings import read_texts
    from tamiz.evaluation.judges.encoder import passages_and_queries

    found = [] if text is None else [read_texts(text, bundle, None, length, count)]
    if domains:
        windows = shipped_windows(bundle, "judge", window_length(bundle), domains)
        found += passages_and_queries(windows, bundle).values()
    return found
