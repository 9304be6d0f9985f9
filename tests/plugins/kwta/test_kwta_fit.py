"""The thresholds that kwta fits."""

from typing import Any

import numpy as np
import pytest

from tamiz.site import Site, SiteKind
from tamiz.statistics import Statistics
from tamiz.technique import Fit, FitError
from tamiz_kwta.config import KwtaConfig
from tamiz_kwta.fit import fit

N, K = 48, 64
SITE = Site("layers.0.ffn_gate", SiteKind.LINEAR, "n", 0, "ffn_gate", "w", K, N)
SAMPLES = np.random.default_rng(0).laplace(size=(300, K)).astype(np.float32)
WEIGHT = np.random.default_rng(1).normal(size=(N, K)).astype(np.float32)


def fitted(scale: float = 1.0, **fields: Any) -> Fit:
    known = Statistics(300, np.square(SAMPLES).mean(axis=0), SAMPLES)
    return fit(SITE, scale * WEIGHT, known, KwtaConfig(max_keep=1.0, **fields))


def test_the_loss_for_a_weight_is_the_same_wherever_a_sensitivity_is_known() -> None:
    energy = np.square(SAMPLES @ WEIGHT.T, dtype=np.float64).sum(axis=1).mean()
    rates = []
    for scale, sensitivity, strength in (
        (1.0, 1.0, 4000.0),
        (1.0, 3.0, 12000.0),
        (5.0, 1.0, 4000.0),
    ):
        made = fitted(scale, sensitivity=sensitivity, strength=strength)
        threshold = float(made.attributes["threshold"])
        assert 0.3 < made.metrics["keep"] < 0.95
        rates.append(sensitivity * threshold**2 / (scale**2 * energy * N) / strength)
    np.testing.assert_allclose(rates, rates[0], rtol=1e-5)


def test_blocks_and_plain_scores_have_the_same_exchange_rate() -> None:
    plain, weighted = (
        fitted(sensitivity=1.0, strength=4000.0, weighted=weighted) for weighted in (False, True)
    )
    assert plain.metrics["keep"] == pytest.approx(weighted.metrics["keep"], abs=0.02)
    pairs = fitted(sensitivity=1.0, strength=4000.0, block=2)
    ratio = float(pairs.attributes["threshold"]) / float(weighted.attributes["threshold"])
    assert ratio == pytest.approx(np.sqrt(2))


def test_a_site_of_no_sensitivity_keeps_a_quarter() -> None:
    assert fitted(sensitivity=1e-12).metrics["keep"] == pytest.approx(0.25, abs=0.01)


def test_a_sensitive_site_that_would_keep_much_is_refused() -> None:
    known = Statistics(300, np.square(SAMPLES).mean(axis=0), SAMPLES)
    with pytest.raises(
        FitError, match=r"keep 1\.00 of its inputs, more than --kwta-max-keep 0\.75"
    ):
        fit(SITE, WEIGHT, known, KwtaConfig(sensitivity=1e6))


def test_a_fraction_that_is_set_comes_before_the_sensitivity() -> None:
    assert fitted(sensitivity=1e6, k=0.5).metrics["keep"] == pytest.approx(0.5, abs=0.01)
