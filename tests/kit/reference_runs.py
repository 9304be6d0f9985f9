"""Comparing a bundle with logits and greedy tokens of another program."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tamiz.runtime.model import Model


def ids() -> np.ndarray:
    """The 33 tokens of a prompt."""
    return np.random.default_rng(1).integers(0, 250, (1, 33))


def check(bundle: Path, reference: Mapping[str, Any], bound: float) -> None:
    """Compares ids 0 to 7 of the logits after `ids`, and the 50 greedy tokens after them.

    Args:
        bundle: A dense bundle.
        reference: ``logits`` and ``greedy``.
        bound: Of the largest logit.
    """
    model = Model.load(bundle, threads=1)
    logits, expected = model.logits(ids())[0, -1], reference["logits"]
    assert np.abs(logits[:8] - expected).max() / np.abs(logits).max() < bound
    sequence, greedy = model.sequence(), list[int]()
    row = sequence.read(ids()[0].tolist())
    for _ in range(50):
        greedy.append(int(row.argmax()))
        row = sequence.step(greedy[-1])
    assert greedy == reference["greedy"]
