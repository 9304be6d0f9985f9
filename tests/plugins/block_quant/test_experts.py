"""Experts are packed each with what its own inputs were."""

from __future__ import annotations

import numpy as np
import pytest

from kit.sites import linear
from tamiz.api import Access, ExpertInputs, FitError, Site, SiteKind, Statistics
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import cost, fit
from tamiz_ops import formats

EXPERTS, TOP, N, K = 3, 1, 32, 64
SITE = Site(
    *("layers.0.ffn_up_exps", SiteKind.EXPERTS, "node"),
    in_features=K,
    out_features=EXPERTS * N,
    format="q8_0",
    experts=EXPERTS,
    top=TOP,
)


def weight_and_statistics() -> tuple[np.ndarray, Statistics]:
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((EXPERTS * N, K), dtype=np.float32)
    own = rng.uniform(0.01, 9, (EXPERTS, K)).astype(np.float32)
    inputs = ExpertInputs(np.array([5.0, 1.0, 0.0]), own)
    none = np.empty((0, K), np.float32)
    return weight, Statistics(6, own.mean(axis=0), none, experts=inputs)


@pytest.mark.parametrize("how", ["search", "gptq", None])
def test_each_is_searched_with_its_own_means(how: str | None) -> None:
    """Experts have no samples, so gptq searches them, too."""
    weight, statistics = weight_and_statistics()
    config = BlockQuantConfig(format="q4_0", fit=how)
    packed = fit(SITE, weight, statistics, config).tensors["weight"]
    form = formats.find_format("q4_0")
    assert statistics.experts is not None
    for e, importance in enumerate(statistics.experts.imatrix):
        alone = formats.quantize(form, weight[e * N : (e + 1) * N], importance)
        np.testing.assert_array_equal(packed[e * N // 16 : (e + 1) * N // 16], alone)
    same = formats.quantize(form, weight, statistics.imatrix)
    assert not np.array_equal(packed, same)


def test_without_statistics_all_inputs_count_alike() -> None:
    weight, _ = weight_and_statistics()
    packed = fit(SITE, weight, None, BlockQuantConfig(format="q4_0")).tensors["weight"]
    np.testing.assert_array_equal(packed, formats.quantize(formats.find_format("q4_0"), weight))


def test_a_token_reads_the_experts_that_it_takes() -> None:
    of_all = cost(linear(EXPERTS * N, K), BlockQuantConfig(bits=4))
    found = cost(SITE, BlockQuantConfig(bits=4))
    assert found.stored == of_all.stored
    for one, other in ((found.read, of_all.read), (found.work, of_all.work)):
        assert one == round(other * TOP / EXPERTS)
    assert found.part(Access.FIXED).read == round(of_all.part(Access.FIXED).read / EXPERTS)


def test_weights_that_are_not_finite_are_refused() -> None:
    weight, statistics = weight_and_statistics()
    weight[40, 3] = np.nan
    with pytest.raises(FitError):
        fit(SITE, weight, statistics, BlockQuantConfig(format="q4_0"))
