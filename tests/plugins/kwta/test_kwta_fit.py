"""The thresholds that kwta fits."""

from typing import Any

import numpy as np
import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Sensitivity, Statistics
from tamiz.api.technique import Fit, FitError
from tamiz_kwta.config import KwtaConfig
from tamiz_kwta.fit import fit

N, K = 48, 64
SITE = Site("layers.0.ffn_gate", SiteKind.LINEAR, "n", 0, "ffn_gate", "w", K, N)
SAMPLES = np.random.default_rng(0).laplace(size=(300, K)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(size=(N, K)).astype(np.float32)


LOSSES = np.random.default_rng(2).uniform(0.5, 2, K).astype(np.float32)
#: A strength at which some inputs are worth their weights and some are not.
STRENGTH = 100.0


def fitted(
    scale: float = 1.0,
    losses: np.ndarray | None = LOSSES,
    tokens: np.ndarray | None = None,
    **fields: Any,
) -> Fit:
    mean = np.square(SAMPLES).mean(axis=0)
    sensitivity = None if losses is None else Sensitivity(losses, tokens)
    known = Statistics(300, mean, SAMPLES, sensitivity=sensitivity)
    return fit(SITE, scale * WEIGHT, known, KwtaConfig(max_keep=1.0, **fields))


def test_what_costs_less_than_its_weights_are_worth_is_left_out() -> None:
    once, more = fitted(strength=STRENGTH), fitted(strength=2 * STRENGTH)
    threshold = float(once.attributes["threshold"])
    assert 2 * threshold**2 == pytest.approx(float(more.attributes["threshold"]) ** 2)
    kept = np.square(SAMPLES) * LOSSES >= threshold**2
    assert once.metrics["keep"] == pytest.approx(kept.mean(), abs=1e-3)
    assert 0.3 < more.metrics["keep"] < once.metrics["keep"] < 0.95
    lost = np.where(kept, 0, np.square(SAMPLES) * LOSSES).sum(axis=1).mean()
    assert once.metrics["loss"] == pytest.approx(lost, rel=1e-4)


def test_the_weights_do_not_matter_where_it_is_known_what_errors_cost() -> None:
    one, other = fitted(strength=STRENGTH), fitted(5.0, strength=STRENGTH)
    assert one.attributes == other.attributes
    np.testing.assert_array_equal(one.tensors["score"], other.tensors["score"])


def test_blocks_and_plain_scores_have_the_same_exchange_rate() -> None:
    plain, weighted = (fitted(strength=STRENGTH, weighted=w) for w in (False, True))
    assert plain.metrics["keep"] == pytest.approx(weighted.metrics["keep"], abs=0.03)
    triples = fitted(strength=STRENGTH, block=3)
    ratio = float(triples.attributes["threshold"]) / float(weighted.attributes["threshold"])
    assert ratio == pytest.approx(np.sqrt(3))
    groups = [LOSSES[i : i + 3].mean() for i in range(0, K, 3)]
    np.testing.assert_allclose(triples.tensors["score"], np.sqrt(groups), rtol=1e-5)


def test_the_threshold_of_a_token_follows_what_its_input_predicts() -> None:
    tokens = np.append(np.linspace(-0.3, 0.3, K), 0.1).astype(np.float32)
    made = fitted(strength=STRENGTH, tokens=tokens)
    slope, offset = made.tensors["slope"], float(made.attributes["offset"])
    np.testing.assert_allclose(np.append(slope, offset) / tokens, 0.35, rtol=1e-5)
    told = np.clip(SAMPLES @ slope + offset, -np.log(2), np.log(2))[:, np.newaxis]
    least = float(made.attributes["threshold"]) * np.exp(-told)
    kept = np.abs(SAMPLES) * made.tensors["score"] >= least
    assert made.metrics["keep"] == pytest.approx(kept.mean(), abs=1e-3)
    lost = (np.where(kept, 0, np.square(SAMPLES) * LOSSES) * np.exp(2 * told)).sum(axis=1)
    assert made.metrics["loss"] == pytest.approx(lost.mean(), rel=1e-3)
    site = fitted(strength=STRENGTH)
    assert "slope" not in site.tensors
    assert made.attributes["threshold"] == site.attributes["threshold"]


def test_a_fraction_that_is_set_is_the_same_for_all_tokens() -> None:
    assert "slope" not in fitted(k=0.5, tokens=np.ones(K + 1, np.float32)).tensors


def test_inputs_whose_errors_cost_nothing_are_kept_to_a_quarter() -> None:
    assert fitted(losses=1e-12 * LOSSES).metrics["keep"] == pytest.approx(0.25, abs=0.01)


def test_a_site_where_errors_cost_much_is_refused() -> None:
    mean, costly = np.square(SAMPLES).mean(axis=0), Sensitivity(1e6 * LOSSES)
    known = Statistics(300, mean, SAMPLES, sensitivity=costly)
    with pytest.raises(FitError, match=r"keep 1\.00 of its inputs, more than max_keep, 0\.75"):
        fit(SITE, WEIGHT, known, KwtaConfig())


def test_a_fraction_that_is_set_comes_before_what_errors_cost() -> None:
    made = fitted(k=0.5)
    assert made.metrics["keep"] == pytest.approx(0.5, abs=0.01)
    np.testing.assert_allclose(made.tensors["score"], np.linalg.norm(WEIGHT, axis=0), rtol=1e-5)
    assert "loss" not in made.metrics


def test_without_them_a_site_skips_a_fixed_part() -> None:
    assert fitted(losses=None, strength=1.0).metrics["keep"] == pytest.approx(0.84, abs=0.01)
