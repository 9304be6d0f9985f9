"""An answer takes drafts that are right, also where a grammar forces several tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.answer import Answer
from tamiz.serving.recalled import Past
from tamiz.serving.requests import Job


class Forcing:
    """A grammar that allows all tokens, and forces some after each that is drawn."""

    ended = False

    def __init__(self, after: dict[int, list[int]]) -> None:
        self._after, self._last = after, 0

    def allow(self, logits: np.ndarray) -> np.ndarray:
        return logits

    def consume(self, token: int) -> None:
        self._last = token

    def forced(self) -> list[int]:
        return self._after.get(self._last, [])


@pytest.mark.parametrize(
    ("likeliest", "forced", "drafts", "right", "following"),
    [
        ([5, 6, 7], {}, [5, 6], 2, [7]),
        ([5, 9, 7], {}, [5, 6], 1, [9]),
        ([5, 0, 7, 9, 0], {5: [6]}, [5, 6, 7, 8], 3, [9]),
        ([5, 0], {5: [6, 7]}, [5], 1, [6, 7]),
        ([5, 0, 0], {5: [6, 7]}, [5, 9], 1, [6, 7]),
        ([5, 0, 0], {5: [6]}, [5, 6], 2, [0]),
        ([5], {5: [6]}, [], 0, [5, 6]),
    ],
)
def test_drafts_that_a_grammar_forces_are_right(
    model: Model,
    likeliest: list[int],
    forced: dict[int, list[int]],
    drafts: list[int],
    right: int,
    following: list[int],
) -> None:
    matcher: Any = Forcing(forced)
    job = Job([3, 4], Sampling(), 100, lambda event: None, matcher=matcher)
    answer = Answer(job, model, Tokenizer(model.bundle), Past())
    rows = np.zeros((len(likeliest), model.vocabulary), np.float32)
    rows[np.arange(len(likeliest)), likeliest] = 1
    assert answer.advance(rows, drafts) == (right, following)
    assert answer.tokens == [*drafts[:right], *following]
