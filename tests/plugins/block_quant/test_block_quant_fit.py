import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kit.sites import linear
from tamiz.api.site import SiteKind
from tamiz.api.technique import FitError
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import cost, dequantize, fit, quantize


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 0.05, shape).astype(np.float32)


def coarse(weights: np.ndarray, kind: Kind) -> np.ndarray:
    """The weights as a GGUF file of that kind gives them back."""
    return gguf.quants.dequantize(gguf.quants.quantize(weights, kind), kind)


@pytest.mark.parametrize(
    ("kind", "bits"), [(Kind.Q4_1, 4), (Kind.Q4_0, 4), (Kind.Q8_0, 8)], ids=lambda v: str(v)
)
def test_recovers_what_came_from_ggml_bit_for_bit(kind: Kind, bits: int) -> None:
    weights = coarse(normal(96, 320), kind)
    quantized, metrics = quantize(weights, bits)
    assert np.array_equal(quantized.dequantize(), weights)
    assert metrics == {"rel_l2": 0.0, "cos_mean_w": 1.0, "max_abs_error": 0.0, "exact": 1.0}


def test_recovers_groups_that_leave_upper_quants_unused() -> None:
    generator = np.random.default_rng(1)
    q = generator.integers(0, 9, (8, 64)).astype(np.float32)
    q[:, ::32], q[:, 1::32] = 0, 8
    scale = np.float16(0.013).astype(np.float32)
    weights = scale * q + np.float16(-0.07).astype(np.float32)
    quantized, metrics = quantize(weights, 4)
    assert metrics["exact"] == 1
    assert np.array_equal(quantized.dequantize(), weights)


@given(
    arrays.arrays(np.float32, (3, 64), elements=st.floats(-4, 4, width=32)),
    st.sampled_from([4, 8]),
)
@settings(max_examples=200)
def test_the_error_is_at_most_half_a_step(weights: np.ndarray, bits: int) -> None:
    """In the mean square of a group, and what fp16 takes: 2^-11 of scale and minimum.

    Where scale or minimum fall below fp16's normal numbers its smallest step counts.
    """
    quantized, metrics = quantize_or_skip(weights, bits)
    groups = weights.reshape(3, 2, 32)
    error = np.abs(quantized.dequantize() - weights).reshape(groups.shape)
    if bits == 4:
        step = (groups.max(-1) - groups.min(-1)) / 15
        rounding = (15 * step + np.abs(groups.min(-1))) / 2**11 + 16 * 2**-24
    else:
        step = np.abs(groups).max(-1) / 127
        rounding = 127 * step / 2**11 + 127 * 2**-24
    assert (np.sqrt(np.square(error).mean(-1)) <= step / 2 + rounding).all()
    assert metrics["max_abs_error"] == error.max()


@given(
    st.integers(0, 2**32 - 1),
    arrays.arrays(np.float32, (3, 2, 2), elements=st.floats(-4, 4, width=32)),
)
@settings(max_examples=200)
def test_scales_of_8_bits_cost_at_most_8_units(seed: int, spans: np.ndarray) -> None:
    """More than half a step, in the mean square of a group: 4 for the minimum, 3.75 for a scale.

    A step is that of the group and of 0. Of weights of many values, each group in a span of its
    own: those of few may lie on another lattice with a longer step.
    """
    spread = np.random.default_rng(seed).random((3, 2, 32))
    weights = (spans[..., :1] + (spans[..., 1:] - spans[..., :1]) * spread).reshape(3, 64)
    weights = weights.astype(np.float32)
    quantized, _ = quantize_or_skip(weights, 4, 8)
    groups = weights.reshape(3, 2, 32)
    low, high = groups.min(-1).clip(max=0), groups.max(-1).clip(min=0)
    unit = np.maximum((high - low) / 15, -low / 8).max(-1, keepdims=True) / 255
    error = np.abs(quantized.dequantize() - weights).reshape(groups.shape)
    rounding = (high - low) / 2**10 + 24 * 2**-24
    limit = (high - low) / 15 / 2 + 8 * unit + rounding
    assert (np.sqrt(np.square(error).mean(-1)) <= limit).all()


def test_groups_above_0_are_fitted_from_0() -> None:
    weights = np.full((1, 64), 2.25, np.float32)
    weights[0, 0] = 0.25
    error = np.abs(quantize(weights, 4, 8)[0].dequantize() - weights)
    assert error.max() <= 2.25 / 15 / 2 * 1.01


def test_scales_of_8_bits_lose_little() -> None:
    weights = normal(96, 320)
    sixteen, eight = quantize(weights, 4)[1], quantize(weights, 4, 8)[1]
    assert eight["rel_l2"] < 1.005 * sixteen["rel_l2"]
    assert 0 < quantize(coarse(weights, Kind.Q4_1), 4, 8)[1]["rel_l2"] < 0.006
    assert 0 < quantize(coarse(weights, Kind.Q4_0), 4, 8)[1]["rel_l2"] < 0.006


@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_constant_groups_in_units(value: float) -> None:
    assert quantize(np.full((2, 64), value, np.float32), 4, 8)[1]["rel_l2"] < 3e-3


def test_a_group_far_below_the_others_of_its_output_keeps_a_step() -> None:
    weights = normal(1, 64)
    weights[0, :32] *= 1000
    quantized, _ = quantize(weights, 4, 8)
    assert quantized.scales.min() == 1
    error = np.abs(quantized.dequantize() - weights)[0, 32:]
    assert quantized.units is not None
    assert error.max() <= 0.5 * float(quantized.units[0]) / 256 * 1.01


