"""BlockMatMul with activation_bits = 32: float32 inputs, within the rounding of float32 sums."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.gguf_blocks import random_blocks
from tamiz_ops import formats

ISAS = tamiz_ops.cpu()["isas"]
NAMES = ["q4_0", "q4_k", "q6_k", "q8_0", "f16", "bf16"]


def product(x, packed, mask, bias, isa=None, **attributes) -> np.ndarray:
    inputs = [x, packed, mask, bias]
    return tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=2, **attributes)[0]


def uneven(rows: int, k: int) -> np.ndarray:
    """Inputs of which one in 32 is 10,000 times as large: the others have few bits of 16."""
    x = random(rows, k)
    x[:, ::32] *= 1e4
    return x


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("n", "k"), [(40, 512), (100, 768)])
def test_small_inputs_beside_large_ones_are_kept(name: str, n: int, k: int) -> None:
    format = formats.find_format(name)
    packed = formats.pack_blocks(format, random_blocks(format, n, k, 3, plain=True), k)
    w = formats.dequantize(format, packed, n, k).astype(np.float64)
    w[:, ::32] = 0  # so that the large inputs do not hide the others
    x, bias = uneven(9, k), random(n, seed=2)
    attributes: dict[str, Any] = {"format": name, "n": n, "k": k}
    whole = x.copy()
    whole[:, ::32] = 0
    large = x - whole

    def of_small(bits: int) -> np.ndarray:
        given = attributes | {"activation_bits": bits}
        both = product(x, packed, None, bias, **given).astype(np.float64)
        return np.abs(both - product(large, packed, None, None, **given) - (whole @ w.T + bias))

    # Sums of float32 still hold the large terms: each of k additions rounds by at most 2^-24.
    terms = np.abs(x) @ np.abs(formats.dequantize(format, packed, n, k)).T
    assert (of_small(32) <= (k // 16 + 8) * 2.0**-24 * terms).all()
    assert of_small(32).mean() < of_small(16).mean() / 4


@pytest.mark.parametrize(
    "name", ["q4_0", "q4_k", "q6_k", "q8_0", "f16", "affine4_32", "affine8_16"]
)
def test_bits_depend_neither_on_rows_nor_on_the_instruction_set(name: str) -> None:
    n, k = 90, 256
    format = formats.find_format(name)
    if isinstance(format, formats.Affine):
        quants = np.random.default_rng(3).integers(0, 1 << format.bits, (n, k), np.uint8)
        packed = formats.pack_parts(format, formats.Parts(quants, random(n, k // format.group)))
    else:
        packed = formats.pack_blocks(format, random_blocks(format, n, k, 3, plain=True), k)
    x, bias = uneven(270, k), random(n, seed=2)
    mask = np.random.default_rng(3).integers(0, 2, (270, k // 32), np.uint8)
    attributes: dict[str, Any] = {"format": name, "n": n, "k": k, "activation_bits": 32}
    for given in (None, mask):
        whole = product(x, packed, given, bias, **attributes)
        for isa in ISAS:
            for rows in (1, 7, 17):
                part = None if given is None else given[:rows]
                found = product(x[:rows], packed, part, bias, isa, **attributes)
                np.testing.assert_array_equal(found, whole[:rows])


def test_a_row_that_is_not_finite_spoils_no_other() -> None:
    format = formats.find_format("q8_0")
    packed = formats.pack_blocks(format, random_blocks(format, 20, 64, 3, plain=True), 64)
    attributes: dict[str, Any] = {"format": "q8_0", "n": 20, "k": 64, "activation_bits": 32}
    x = random(20, 64)
    before = product(x, packed, None, None, **attributes)
    x[3, 5], x[4, 40] = np.inf, np.nan
    after = product(x, packed, None, None, **attributes)
    assert np.isnan(after[3:5]).all()
    rest = [row for row in range(20) if row not in (3, 4)]
    np.testing.assert_array_equal(after[rest], before[rest])


def test_a_shortlist_has_inputs_of_at_most_16_bits() -> None:
    attributes: dict[str, Any] = {"format": "q8_0", "n": 20, "k": 64, "activation_bits": 32}
    settings: dict[str, Any] = {"sketch_bits": 4, "dims": 32, "tiles": 1, "rows": 1}
    with pytest.raises(ValueError, match="'activation_bits' is 32, expected 8 or 16"):
        tamiz_ops.run("HeadShortlist", [random(1, 64)] + [None] * 11, **attributes, **settings)
