"""An activation that only one product reads becomes part of it: the bits of both, one by one."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.block_weights import weight
from kit.fused_layer import assert_same_bits

ISAS = tamiz_ops.cpu()["isas"]
K, N = 200, 33
#: Values of a program: 0 x, 1 an up, 2 a packed weight, 3 a mask, 4 a norm.


def inputs(rows=21) -> list[np.ndarray]:
    mask = (random(rows, 7, seed=3) < 0.5).astype(np.uint8)
    norm = random(K, seed=4)
    return [random(rows, K, scale=3), random(rows, K, seed=1), weight(8, N, K)[0], mask, norm]


def one_by_one(given, isa, bits, activation, masked=False, up=None) -> list[np.ndarray]:
    """The activation, and its product."""
    x, _, packed, mask, _ = given
    [hidden] = tamiz_ops.run("SwiGLU", [x, up], isa=isa, activation=activation)
    arrays = [hidden, packed, mask if masked else None]
    [y] = tamiz_ops.run("BlockMatMul", arrays, isa=isa, bits=8, k=K, n=N, activation_bits=bits)
    return [hidden, y]


def fused(given, lines, outputs, **how) -> list[np.ndarray]:
    attributes: dict[str, Any] = {"program": "\n".join(lines), "outputs": outputs, **how}
    return tamiz_ops.run("Fused", given, **attributes)


def product(bits, read, to) -> str:
    return f"BlockMatMul bits=8 k={K} n={N} activation_bits={bits} : {read} -> {to}"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("rows", [1, 21])
@pytest.mark.parametrize("masked", [False, True])
def test_bits_of_inputs(isa, bits, rows, masked) -> None:
    given = inputs(rows)
    lines = ["SwiGLU activation=gelu : 0 - -> 5", product(bits, f"5 2 {'3' if masked else '-'}", 6)]
    found = fused(given, lines, [6], isa=isa, threads=2)
    assert_same_bits(found, one_by_one(given, isa, bits, "gelu", masked)[1:])


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2"])
def test_activations(activation) -> None:
    given = inputs()
    lines = [f"SwiGLU activation={activation} : 0 - -> 5", product(8, "5 2", 6)]
    expected = one_by_one(given, None, 8, activation)[1:]
    assert_same_bits(fused(given, lines, [6]), expected)


def test_what_others_read_is_computed() -> None:
    """An output of the node, two products, another reader than a product, and a gate."""
    given = inputs()
    hidden, y = one_by_one(given, None, 8, "gelu")
    gelu = "SwiGLU activation=gelu : 0 - -> 5"
    assert_same_bits(fused(given, [gelu, product(8, "5 2", 6)], [5, 6]), [hidden, y])
    two = [gelu, product(8, "5 2", 6), product(16, "5 2", 7)]
    of_words = one_by_one(given, None, 16, "gelu")[1]
    assert_same_bits(fused(given, two, [6, 7]), [y, of_words])
    norm = [gelu, product(8, "5 2", 6), "RMSNorm : 5 4 - -> 7 -"]
    normed = tamiz_ops.run("RMSNorm", [hidden, given[4], None])[0]
    assert_same_bits(fused(given, norm, [6, 7]), [y, normed])
    gated = ["SwiGLU activation=gelu : 0 1 -> 5", product(8, "5 2", 6)]
    expected = one_by_one(given, None, 8, "gelu", up=given[1])[1:]
    assert_same_bits(fused(given, gated, [6]), expected)


def test_activations_of_activations() -> None:
    given = inputs()
    lines = [
        "SwiGLU activation=relu2 : 0 - -> 5",
        "SwiGLU activation=gelu : 5 - -> 6",
        product(8, "6 2", 7),
    ]
    [squares] = tamiz_ops.run("SwiGLU", [given[0], None], activation="relu2")
    expected = one_by_one([squares, *given[1:]], None, 8, "gelu")[1:]
    assert_same_bits(fused(given, lines, [7]), expected)


def test_products_of_one_x_with_and_without_an_activation() -> None:
    """They do not share what they make of x."""
    given = inputs()
    lines = [
        "SwiGLU activation=gelu : 0 - -> 5",
        "SwiGLU activation=relu : 0 - -> 6",
        product(8, "0 2", 7),
        product(8, "5 2", 8),
        product(8, "6 2", 9),
    ]
    plain = tamiz_ops.run(
        "BlockMatMul", given[:1] + given[2:3], bits=8, k=K, n=N, activation_bits=8
    )
    others = [one_by_one(given, None, 8, name)[1] for name in ("gelu", "relu")]
    assert_same_bits(fused(given, lines, [7, 8, 9]), [*plain, *others])