def quantize_or_skip(weights: np.ndarray, bits: int, scale_bits: int = 16) -> tuple:
    try:
        return quantize(weights, bits, scale_bits)
    except FitError:
        reject()


@given(st.integers(0, 2**32 - 1), st.sampled_from([4, 8]))
@settings(max_examples=50)
def test_the_fit_is_idempotent(seed: int, bits: int) -> None:
    once, _ = quantize(normal(4, 96, seed=seed), bits)
    twice, metrics = quantize(once.dequantize(), bits)
    assert metrics["exact"] == 1
    assert np.array_equal(once.dequantize(), twice.dequantize())


def test_metrics_are_what_they_say() -> None:
    weights = normal(40, 96)
    quantized, metrics = quantize(weights, 4)
    w, v = weights.astype(np.float64), quantized.dequantize().astype(np.float64)
    cosines = (w * v).sum(1) / np.linalg.norm(w, axis=1) / np.linalg.norm(v, axis=1)
    expected = np.linalg.norm(w - v) / np.linalg.norm(w)
    assert metrics["rel_l2"] == pytest.approx(expected, rel=1e-6)
    assert metrics["cos_mean_w"] == pytest.approx(cosines.mean(), rel=1e-9)
    assert metrics["max_abs_error"] == pytest.approx(np.abs(w - v).max(), rel=1e-6)
    assert metrics["exact"] == 0
    assert 0.05 < metrics["rel_l2"] < 0.12  # int4 of a normal distribution


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 0.5, -3.0])
def test_constant_groups_are_exact(bits: int, value: float) -> None:
    weights = np.full((2, 64), value, np.float32)
    if bits == 4:
        assert quantize(weights, bits)[1]["exact"] == 1
    else:
        assert quantize(weights, bits)[1]["rel_l2"] < 1e-3


@pytest.mark.parametrize("bits", [4, 8])
def test_a_length_that_is_no_multiple_of_32(bits: int) -> None:
    weights = coarse(normal(5, 64), Kind.Q4_1)[:, :40]
    quantized, metrics = quantize(weights, bits)
    assert quantized.quants.shape == (5, 40)
    assert quantized.scales.shape == (5, 2)
    assert quantized.dequantize().shape == (5, 40)
    assert metrics["rel_l2"] < 0.1


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        (np.array([[np.nan] * 32], np.float32), "not finite"),
        (np.array([[np.inf] * 32], np.float32), "not finite"),
        (np.full((1, 32), 1e7, np.float32), "above 65504"),
        (np.linspace(-1e6, 1e6, 32, dtype=np.float32)[None], "above 65504"),
        (np.linspace(-1e-8, 1e-8, 64, dtype=np.float32).reshape(2, 32), "smallest of fp16"),
    ],
)
@pytest.mark.parametrize(("bits", "scale_bits"), [(4, 16), (4, 8), (8, 16)])
def test_refuses_what_fp16_scales_cannot_hold(
    weights: np.ndarray, reason: str, bits: int, scale_bits: int
) -> None:
    if bits == 8:
        weights = weights * np.float32(10)
    with pytest.raises(FitError, match=reason):
        quantize(weights, bits, scale_bits)


@pytest.mark.parametrize(
    ("kind", "bits"), [(SiteKind.LINEAR, 4), (SiteKind.EMBEDDING, 8), (SiteKind.HEAD, 8)]
)
def test_packs_as_the_kernels_read_it(kind: SiteKind, bits: int) -> None:
    import tamiz_ops

    weights = normal(20, 72)
    where = linear(20, 72, kind)
    made = fit(where, weights, None, BlockQuantConfig())
    packed = made.tensors["weight"]
    assert made.attributes == {"bits": bits, "n": 20, "k": 72}
    expected = quantize(weights, bits)[0].dequantize()
    assert np.array_equal(tamiz_ops.dequantize(packed, bits, 20, 72), expected)
    assert cost(where, BlockQuantConfig()).stored == packed.nbytes
    assert made.bits_per_weight == pytest.approx(8 * packed.nbytes / (20 * 72))


@pytest.mark.parametrize(
    ("kind", "fields", "in_units"),
    [
        (SiteKind.LINEAR, {}, True),
        (SiteKind.HEAD, {"head_bits": 4}, True),
        (SiteKind.HEAD, {}, False),
        (SiteKind.LINEAR, {"mask_block": 32}, True),
        (SiteKind.LINEAR, {"mask_block": 1}, True),
        (SiteKind.LINEAR, {"bits": 8}, False),
    ],
)
def test_where_scales_have_8_bits(kind: SiteKind, fields: dict, in_units: bool) -> None:
    weights, where = normal(20, 72), linear(20, 72, kind)
    config = BlockQuantConfig(scale_bits=8, **fields)
    made = fit(where, weights, None, config)
    packed = made.tensors["weight"]
    assert made.attributes.get("scale_bits", 16) == (8 if in_units else 16)
    assert cost(where, config).stored == packed.nbytes
    bits = config.bits_at(where)
    expected = quantize(weights, bits, 8 if in_units else 16)[0].dequantize()
    assert np.array_equal(dequantize(where, made), expected)
    if config.by_channel(where):
        assert packed.shape == (1, 4, 3 * 288 + 32)
    elif in_units:
        assert packed.shape == (2, 3 * 288 + 32)


def test_fits_are_deterministic_and_take_any_layout() -> None:
    weights = normal(48, 64)
    one, _ = quantize(weights, 4)
    other, _ = quantize(np.asfortranarray(weights), 4)
    assert np.array_equal(one.quants, other.quants)
    assert np.array_equal(one.scales.view(np.uint16), other.scales.view(np.uint16))
