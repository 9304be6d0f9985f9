"""What packing activations and masking zeros say of a site before it is built."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tamiz.api.cost import Access, Cost, Part
from tamiz.api.editing import GraphEditor
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import FitError
from tamiz.testing.trial import gemm
from tamiz_ops import reference
from tamiz_state_pack import popcount, zero_mask
from tamiz_state_pack.popcount import PopcountConfig
from tamiz_state_pack.zero_mask import ZeroMaskConfig

N, K = 24, 96
SITE = Site(
    "layers.0.ffn_down",
    SiteKind.LINEAR,
    "node",
    layer=0,
    tensor="ffn_down",
    weight="w",
    in_features=K,
    out_features=N,
)
WEIGHT = np.random.default_rng(0).standard_normal((N, K)).astype(np.float32)


def statistics(samples: np.ndarray) -> Statistics:
    samples = samples.astype(np.float32)
    return Statistics(len(samples), np.square(samples).mean(axis=0), samples)


def relu(kept: float) -> Statistics:
    """Samples of which that fraction is not 0."""
    random = np.random.default_rng(1)
    return statistics(np.abs(random.standard_normal((64, K))) * (random.random((64, K)) < kept))


@pytest.mark.parametrize(("mode", "eps"), [("binary", 0.0), ("ternary", 1.0)])
def test_the_loss_is_that_of_the_op(mode: str, eps: float) -> None:
    """Measured with the op's own reference on levels, whose product is the packed input."""
    import tamiz_ops

    levels = np.sign(WEIGHT).astype(np.int8)
    samples = np.random.default_rng(2).standard_normal((32, K)).astype(np.float32)
    config = PopcountConfig(mode=mode)
    fit = popcount.fit(SITE, levels.astype(np.float32), statistics(samples), config)
    assert fit.attributes == {"epsilon": eps, "density": 1.0}
    packed = tamiz_ops.pack_ternary(levels, np.ones((N, 3), np.float16))
    inputs: list[Any] = [samples, packed, np.ones(N, np.float32)]
    [y] = reference.run("PopcountMatMul", inputs, n=N, k=K, epsilon=eps)
    [exact] = reference.run("TernaryMatMul", inputs, n=N, k=K)
    lost = np.linalg.norm(y - exact) / np.linalg.norm(exact)
    assert fit.metrics["output_rel_l2"] == pytest.approx(lost, rel=1e-5)


def test_a_density_of_zero_loses_nothing() -> None:
    fit = popcount.fit(SITE, WEIGHT, relu(0.5), PopcountConfig(density=0))
    assert fit.metrics["output_rel_l2"] == 0
    assert fit.metrics["density"] > 0


def test_without_ternary_weights_a_product_stays() -> None:
    model = gemm(SITE, WEIGHT)
    before = [node.op_type for node in model.graph]
    with pytest.raises(FitError, match="the op of its weights is Gemm, expected TernaryMatMul"):
        popcount.rewrite(SITE, popcount.fit(SITE, WEIGHT, None, PopcountConfig()), model)
    assert [node.op_type for node in model.graph] == before


def test_zeros_are_seen_in_the_samples() -> None:
    fit = zero_mask.fit(SITE, WEIGHT, relu(0.1), ZeroMaskConfig())
    assert fit.metrics["exact"] == 1
    assert fit.metrics["density"] == pytest.approx(0.1, abs=0.02)
    with pytest.raises(FitError, match=r"0\.5\d of its inputs are not zero .* density 0\.4$"):
        zero_mask.fit(SITE, WEIGHT, relu(0.55), ZeroMaskConfig(density=0.4))
    with pytest.raises(FitError, match="nothing is known of its input"):
        zero_mask.fit(SITE, WEIGHT, None, ZeroMaskConfig())


@pytest.mark.parametrize(("kept", "pays"), [(0.05, True), (0.1, True), (0.3, False)])
def test_a_site_is_masked_where_skipping_was_measured_to_pay(kept: float, pays: bool) -> None:
    if pays:
        fit = zero_mask.fit(SITE, WEIGHT, relu(kept), ZeroMaskConfig())
        assert fit.metrics["density"] <= zero_mask.PAYS
        assert fit.attributes["density"] == zero_mask.MOST
    else:
        with pytest.raises(FitError, match=r"density 0\.2: skipping would not pay"):
            zero_mask.fit(SITE, WEIGHT, relu(kept), ZeroMaskConfig())
        asked = zero_mask.fit(SITE, WEIGHT, relu(kept), ZeroMaskConfig(density=0.4))
        assert asked.attributes["density"] == 0.4


def test_what_is_small_counts_as_zero_and_what_that_loses_is_told() -> None:
    known, config = relu(0.5), ZeroMaskConfig(eps=0.8, density=1)
    fit = zero_mask.fit(SITE, WEIGHT, known, config)
    x = known.samples
    lost = np.where(np.abs(x) > 0.8, 0, x) @ WEIGHT.T
    expected = np.linalg.norm(lost) / np.linalg.norm(x @ WEIGHT.T)
    assert fit.metrics["output_rel_l2"] == pytest.approx(float(expected), rel=1e-5)
    assert fit.metrics["exact"] == 0
    assert fit.metrics["density"] == pytest.approx(float((np.abs(x) > 0.8).mean()))


def test_the_plan_counts_the_records_of_rho_and_all_scales() -> None:
    scales = {Access.FIXED: Part(200)}
    told = zero_mask.effect(
        SITE, ZeroMaskConfig(density=0.25), Cost(1000, 1000, 400, parts=scales), 0
    )
    assert told == Cost(1000, 400, 100, parts=scales)


def test_an_op_without_a_mask_stays() -> None:
    model = gemm(SITE, WEIGHT)
    fit = zero_mask.fit(SITE, WEIGHT, relu(0.1), ZeroMaskConfig())
    with pytest.raises(FitError, match="Gemm, the op of its weights, takes no mask"):
        zero_mask.rewrite(SITE, fit, model)
    assert isinstance(GraphEditor(model).node(SITE), ir.Node)
    assert len(model.graph) == 1
