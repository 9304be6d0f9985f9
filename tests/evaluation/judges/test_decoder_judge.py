"""The judge of decoders: what a budget bounds, and which windows are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tamiz.calibration.calibration import Calibration
from tamiz.evaluation.comparison import Comparison, DomainLoss, Perplexities, comparison
from tamiz.evaluation.judges.decoder import (
    DecoderJudge,
    by_domain,
    first_step,
    joined,
    quality,
)
from tamiz.evaluation.judges.judge import share, unseen, upper
from tamiz.evaluation.windows import Window
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
    calibration.weights = [1.0] * 9
    held_out = [list(window.tokens) for window in calibration.held_out]
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


def test_windows_of_all_domains_are_read_as_often() -> None:
    windows = [Window("a", [1] * 512)] * 8 + [Window("b", [2] * 512)] * 4 + [Window("c", [3] * 512)]
    chosen = by_domain(windows, 512)
    assert [w.origin for w in chosen] == ["a"] * 3 + ["b"] * 3 + ["c"]
    chosen = by_domain(windows, 2048)
    assert [(w.origin, len(w.tokens)) for w in chosen] == [("a", 2048)] * 2 + [("b", 2048)]
    alone = by_domain(windows[:8], 1024)
    assert [len(w.tokens) for w in alone] == [1024] * 4


def test_an_upper_bound_is_over_the_mean_and_half_of_the_worst_domain() -> None:
    assert upper(0.01, None) == 0.01
    assert upper(0.01, 0.001) == pytest.approx(0.012)
    assert upper(0.01, 0.001, [0.004, 0.05]) == 0.025


def test_a_new_domain_loses_more_where_domains_differ() -> None:
    assert unseen([0.01, 0.02]) == 0.02
    assert unseen([0.01] * 5) == pytest.approx(0.01)
    # Left out in turn: 0.03 - 0.01, and three times 0.01 - 0.05 / 3.
    spread = math.sqrt((0.02**2 + 3 * (0.02 / 3) ** 2) / 4)
    assert unseen([0.03, 0.01, 0.01, 0.01]) == pytest.approx(0.015 + 1.2816 * spread)


def test_limits_hold_the_bounds_and_not_the_means() -> None:
    ppl = Perplexities(1.0, 1.0)
    even = tuple(DomainLoss(name, 3, 0.01, 0.01) for name in "abcd")
    compared = Comparison(ppl, ppl, 0.01, 0.01, top1_agreement=1.0, domains=even)
    goal = Goal(max_dppl=0.02)
    assert quality(compared, goal, exact=False).used == pytest.approx(0.01 / math.log1p(0.02))
    odd = (*even[:3], DomainLoss("d", 3, 0.05, 0.01))
    compared = Comparison(ppl, ppl, 0.01, 0.01, top1_agreement=1.0, domains=odd)
    found = quality(compared, goal, exact=False)
    assert found.used == pytest.approx(math.log1p(0.05) / 2 / math.log1p(0.02))
    assert [domain.name for domain in found.domains] == list("abcd")


def test_domains_count_alike_however_many_windows_they_have() -> None:
    def window(lost: float) -> np.ndarray:
        scores = np.zeros((9, 40))
        scores[1:3] = lost
        return scores

    scores = [window(0.01), window(0.03), window(0.04), window(0.06)]
    found = comparison(scores, None, ["a", "a", "b", "c"])
    assert found.kl_mean == pytest.approx((0.02 + 0.04 + 0.06) / 3)
    assert found.dppl == pytest.approx(math.expm1(0.04))
    assert found.kl_error == pytest.approx(0.02 / math.sqrt(3))
    assert [each.kl_error for each in found.domains] == [pytest.approx(0.01), None, None]
    assert comparison(scores, None).kl_mean == pytest.approx(0.035)
