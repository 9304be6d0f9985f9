"""ternary: what comes back bit for bit, the best threshold, what is refused, and a build."""

from itertools import product
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kit.decoding import stages
from kit.sites import linear
from tamiz.api.statistics import Statistics
from tamiz.api.technique import FitError
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.reporting.report import Report
from tamiz_ternary.config import TernaryConfig
from tamiz_ternary.fit import cost, dequantize, fit

ANY = TernaryConfig(max_error=1)


def levels(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(0).integers(-1, 2, (n, k)).astype(np.float32)


def statistics(imatrix: np.ndarray) -> Statistics:
    samples = np.zeros((0, len(imatrix)), np.float32)
    return Statistics(count=1, imatrix=imatrix.astype(np.float32), samples=samples)


def scales_of(kind: str, n: int, groups: int) -> np.ndarray:
    """Scales float32 [n, groups] as models that were trained ternary have them."""
    random = np.random.default_rng(1)
    one = {"tensor": (1, 1), "output": (n, 1), "group": (n, groups)}[kind]
    scales = random.uniform(1e-3, 3, one).astype(np.float32)
    if kind == "group":
        scales = scales.astype(np.float16).astype(np.float32)
    return np.broadcast_to(scales, (n, groups))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("k", [32, 100, 256])
@pytest.mark.parametrize("kind", ["tensor", "output", "group"])
def test_levels_times_a_scale_come_back_bit_for_bit(kind: str, k: int, weighted: bool) -> None:
    """A scale in float32 of the tensor (BitNet) or of each output; in fp16 of each group."""
    spread = np.repeat(scales_of(kind, 33, -(-k // 32)), 32, axis=1)[:, :k]
    weight = levels(33, k) * spread
    seen = statistics(np.random.default_rng(2).uniform(0, 9, k)) if weighted else None
    made = fit(linear(*weight.shape), weight, seen, TernaryConfig(max_error=0))
    assert made.metrics["exact"] == 1
    np.testing.assert_array_equal(dequantize(linear(*weight.shape), made), weight, strict=True)
    assert made.metrics["ternary.zeros"] == pytest.approx(np.mean(weight == 0))


@pytest.mark.parametrize("name", ["TQ1_0", "TQ2_0"])
def test_what_gguf_stores_in_ternary_comes_back_bit_for_bit(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    random = np.random.default_rng(0).standard_normal((20, 512)).astype(np.float32)
    weight = gguf.quants.dequantize(gguf.quants.quantize(random, kind), kind)
    made = fit(linear(*weight.shape), weight, None, TernaryConfig(max_error=0))
    np.testing.assert_array_equal(dequantize(linear(*weight.shape), made), weight)


def test_zeros_and_tiny_and_huge_weights() -> None:
    weight = levels(4, 64) * np.array([[0], [1e-42], [1e38], [1]], np.float32)
    made = fit(linear(*weight.shape), weight, None, TernaryConfig(max_error=0))
    np.testing.assert_array_equal(dequantize(linear(*weight.shape), made), weight)


@pytest.mark.parametrize("seed", range(8))
def test_no_other_levels_and_scale_are_closer(seed: int) -> None:
    """Against all 3^6 levels of a group of six weights, each with its best scale."""
    random = np.random.default_rng(seed)
    weight, m = random.standard_normal((1, 6)).astype(np.float32), random.uniform(0.1, 5, 6)
    made = dequantize(linear(*weight.shape), fit(linear(*weight.shape), weight, statistics(m), ANY))
    error = np.sum(m * np.square(weight[0] - made[0]))

    def least(t: np.ndarray) -> float:
        s = np.sum(m * weight[0] * t) / max(np.sum(m * t * t), 1e-30)
        return float(np.sum(m * np.square(weight[0] - s * t)))

    best = min(least(np.array(t)) for t in product((-1, 0, 1), repeat=6))
    assert error <= best * 1.005  # the scale is rounded to 11 bits


def test_a_weight_that_is_not_ternary_is_refused() -> None:
    weight = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    with pytest.raises(FitError, match=r"its relative error is 0\.4\d\d, more than 0\.1"):
        fit(linear(*weight.shape), weight, None, TernaryConfig())


def test_two_and_a_half_bits() -> None:
    weight = levels(64, 256)
    made = fit(linear(*weight.shape), weight, None, TernaryConfig())
    assert made.bits_per_weight == 2.5 + 32 / 256
    assert cost(linear(*weight.shape), ANY).stored == sum(t.nbytes for t in made.tensors.values())


def built_with(dense: Path, fields: dict[str, Any]) -> tuple[Report, list[str]]:
    """The report, and the ops of the stages."""
    plugins, out = load(), dense.parent / "out"
    choices = choose(plugins.techniques(), {"ternary": fields})
    policy = dense.parent / "policy.json"
    policy.write_text('{"version": 1, "defaults": {"gating": {}}}')
    report = build(dense, out, choices, plugins, Options(policy=policy, max_dppl=None))
    return report, [stage.op for stage in stages(out)]


def test_a_build_leaves_what_is_not_ternary_to_int4(tiny_dense: Path) -> None:
    report, ops = built_with(tiny_dense, {})
    for name in ("attn_q", "ffn_down"):
        refused, applied = report.sites[f"layers.0.{name}"].techniques
        assert "its relative error is 0.4" in refused.decision.reason
        assert (applied.name, applied.decision.applied) == ("block-quant", True)
    assert "TernaryMatMul" not in ops


def test_a_layer_of_ternary_weights_is_one_node(tiny_dense: Path) -> None:
    _, ops = built_with(tiny_dense, {"max_error": 1})
    assert ops.count("TernaryMatMul") == 2 * 7
