"""block-quant with a scale for 128 inputs: the weights, the op's attribute, and what is refused."""

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from pydantic import ValidationError

import tamiz_ops
from kit.sites import linear
from tamiz.api.technique import FitError
from tamiz.building.build import build
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import dequantize, fit


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


@pytest.mark.slow
def test_a_build_marks_products_of_layers(plugins: Plugins, tiny_dense: Path) -> None:
    out = tiny_dense.parent / "shared"
    wanted = {"block-quant": {"bits": 8, "scale_inputs": 128}, "activation-bits": {}}
    build(tiny_dense, out, choose(plugins.techniques(), wanted), plugins)
    programs = [n.attributes["program"].as_string() for n in ir.load(Bundle.open(out).model).graph
                if n.op_type == "Fused"]  # fmt: skip
    lines = [line for program in programs for line in program.splitlines()]
    products = [line for line in lines if line.startswith("BlockMatMul")]
    shared = [line for line in products if "scale_inputs=128" in line]
    assert len(shared) == 14  # of two layers
    assert len(products) == 15  # and the head
    assert all("activation_bits=8" in line for line in products)
