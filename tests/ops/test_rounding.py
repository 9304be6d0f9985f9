"""Rounding of float weights to the weight formats, without a search."""

import numpy as np
import pytest

from kit.arrays import random
from tamiz_ops import formats

ALL = [format for format in formats.FORMATS.values() if formats.quantizable(format)]
#: Largest ‖W − Ŵ‖ / ‖W‖ of normally distributed weights by bits of an element.
LARGEST = {2: 0.36, 3: 0.18, 4: 0.10, 5: 0.05, 6: 0.025, 8: 0.007}


def nearest(format: formats.Format, weight: np.ndarray) -> np.ndarray:
    return formats.quantize(format, weight, search=False)


def error(format: formats.Format, weight: np.ndarray) -> float:
    n, k = weight.shape
    fitted = formats.dequantize(format, nearest(format, weight), n, k)
    return float(np.linalg.norm(weight - fitted) / np.linalg.norm(weight))


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_more_bits_lose_less(format: formats.Format) -> None:
    assert error(format, random(64, 512)) < LARGEST[format.bits]


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (40, 600)])
def test_sizes_that_are_no_whole_blocks(format: formats.Format, n: int, k: int) -> None:
    weight = random(n, k, seed=1)
    packed = nearest(format, weight)
    assert packed.shape == format.packed_shape(n, k)
    assert error(format, weight) < 1.2 * LARGEST[format.bits]


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_rows_do_not_depend_on_each_other(format: formats.Format) -> None:
    weight = random(48, 256)
    whole = nearest(format, weight)
    np.testing.assert_array_equal(nearest(format, weight[16:32]), whole[1:2])


@pytest.mark.parametrize("format", ALL, ids=lambda f: f.name)
def test_zeros_stay_zeros(format: formats.Format) -> None:
    assert not formats.dequantize(
        format, nearest(format, np.zeros((16, 256), np.float32)), 16, 256
    ).any()


@pytest.mark.parametrize("name", ["f16", "mxfp4", "tq2_0"])
def test_formats_without_rounding_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"format is {name}, expected one of"):
        formats.quantize(formats.find_format(name), random(16, 256))


@pytest.mark.parametrize(("value", "said"), [(np.nan, "not finite"), (1e30, "fp16's largest")])
def test_weights_beyond_a_format_are_refused(value: float, said: str) -> None:
    weight = random(16, 256)
    weight[3, 4] = value
    with pytest.raises(ValueError, match=said):
        formats.quantize(formats.find_format("q6_k"), weight)
