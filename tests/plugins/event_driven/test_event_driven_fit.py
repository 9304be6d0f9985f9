"""What event-driven chooses from consecutive inputs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tamiz.api.cost import Cost
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import FitError
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.fit import effect, fit
from tamiz_event_driven.selection import DENSE_FIRST, Reference, persistence, simulate

N, K = 24, 64
COST = Cost(4 * 10**6, 4 * 10**6)
SITE = Site("layers.0.attn_q", SiteKind.LINEAR, "q", 0, "attn_q", "w", K, N)


def inputs(alpha: float, mean: float = 0.0, tokens: int = 400) -> np.ndarray:
    """AR(1) of that persistence, unit variance, with means of that size."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((tokens, K))
    x = noise.copy()
    for t in range(1, tokens):
        x[t] = alpha * x[t - 1] + np.sqrt(1 - alpha**2) * noise[t]
    return (x + mean * rng.standard_normal(K)).astype(np.float32)


def fitted(x: np.ndarray, **fields: Any) -> Any:
    fields = {"anywhere": True} | fields
    weight = np.random.default_rng(1).standard_normal((N, K)).astype(np.float32)
    statistics = Statistics(len(x), np.square(x).mean(axis=0), x, run=x)
    return fit(SITE, weight, statistics, EventDrivenConfig(**fields))


@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_persistence_is_that_of_the_process(alpha: float) -> None:
    x = inputs(alpha, mean=2.0)
    found = persistence(x, x.mean(axis=0), np.ones(K, np.float32))
    assert found == pytest.approx(alpha, abs=0.05)


@pytest.mark.parametrize("reference", ["zero", "mean", "ar1", "last"])
@pytest.mark.parametrize("topk", [0.3, 0.8, 1.0])
def test_threshold_keeps_the_fraction(reference: str, topk: float) -> None:
    result = fitted(inputs(0.8, 1.0), reference=reference, topk=topk)
    assert result.metrics["kept"] == pytest.approx(topk, abs=0.01)
    assert result.attributes["keep"] == 0


def test_topk_keeps_it_in_every_step() -> None:
    result = fitted(inputs(0.8), select="topk", topk=0.25)
    assert (result.attributes["keep"], result.attributes["theta"]) == (16, 0.0)
    assert result.metrics["kept"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("alpha", "mean", "expected"), [(0.95, 0.0, "ar1"), (0.9, 3.0, "ar1"), (0.0, 3.0, "mean")]
)
def test_auto_takes_what_the_inputs_call_for(alpha: float, mean: float, expected: str) -> None:
    result = fitted(inputs(alpha, mean), topk=0.5)
    tried = {name: fitted(inputs(alpha, mean), topk=0.5, reference=name).metrics["gap"]
             for name in ("zero", "mean", "ar1", "last")}  # fmt: skip
    assert result.metrics["gap"] <= min(tried.values()) * 1.05
    assert tried[expected] < 0.9 * tried["zero"]


def test_white_noise_leaves_nothing_to_expect() -> None:
    x = inputs(0.0)
    gap = {name: fitted(x, topk=0.5, reference=name).metrics["gap"] for name in ("zero", "last")}
    assert gap["last"] > 1.2 * gap["zero"]


def test_simulation_is_the_recursion() -> None:
    x, mean, scale = inputs(0.7), inputs(0.0)[0], np.linspace(0.5, 2, K, dtype=np.float32)
    found = simulate(x, Reference("ar1", mean, 0.6), scale, 0.5, None).effective
    np.testing.assert_array_equal(found[:DENSE_FIRST], x[:DENSE_FIRST])
    for t in range(DENSE_FIRST, len(x)):
        expected = mean + np.float32(0.6) * (found[t - 1] - mean)
        computed = found[t] == x[t]
        assert (np.abs(x[t] - expected) * scale)[~computed].max() < 0.5
        np.testing.assert_allclose(found[t][~computed], expected[~computed], atol=1e-6)


def test_tolerance_is_above_what_calibration_saw() -> None:
    result = fitted(inputs(0.8))
    assert result.attributes["gap_tol"] > result.metrics["gap"]
    assert fitted(inputs(0.8), gap_tol=0.03).attributes["gap_tol"] == 0.03


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"target": "mlp"}, "--event-driven-target is mlp"),
        ({"stale_beta": 0.5}, "needs the reference decay"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FitError, match=message):
        fitted(inputs(0.8), **fields)


@pytest.mark.parametrize("fields", [{}, {"reference": "last"}, {"select": "topk"}])
def test_without_calibration_it_is_refused(fields: dict[str, Any]) -> None:
    weight = np.ones((N, K), np.float32)
    with pytest.raises(FitError, match="tamiz calibrate"):
        fit(SITE, weight, None, EventDrivenConfig(anywhere=True, **fields))


def test_without_calibration_what_is_given_suffices() -> None:
    weight = np.ones((N, K), np.float32)
    config = EventDrivenConfig(
        reference="decay", stale_lambda=0.1, stale_beta=0.5, select="topk", anywhere=True
    )
    result = fit(SITE, weight, None, config)
    assert result.attributes["alpha"] == pytest.approx(np.exp(-0.1))
    assert result.attributes["gap_tol"] == 0.03


@pytest.mark.parametrize(("outputs", "topk"), [(1536, 0.5), (11008, 0.9)])
def test_it_acts_where_much_stays_unread(outputs: int, topk: float) -> None:
    site, weight = replace(SITE, in_features=576, out_features=outputs), np.ones((outputs, 576))
    config = EventDrivenConfig(reference="last", select="topk", topk=topk)
    assert effect(site, config, COST, 0).read < COST.read
    assert fit(site, weight.astype(np.float32), None, config).attributes["keep"] == round(
        576 * topk
    )


@pytest.mark.parametrize(
    ("outputs", "topk", "unread"), [(192, 0.3, 39), (1536, 0.8, 88), (11008, 0.98, 63)]
)
def test_it_stays_away_where_choosing_takes_longer(outputs: int, topk: float, unread: int) -> None:
    site, weight = replace(SITE, in_features=576, out_features=outputs), np.ones((outputs, 576))
    config = EventDrivenConfig(reference="last", select="topk", topk=topk)
    assert effect(site, config, COST, 0) == COST
    with pytest.raises(FitError, match=f"a step leaves {unread} kB of it unread"):
        fit(site, weight.astype(np.float32), None, config)
