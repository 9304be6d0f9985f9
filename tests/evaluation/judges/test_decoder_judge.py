"""The judge of decoders: what a budget bounds, and which windows are read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tamiz.calibration.file import Calibration
from tamiz.evaluation.evaluate import Comparison, Perplexities
from tamiz.evaluation.judges.decoder import DecoderJudge, first_step, joined, quality
from tamiz.evaluation.judges.judge import share
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal


def lost(dppl: float, kl: float, kl_decode: float | None = None) -> float:
    """The loss of a comparison."""
    ppl = Perplexities(1.0, 1.0)
    compared = Comparison(ppl, ppl, dppl, kl, top1_agreement=1.0, kl_decode=kl_decode)
    return quality(compared, Goal(max_dppl=0.02), exact=False).loss


def test_a_budget_bounds_perplexity_and_divergence() -> None:
    assert lost(0.02, 0.01) == math.log1p(0.02)
    assert lost(-0.01, 0.01) == 0.01
    assert lost(0.02, 0.01, 0.03) == 0.03
    assert lost(math.nan, 0.01) == math.inf
    assert lost(0.02, math.nan) == math.inf


@pytest.mark.parametrize(
    ("goal", "used"),
    [
        (Goal(max_dppl=0.03), 0.02 / math.log1p(0.03)),
        (Goal(max_kl=0.01), 2.0),
        (Goal(max_dppl=0.03, max_kl=0.1), 0.02 / math.log1p(0.03)),
        (Goal(max_bytes=1), 0.0),
    ],
)
def test_the_tightest_limit_is_used(goal: Goal, used: float) -> None:
    ppl = Perplexities(1.0, 1.0)
    compared = Comparison(ppl, ppl, dppl=0.01, kl_mean=0.02, top1_agreement=1.0)
    assert quality(compared, goal, exact=False).used == pytest.approx(used)


def test_a_limit_of_nothing_is_used_up_or_exceeded() -> None:
    assert share(0.0, 0.0, exact=False) == 1
    assert share(1e-9, 0.0, exact=True) == 1  # rounding
    assert share(1e-9, 0.0, exact=False) == math.inf


def test_windows_are_as_long_as_techniques_need() -> None:
    windows = [f"{i}" for i in range(9)]
    calibration = Calibration("", {}, {}, windows=windows, origins=["a"] * 9, kept=list(range(9)))
    calibration.tokens = [[i] * 512 for i in range(9)]
    held_out = calibration.held_out
    assert held_out == calibration.tokens[6:]  # at most half of them, from an even one on
    assert joined(held_out, 512) == held_out
    assert joined(held_out, 1023) == held_out
    assert joined(held_out, 1024) == [[6] * 512 + [7] * 512]
    everything = [[6] * 512 + [7] * 512 + [8] * 512]
    assert joined(held_out, 4096) == everything
    assert first_step(everything) == 3 * 512 - 256
    assert first_step([[1] * 1024]) == 768
    assert first_step(held_out) == 256
    assert first_step([[1] * 24]) == 16


def test_a_limit_of_another_kind_of_model_is_refused() -> None:
    goal = Goal(max_dppl=0.02, min_cosine=0.99)
    assert DecoderJudge.applicable(goal, Path("model")) == Goal(max_dppl=0.02)
    with pytest.raises(TamizError, match="model: --min-cosine bounds the embeddings"):
        DecoderJudge.applicable(Goal(min_cosine=0.99), Path("model"))
