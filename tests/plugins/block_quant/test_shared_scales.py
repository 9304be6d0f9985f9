"""block-quant with a scale for 128 inputs: the weights, the op's attribute, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import tamiz_ops
from kit.sites import linear
from tamiz.api.site import SiteKind
from tamiz.api.technique import FitError
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import dequantize, fit, granularities


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.05, shape).astype(np.float32)


@pytest.mark.parametrize("k", [128, 300, 40])
def test_weights_are_at_most_half_a_step_away(k: int) -> None:
    weight = normal(40, k)
    site = linear(40, k)
    found = fit(site, weight, None, BlockQuantConfig(bits=8, scale_inputs=128))
    assert found.attributes == {"bits": 8, "n": 40, "k": k, "scale_inputs": 128}
    lost = np.abs(dequantize(site, found) - weight)
    for begin in range(0, k, 128):
        group = slice(begin, begin + 128)
        largest = np.abs(weight[:, group]).max(axis=1, keepdims=True)
        # fp16 rounds a scale by 2^-11 of it, and a quant is at most 127.
        assert (lost[:, group] <= largest / 127 * (0.5 + 127 * 2**-11)).all()
    relative = np.linalg.norm(lost) / np.linalg.norm(weight)
    assert found.metrics == {"rel_l2": pytest.approx(relative), "exact": 0.0}


def test_scales_are_equal_within_128_inputs() -> None:
    found = fit(linear(20, 300), normal(20, 300), None,
                BlockQuantConfig(bits=8, scale_inputs=128))  # fmt: skip
    _, scales = tamiz_ops.unpack_int8(found.tensors["weight"], 20, 300)
    assert scales.shape == (20, 10)
    for first, end in ((0, 4), (4, 8), (8, 10)):
        np.testing.assert_array_equal(scales[:, first:end], scales[:, [first] * (end - first)])


def test_what_cannot_share_scales_is_refused() -> None:
    for wrong in ({"format": "q4_0"}, {"fit": "search"}):
        with pytest.raises(ValidationError, match="with scale_inputs 128"):
            BlockQuantConfig(scale_inputs=128, **wrong)
    site = linear(20, 64)
    with pytest.raises(FitError, match="8 bits; try --block-quant-bits=8"):
        fit(site, normal(20, 64), None, BlockQuantConfig(bits=4, scale_inputs=128))
    broken = np.full((20, 64), np.inf, np.float32)
    with pytest.raises(FitError, match="not finite"):
        fit(site, broken, None, BlockQuantConfig(bits=8, scale_inputs=128))


def test_autotune_tries_128_inputs_first_in_encoders() -> None:
    site, eight = replace(linear(20, 300), id="layers.0.ffn_up", decoder=False), BlockQuantConfig()
    both = [{"scale_inputs": 128}, {"scale_inputs": 32}]
    one: list[dict[str, Any]] = [{}]
    assert granularities(site, eight) == both
    assert granularities(site, BlockQuantConfig(format="q8_0")) == both
    requested = ({"scale_inputs": 32}, {"scale_inputs": 128})
    for other in ({"format": "q4_0"}, {"fit": "search"}, {"bits": 4}, *requested):
        assert granularities(site, BlockQuantConfig(**other)) == one, other
    assert granularities(replace(site, decoder=True), BlockQuantConfig(bits=8)) == one
    assert granularities(replace(site, kind=SiteKind.EMBEDDING), eight) == one
