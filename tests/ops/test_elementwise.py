"""Sum, Scale, RMSNorm, LayerNorm and SwiGLU on every level against the float64 reference."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]
WIDTHS = [1, 5, 16, 31, 576, 1003, 4096]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [(1,), (3, 2), (7, 1, 10)])
def test_scale(isa, width, rows) -> None:
    x, factors = random(*rows, width), random(*rows, seed=1)
    got = tamiz_ops.run("Scale", [x, factors], isa=isa, threads=2)[0]
    np.testing.assert_array_equal(got, x * factors[..., None])
    np.testing.assert_allclose(got, reference.run("Scale", [x, factors])[0], rtol=1e-7)


def test_factors_of_other_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"factors has shape \[3, 2\], expected \[3, 4\]"):
        tamiz_ops.run("Scale", [random(3, 4, 8), random(3, 2)])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_rms_norm(isa, width, rows) -> None:
    x, residual, weight = random(rows, width), random(rows, width, seed=1), random(width, seed=2)
    got = tamiz_ops.run("RMSNorm", [x, weight, residual], isa=isa, threads=2, epsilon=1e-6)
    expected = reference.run("RMSNorm", [x, weight, residual], epsilon=1e-6)
    np.testing.assert_array_equal(got[1], x + residual)
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("out", [[True, True], [True, None]])
@pytest.mark.parametrize("residual", [None, random(2, 3, 40, seed=3)])
def test_rms_norm_optional_ports(isa, out, residual) -> None:
    x, weight = random(2, 3, 40), random(40, seed=2)
    got = tamiz_ops.run("RMSNorm", [x, weight, residual], out=out, isa=isa)
    expected = reference.run("RMSNorm", [x, weight, residual])
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-6, atol=1e-6)
    if out[1]:
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 16, 31])
def test_rms_norm_of_each_head(isa, width) -> None:
    x, weight = random(2, 300, 9 * width), random(width, seed=2)
    got = tamiz_ops.run("RMSNorm", [x, weight], isa=isa, threads=2)
    expected = reference.run("RMSNorm", [x.reshape(2, 300, 9, width), weight])
    np.testing.assert_allclose(got[0], expected[0].reshape(x.shape), rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_rms_norm_of_tiny_rows_is_held_by_epsilon(isa) -> None:
    x = np.full((1, 64), 1e-20, np.float32)
    got = tamiz_ops.run("RMSNorm", [x, np.ones(64, np.float32)], isa=isa, epsilon=1e-5)[0]
    np.testing.assert_allclose(got, x / np.sqrt(1e-5), rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_layer_norm(isa, width, rows) -> None:
    x, residual = random(rows, width) + 3, random(rows, width, seed=1)
    given = [x, random(width, seed=2), random(width, seed=3), residual]
    got = tamiz_ops.run("LayerNorm", given, isa=isa, threads=2, epsilon=1e-6)
    expected = reference.run("LayerNorm", given, epsilon=1e-6)
    np.testing.assert_array_equal(got[1], x + residual)
    # Of a row of one element, s - mean(s) is 0.
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-6, atol=4e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("out", [[True, True], [True, None]])
@pytest.mark.parametrize("bias", [None, random(40, seed=4)])
@pytest.mark.parametrize("residual", [None, random(2, 3, 40, seed=3)])
def test_layer_norm_optional_ports(isa, out, bias, residual) -> None:
    x, weight = random(2, 3, 40), random(40, seed=2)
    got = tamiz_ops.run("LayerNorm", [x, weight, bias, residual], out=out, isa=isa)
    expected = reference.run("LayerNorm", [x, weight, bias, residual])
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-6, atol=2e-6)
    if out[1]:
        np.testing.assert_allclose(got[1], expected[1], rtol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
def test_layer_norm_of_equal_numbers_is_the_bias(isa) -> None:
    x, bias = np.full((2, 48), 7.0, np.float32), random(48)
    got = tamiz_ops.run("LayerNorm", [x, np.ones(48, np.float32), bias], isa=isa)[0]
    np.testing.assert_array_equal(got, np.tile(bias, (2, 1)))


@pytest.mark.parametrize("isa", ISAS)
def test_layer_norm_has_the_same_bits_in_every_batch(isa) -> None:
    x, weight = random(70, 384), random(384, seed=2)
    together = tamiz_ops.run("LayerNorm", [x, weight], isa=isa, threads=2)[0]
    alone = [tamiz_ops.run("LayerNorm", [row[None], weight], isa=isa)[0] for row in x]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 3, 70])
def test_swiglu(isa, width, rows) -> None:
    gate, up = random(rows, width, scale=4), random(rows, width, seed=1)
    got = tamiz_ops.run("SwiGLU", [gate, up], isa=isa, threads=2)[0]
    expected = reference.run("SwiGLU", [gate, up])[0]
    np.testing.assert_allclose(got, expected, rtol=5e-7, atol=1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu"])
@pytest.mark.parametrize("width", [5, 16, 1003])
def test_activations(isa, activation, width) -> None:
    gate, up = random(5, width, scale=4), random(5, width, seed=1)
    got = tamiz_ops.run("SwiGLU", [gate, up], isa=isa, activation=activation)[0]
    expected = reference.run("SwiGLU", [gate, up], activation=activation)[0]
    # Far below 0, u has a rounding error of its size times 2^-24.
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)
    alone = tamiz_ops.run("SwiGLU", [gate, None], isa=isa, activation=activation)[0]
    ones = tamiz_ops.run("SwiGLU", [gate, np.ones_like(up)], isa=isa, activation=activation)[0]
    np.testing.assert_array_equal(alone, ones)


@pytest.mark.parametrize("isa", ISAS)
def test_exact_gelu_keeps_its_digits_in_the_tail(isa) -> None:
    gate = np.linspace(-9, 9, 2001, dtype=np.float32)
    got = tamiz_ops.run("SwiGLU", [gate, None], isa=isa, activation="gelu")[0]
    expected = reference.run("SwiGLU", [gate, None], activation="gelu")[0]
    np.testing.assert_allclose(got, expected, rtol=5e-6, atol=1e-30)
    near = np.abs(gate) < 3
    np.testing.assert_allclose(got[near], expected[near], rtol=1e-6, atol=0)
    np.testing.assert_array_equal(np.sign(got), np.sign(gate))


@pytest.mark.parametrize("isa", ISAS)
def test_exact_gelu_of_what_is_no_usual_number(isa) -> None:
    gate = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30, -1e-30, -20, 0], np.float32)
    got = tamiz_ops.run("SwiGLU", [gate, None], isa=isa, activation="gelu")[0]
    expected = np.array([np.inf, 0, np.nan, 1e30, 0, 5e-31, -5e-31, 0, 0], np.float32)
    np.testing.assert_allclose(got, expected, rtol=2e-7, atol=0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [5, 16, 1003])
def test_a_limit_clamps_both_and_adds_one_to_up(isa, width) -> None:
    gate, up = random(5, width, scale=9), random(5, width, seed=1, scale=9)
    how: dict[str, Any] = {"activation": "quick_gelu", "limit": 7.0}
    got = tamiz_ops.run("SwiGLU", [gate, up], isa=isa, threads=2, **how)[0]
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    with np.errstate(over="ignore"):
        expected = g / (1 + np.exp(-1.702 * g)) * (u + 1)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(reference.run("SwiGLU", [gate, up], **how)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("limit", [-1.0, np.nan, np.inf])
def test_other_limits_are_refused(limit) -> None:
    gate = random(1, 4)
    with pytest.raises(ValueError, match=r"limit is .*, expected 0 or a positive number"):
        tamiz_ops.run("SwiGLU", [gate, gate], limit=limit)


def test_a_limit_without_up_is_refused() -> None:
    with pytest.raises(ValueError, match="up is omitted, expected it beside a limit"):
        tamiz_ops.run("SwiGLU", [random(1, 4), None], limit=7.0)


XIELU: dict[str, Any] = {
    "activation": "xielu",
    "alpha_p": 0.8,
    "alpha_n": 1.3,
    "beta": 0.5,
    "epsilon": -1e-6,
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", WIDTHS)
def test_an_activation_with_trained_numbers(isa, width) -> None:
    gate, up = 4 * random(3, width), random(3, width, seed=1)
    gate[0, 0] = 0.0
    gate[1, 0] = -1e-7  # above epsilon
    got = tamiz_ops.run("SwiGLU", [gate, up], isa=isa, threads=2, **XIELU)[0]
    expected = reference.run("SwiGLU", [gate, up], **XIELU)[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)
    alone = tamiz_ops.run("SwiGLU", [gate, None], isa=isa, **XIELU)[0]
    ones = tamiz_ops.run("SwiGLU", [gate, np.ones_like(up)], isa=isa, **XIELU)[0]
    np.testing.assert_array_equal(alone, ones)


@pytest.mark.parametrize("isa", ISAS)
def test_an_activation_with_trained_numbers_of_large_inputs(isa) -> None:
    gate = np.array([[-1e4, -200.0, 1e4]], np.float32)
    got = tamiz_ops.run("SwiGLU", [gate, None], isa=isa, **XIELU)[0]
    # 1.3 (e^x - 1 - x) + x / 2, and 0.8 x² + x / 2
    np.testing.assert_allclose(got, [[0.8e4 - 1.3, 160 - 1.3, 0.8e8 + 0.5e4]], rtol=1e-6)


def test_a_limit_beside_trained_numbers_is_refused() -> None:
    gate = random(1, 8)
    with pytest.raises(ValueError, match="limit is given, expected none with xielu"):
        tamiz_ops.run("SwiGLU", [gate, gate], limit=7.0, **XIELU)


def test_unknown_activation() -> None:
    gate = random(1, 4)
    with pytest.raises(ValueError, match="activation is 'swish', expected one of: silu, gelu, "):
        tamiz_ops.run("SwiGLU", [gate, gate], activation="swish")


@pytest.mark.parametrize("isa", ISAS)
def test_swiglu_covers_the_whole_range_of_the_exponential(isa) -> None:
    gate = np.concatenate([np.linspace(-110, 110, 4001), [-1e30, 1e30, 0.0, -0.0]])
    gate = gate.astype(np.float32)
    got = tamiz_ops.run("SwiGLU", [gate, np.ones_like(gate)], isa=isa)[0]
    expected = reference.run("SwiGLU", [gate, np.ones_like(gate)])[0]
    np.testing.assert_allclose(got, expected, rtol=5e-7, atol=1e-36)
    special = np.array([np.nan, np.inf], np.float32)
    got = tamiz_ops.run("SwiGLU", [special, np.ones(2, np.float32)], isa=isa)[0]
    np.testing.assert_array_equal(got, special)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("shape", [(0, 5), (3, 1, 37), (5, 9000)])
def test_sums_are_those_of_float32(isa, shape) -> None:
    x, residual = random(*shape), random(*shape, seed=1)
    got = tamiz_ops.run("Sum", [x, residual], isa=isa, threads=2)[0]
    np.testing.assert_array_equal(got, x + residual)
    expected = reference.run("Sum", [x, residual])[0]
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("op", "inputs", "message"),
    [
        ("RMSNorm", [random(2, 8), random(7)], "weight has 7 elements, expected a divisor of"),
        ("RMSNorm", [random(2, 8), random(8), random(1, 8)], r"residual has shape \[1, 8\]"),
        ("RMSNorm", [random(2, 8).astype(np.int64), random(8)], "x is int64, expected float32"),
        ("LayerNorm", [random(2, 8), random(7)], r"weight has shape \[7\], expected \[8\]"),
        ("LayerNorm", [random(2, 8), random(8), random(7)], r"bias has shape \[7\]"),
        (
            "LayerNorm",
            [random(2, 8), random(8), None, random(1, 8)],
            r"residual has shape \[1, 8\]",
        ),
        ("Sum", [random(2, 8), random(2, 4)], r"residual has shape \[2, 4\], expected \[2, 8\]"),
        ("SwiGLU", [random(2, 8), random(2, 4)], r"up has shape \[2, 4\], expected \[2, 8\]"),
    ],
)
def test_errors_are_one_clear_sentence(op, inputs, message) -> None:
    with pytest.raises(ValueError, match=message) as error:
        tamiz_ops.run(op, inputs)
    assert "\n" not in str(error.value)
