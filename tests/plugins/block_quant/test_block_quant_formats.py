"""Fits of block-quant to named formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tamiz.api import FitError, Site, SiteKind, Statistics
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.factors import factor, second_moments
from tamiz_block_quant.fit import dequantize, fit
from tamiz_ops.formats import feedback_factor

N, K = 48, 256
RANDOM = np.random.default_rng(2)
WEIGHT = RANDOM.standard_normal((N, K)).astype(np.float32)
X = (RANDOM.standard_normal((700, 16)) @ RANDOM.standard_normal((16, K))).astype(np.float32)
X += RANDOM.standard_normal(X.shape).astype(np.float32)
SEEN = Statistics(512, np.square(X[:512]).mean(axis=0), X[:512])


def site(kind: SiteKind = SiteKind.LINEAR) -> Site:
    return Site("layers.0.ffn_up", kind, "node", 0, "ffn_up", "weight", K, N)


def product_error(statistics: Statistics | None = SEEN, **fields: object) -> float:
    """Relative error of the product on inputs that the fit has not seen."""
    config = BlockQuantConfig.model_validate(fields)
    made = dequantize(site(), fit(site(), WEIGHT, statistics, config))
    unseen = X[512:]
    return float(np.linalg.norm(unseen @ (WEIGHT - made).T) / np.linalg.norm(unseen @ WEIGHT.T))


@pytest.mark.parametrize("form", ["q3_k", "q4_0", "iq4_xs", "q5_k"])
def test_each_fit_is_better_than_the_one_before(form: str) -> None:
    errors = [product_error(format=form, fit=kind) for kind in ("nearest", "search", "gptq")]
    assert errors[1] < 0.97 * errors[0]
    assert errors[2] < 0.75 * errors[1]


@pytest.mark.parametrize("fields", [{}, {"bits": 8}, {"scale_bits": 8}])
def test_bits_are_fitted_with_feedback_too(fields: dict[str, Any]) -> None:
    assert product_error(**fields, fit="gptq") < 0.75 * product_error(**fields)


def test_a_named_format_is_fitted_with_feedback_where_inputs_are_known() -> None:
    assert product_error(format="q4_0") == product_error(format="q4_0", fit="gptq")
    only_means = Statistics(512, SEEN.imatrix, X[:0])
    for known in (None, only_means):
        assert product_error(known, format="q4_0") == product_error(
            known, format="q4_0", fit="search"
        )


def test_factors_are_those_of_the_given_inputs() -> None:
    others = [Statistics(512, np.square(x).mean(axis=0), x) for x in (X[:512], -X[:256], X[100:])]
    for known in (*others, *others):
        expected = feedback_factor(*second_moments(known)).own(slice(None))
        assert np.array_equal(factor(known).own(slice(None)), expected)


def test_gptq_needs_a_calibration() -> None:
    with pytest.raises(FitError, match="gptq needs the samples of a calibration"):
        product_error(None, format="q4_0", fit="gptq")


def test_gptq_searches_an_embedding_of_its_own() -> None:
    made, searched = (
        fit(site(SiteKind.EMBEDDING), WEIGHT, None, BlockQuantConfig(format="q4_0", fit=way))
        for way in ("gptq", "search")
    )
    assert np.array_equal(made.tensors["weight"], searched.tensors["weight"])


def test_a_head_is_fitted_as_a_layer_unless_it_shares_its_weight() -> None:
    config = BlockQuantConfig(format="q4_0")
    made = {
        kind: fit(site(kind), WEIGHT, SEEN, config).tensors["weight"]
        for kind in (SiteKind.LINEAR, SiteKind.HEAD)
    }
    assert np.array_equal(made[SiteKind.HEAD], made[SiteKind.LINEAR])
    tied = {
        kind: fit(replace(site(kind), shared=True), WEIGHT, SEEN, config).tensors["weight"]
        for kind in (SiteKind.HEAD, SiteKind.EMBEDDING)
    }
    assert np.array_equal(tied[SiteKind.HEAD], tied[SiteKind.EMBEDDING])
    assert not np.array_equal(tied[SiteKind.HEAD], made[SiteKind.HEAD])


@pytest.mark.parametrize("fitted", ["search", "gptq"])
def test_a_shared_weight_is_fitted_for_the_head_and_for_lookups(fitted: str) -> None:
    small = np.full(K, 0.05, np.float32)
    small[::8] = 1  # few of the inputs of the head are large
    known = Statistics(512, np.square(X[:512] * small).mean(axis=0), X[:512] * small)
    config = BlockQuantConfig.model_validate({"format": "q4_0", "fit": fitted})
    errors = {}
    for name, shared in (("alone", False), ("shared", True)):
        at = replace(site(SiteKind.HEAD), shared=shared)
        lost = WEIGHT - dequantize(at, fit(at, WEIGHT, known, config))
        errors[name] = np.linalg.norm(X[512:] * small @ lost.T), np.linalg.norm(lost)
    alike = WEIGHT - dequantize(site(), fit(site(), WEIGHT, None, BlockQuantConfig(format="q4_0")))
    assert errors["shared"][0] < 0.9 * np.linalg.norm(X[512:] * small @ alike.T)
    assert errors["shared"][1] < errors["alone"][1]
