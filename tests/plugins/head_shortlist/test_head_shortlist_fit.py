from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from tamiz.api.cost import Cost
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit, FitError
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.effect import effect
from tamiz_head_shortlist.fit import fit
from tamiz_head_shortlist.quantize import pack, signs
from tamiz_head_shortlist.sketch import TENSORS, make_sketch

N, K = 1000, 96
SITE = Site("output", SiteKind.HEAD, "head", weight="w", in_features=K, out_features=N)


def weight() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, (N, K)).astype(np.float32)


def inputs(count: int, seed: int = 1, rank: int = 24, noise: float = 0.3) -> np.ndarray:
    """Inputs that mostly lie in `rank` dimensions, around a mean."""
    rng = np.random.default_rng(seed)
    basis = np.random.default_rng(2).normal(size=(rank, K))
    x = rng.normal(size=(count, rank)) @ basis + noise * rng.normal(size=(count, K)) + 2
    return x.astype(np.float32)


def statistics(x: np.ndarray) -> Statistics:
    return Statistics(len(x), np.square(x).mean(0), x)


def made(x: np.ndarray, **fields: object) -> Fit:
    return fit(SITE, weight(), statistics(x), HeadShortlistConfig.model_validate(fields))


def run(fitted: Fit, x: np.ndarray, **others: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits with the shortlist, and exact ones."""
    packed = pack(weight(), 8)
    attributes: dict[str, Any] = {"bits": 8, "n": N, "k": K}
    exact = tamiz_ops.run("BlockMatMul", [x, packed], **attributes)[0]
    constants = [fitted.tensors.get(name) for name in TENSORS]
    short = tamiz_ops.run(
        "HeadShortlist",
        [x, packed, None, None, *constants],
        **(attributes | dict(fitted.attributes) | {"rows": 128} | others),
    )[0]
    return short, exact


@pytest.mark.parametrize("dims", [8, 32, K])
def test_metrics_are_those_of_the_op_on_the_last_fifth_of_the_samples(dims: int) -> None:
    x = inputs(3000)
    fitted = made(x, dims=dims, keep=160)
    assert fitted.attributes["tiles"] == 10
    parts = [run(fitted, part) for part in np.split(x[2400:], 5)]
    short, exact = (np.concatenate(logits) for logits in zip(*parts, strict=True))
    kept = short == exact
    top = np.argsort(-exact, axis=1)[:, :10]
    recalls = np.take_along_axis(kept, top, axis=1)
    # The op's head is int8, the fit's is not: some ranks differ.
    assert fitted.metrics["argmax_recall"] == pytest.approx(recalls[:, 0].mean(), abs=0.01)
    assert fitted.metrics["top10_recall"] == pytest.approx(recalls.mean(), abs=0.01)
    log_p, log_q = (v - np.log(np.exp(v).sum(1, keepdims=True)) for v in (exact, short))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(1).mean()
    assert fitted.metrics["kl"] == pytest.approx(divergence, rel=0.03)


def test_the_divergence_is_that_of_soft_capped_logits() -> None:
    x, cap = inputs(3000), 2.0
    site = replace(SITE, logit_cap=cap)
    fitted = fit(site, weight(), statistics(x), HeadShortlistConfig(keep=160))
    short, exact = (
        cap * np.tanh(np.concatenate(logits) / cap)
        for logits in zip(*(run(fitted, part) for part in np.split(x[2400:], 5)), strict=True)
    )
    log_p, log_q = (v - np.log(np.exp(v).sum(1, keepdims=True)) for v in (exact, short))
    divergence = (np.exp(log_p) * (log_p - log_q)).sum(1).mean()
    assert fitted.metrics["kl"] == pytest.approx(divergence, rel=0.03)
    assert fitted.metrics["kl"] != pytest.approx(made(x, keep=160).metrics["kl"], rel=0.1)


def test_soft_capped_logits_cannot_be_minus_infinity() -> None:
    site, config = replace(SITE, logit_cap=30.0), HeadShortlistConfig(fill="-inf")
    with pytest.raises(FitError, match=r"soft-capped at 30, .* try fill=estimate"):
        fit(site, weight(), statistics(inputs(300)), config)


@pytest.mark.parametrize("recall", [0.8, 0.95, 1.0])
def test_as_many_tiles_as_the_recall_asks_for(recall: float) -> None:
    x = inputs(1000)
    fitted = made(x, dims=8, recall=recall, kl=99)
    tiles = int(fitted.attributes["tiles"])
    assert tiles % 8 == 0
    assert fitted.metrics["argmax_recall"] >= recall
    if tiles > 8:
        assert made(x, dims=8, keep=16 * (tiles - 8)).metrics["argmax_recall"] < recall


@pytest.mark.parametrize(("bits", "step"), [(4, 1 / 15), (8, 2 / 127)])
def test_packing_rounds_to_half_a_step(bits: int, step: float) -> None:
    matrix = np.random.default_rng(0).uniform(-1, 1, (50, 70)).astype(np.float32)
    matrix[3, :32] = 0.25  # a group without a range
    matrix[4] = 0
    found = tamiz_ops.dequantize(pack(matrix, bits), bits, 50, 70)
    assert np.abs(found - matrix).max() <= step + 2**-10  # a range of 2; fp16 rounds the scales
    assert not found[4].any()


def test_as_many_tiles_as_the_divergence_asks_for() -> None:
    x = inputs(1000)
    rough = made(x, dims=24, recall=0.5, kl=99)
    fine = made(x, dims=24, recall=0.5, kl=rough.metrics["kl"] / 3)
    assert int(fine.attributes["tiles"]) > int(rough.attributes["tiles"])
    assert fine.metrics["kl"] <= rough.metrics["kl"] / 3
    # Where nothing is estimated nothing diverges in that sense.
    cut = made(x, dims=24, recall=0.5, kl=1e-9, fill="-inf")
    assert cut.attributes["tiles"] == rough.attributes["tiles"]


def test_the_recall_holds_on_every_text() -> None:
    # The second text has most of its variance where the first has none.
    x = np.concatenate([inputs(500), inputs(500, seed=3, rank=24, noise=3.0)])
    origins = np.repeat(["one", "other"], 500)
    config = HeadShortlistConfig(dims=8, recall=0.9, kl=99)
    fitted = fit(SITE, weight(), Statistics(1000, np.square(x).mean(0), x, origins), config)
    recalls = [fitted.metrics[f"argmax_recall of {name}"] for name in ("one", "other")]
    assert recalls[0] > recalls[1] >= 0.9
    assert fitted.metrics["argmax_recall"] == pytest.approx(np.mean(recalls))


def test_more_dimensions_estimate_better() -> None:
    kl = [made(inputs(600), dims=dims, keep=160).metrics["kl"] for dims in (8, 24, 96)]
    assert kl[0] > 2 * kl[1] > 2 * kl[2]


def test_refined_estimates_are_better() -> None:
    x = inputs(600)
    exact = x @ weight().T
    coarse, fine = make_sketch(weight(), x, 8, 4).estimate(x)
    # What two greedy bits of a normal distribution lose, of what one loses.
    ratio = (1 - 2 / np.pi - 0.482**2) / (1 - 2 / np.pi)
    assert (exact - fine).var(0).mean() / (exact - coarse).var(0).mean() == pytest.approx(
        ratio, rel=0.2
    )


def test_signs_lose_what_a_normal_distribution_loses() -> None:
    matrix = np.random.default_rng(0).normal(0, 0.02, (50, 4000)).astype(np.float32)
    found, scales = signs(matrix)
    lost = np.square(matrix - found * scales[:, None].astype(np.float32)).mean()
    assert lost / 0.02**2 == pytest.approx(1 - 2 / np.pi, rel=0.02)  # Max (1960), table II


@pytest.mark.parametrize("dims", [8, 24, K])
def test_estimates_have_the_mean_of_the_logits_and_the_mass_of_their_softmax(dims: int) -> None:
    x = inputs(4000)
    exact = x @ weight().T
    for estimates in make_sketch(weight(), x, dims, 4).estimate(x):
        error = exact - estimates
        variance = error.var(axis=0)
        # The mean error of a logit is exactly -variance / 2, so that E exp(logit) = exp(estimate).
        np.testing.assert_allclose(error.mean(axis=0), -variance / 2, rtol=1e-3, atol=1e-3)


def test_all_of_the_vocabulary_is_the_exact_head() -> None:
    short, exact = run(made(inputs(100), keep=N), inputs(20, seed=5))
    np.testing.assert_array_equal(short, exact)


def test_the_fill_can_be_minus_infinity() -> None:
    short, exact = run(made(inputs(100), keep=64, fill="-inf"), inputs(20, seed=5))
    assert ((short == exact) | (short == -np.inf)).all()
    assert ((short == exact).sum(1) == 64).all()


def test_the_sketch_has_no_more_dimensions_than_the_input() -> None:
    fitted = made(inputs(200), dims=500, keep=16)
    assert fitted.attributes["dims"] == K
    short, _ = run(fitted, inputs(20, seed=5))
    assert np.isfinite(short).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_bytes_and_bits_per_weight(bits: int) -> None:
    fitted = made(inputs(200), dims=32, sketch_bits=bits, keep=16)
    stored = sum(tensor.nbytes for tensor in fitted.tensors.values())
    assert fitted.bits_per_weight == pytest.approx(8 * stored / (N * K))
    assert fitted.tensors["sketch"].nbytes == 63 * {4: 320, 8: 544}[bits]
    for name in ("signs", "refinement"):
        assert fitted.tensors[name].nbytes == 63 * (2 * 64 + 32)  # 64 inputs left, and scales


@pytest.mark.parametrize("fields", [{}, {"dims": 50, "keep": 300}, {"dims": 200}])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_cost_is_known_before_the_fit(fields: dict[str, int], bits: int) -> None:
    config = HeadShortlistConfig.model_validate({"keep": 100, "sketch_bits": bits, **fields})
    fitted = fit(SITE, weight(), statistics(inputs(200)), config)
    after = effect(SITE, config, Cost(6300, 630, 63), 0)
    assert after.stored == 6300 + sum(tensor.nbytes for tensor in fitted.tensors.values())
    read = sum(fitted.tensors[name].nbytes for name in ("project", "sketch", "offset"))
    if "signs" in fitted.tensors:
        tile = fitted.tensors["signs"].nbytes // 63
        read += 63 * tile + int(fitted.attributes["refined"]) * (tile + 16 * 4)
    assert after.read == 10 * int(fitted.attributes["tiles"]) + read


def test_fits_are_deterministic() -> None:
    one, other = made(inputs(200), dims=32), made(inputs(200), dims=32)
    assert one.attributes == other.attributes
    assert one.metrics == other.metrics
    for name, tensor in one.tensors.items():
        np.testing.assert_array_equal(tensor, other.tensors[name])


def test_without_calibration_it_says_what_is_missing() -> None:
    config = HeadShortlistConfig()
    with pytest.raises(FitError, match="expected at least 64, found 0"):
        fit(SITE, weight(), None, config)
    with pytest.raises(FitError, match="expected at least 64, found 63"):
        fit(SITE, weight(), statistics(inputs(63)), config)


def test_a_sketch_that_saves_nothing_is_refused() -> None:
    x = np.random.default_rng(0).normal(size=(300, K)).astype(np.float32)
    with pytest.raises(FitError, match=r"needs \d+ of its 63 tiles"):
        made(x, dims=4, recall=1.0, kl=1e-6)
