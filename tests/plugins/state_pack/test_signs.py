"""Prediction of closed gates: what limits find, the graph, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import tamiz_ops
from kit.ops_graphs import model, node, session
from tamiz.api import Fit, FitError, Site, SiteKind, Statistics
from tamiz_state_pack.signs import PAYS, SignsConfig, fit, rewrite
from tamiz_state_pack.unneeded import SkipUnneeded

N, K, SAMPLES = 160, 512, 600
SITE = Site("layers.0.ffn_gate", SiteKind.LINEAR, "gate", 0, "ffn_gate", "w", K, N)


def weight(lean: float = 0.06, seed: int = 0) -> np.ndarray:
    """Rows that lean against the mean input, some more and some less."""
    rng = np.random.default_rng(seed)
    leans = rng.uniform(0, 2, (N, 1)) * lean
    values: np.ndarray = (rng.standard_normal((N, K)) / np.sqrt(K) - leans).astype(np.float32)
    return values


def inputs(samples: int = SAMPLES, mean: float = 0.05, seed: int = 1) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((samples, K)) + mean
    return x.astype(np.float32)


def statistics(x: np.ndarray) -> Statistics:
    return Statistics(len(x), np.square(x).mean(axis=0), x)


def predicted(found: Fit, x: np.ndarray) -> np.ndarray:
    order = [found.tensors[name] for name in ("signs", "limits", "center")]
    attributes: dict[str, Any] = {**found.attributes}
    mask: np.ndarray = tamiz_ops.run("SignMask", [x, *order], **attributes)[0]
    return mask


@pytest.mark.parametrize("recall", [0.8, 0.95])
@pytest.mark.parametrize("planes", [1, 2, 4])
def test_limits_find_the_wanted_part_of_open_gates(recall: float, planes: int) -> None:
    w, x = weight(), inputs()
    found = fit(SITE, w, statistics(x), SignsConfig(recall=recall, density=1, planes=planes))
    held_out = x[SAMPLES - SAMPLES // 5 :]
    mask, is_open = predicted(found, held_out) != 0, held_out @ w.T > 0
    assert is_open.mean() == pytest.approx(found.metrics["density"], abs=1e-3)
    assert 0.01 < is_open.mean() < 0.3
    assert mask[is_open].mean() == pytest.approx(found.metrics["recall"], abs=2e-3)
    assert mask.mean() == pytest.approx(found.metrics["predicted"], abs=2e-3)
    assert found.metrics["recall"] == pytest.approx(recall, abs=5e-3)
    fresh = inputs(seed=2)
    assert (predicted(found, fresh) != 0)[fresh @ w.T > 0].mean() == pytest.approx(recall, abs=0.05)


def test_more_bits_of_inputs_and_limits_of_gates_compute_less() -> None:
    w, x = weight(), inputs()
    shares = [
        fit(SITE, w, statistics(x), SignsConfig(recall=0.95, density=1, planes=planes)).metrics[
            "predicted"
        ]
        for planes in (1, 2, 4)
    ]
    assert shares == sorted(shares, reverse=True)
    # SparseInfer: signs of x itself, one ratio for the layer.
    agree = np.sign(x) @ np.sign(w).T
    is_open = x @ w.T > 0
    one_ratio = (agree >= np.quantile(agree[is_open], 0.05)).mean()
    assert shares[0] < one_ratio


def test_strength_misses_more() -> None:
    w, x = weight(), statistics(inputs())
    weak, strong = (
        fit(SITE, w, x, SignsConfig(strength=strength, density=1)).metrics
        for strength in (1.0, 5.0)
    )
    assert weak["recall"] == pytest.approx(0.98, abs=5e-3)
    assert strong["recall"] == pytest.approx(0.9, abs=5e-3)
    assert strong["predicted"] < weak["predicted"]
    assert 0 < weak["output_rel_l2"] < strong["output_rel_l2"] < 0.3


@pytest.mark.parametrize(
    ("x", "w", "config", "reason"),
    [
        (inputs(63), weight(), {}, "at least 64, found 63"),
        (inputs(), weight(lean=0), {}, f"more than density {PAYS:g}: skipping would not pay"),
        (inputs(), weight(), {"density": 0.01}, "more than density 0.01"),
        (inputs(mean=9), weight(lean=9), {}, "none of its outputs is positive"),
        (np.full((100, K), 3e38, np.float32), weight(), {}, "are not finite"),
    ],
)
def test_what_does_not_pay_is_refused(x: Any, w: Any, config: dict[str, Any], reason: str) -> None:
    with pytest.raises(FitError, match=reason), np.errstate(all="ignore"):
        fit(SITE, w, statistics(x), SignsConfig(**config))


def test_inputs_that_records_pad_are_refused() -> None:
    site = Site(SITE.id, SITE.kind, SITE.node, 0, SITE.tensor, "w", 500, N)
    x = statistics(inputs()[:, :500])
    with pytest.raises(FitError, match="no multiple of 512"):
        fit(site, weight()[:, :500], x, SignsConfig())


def packed(n: int, k: int, seed: int, channels: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.02, (n, -(-k // 32))).astype(np.float16)
    pack = tamiz_ops.pack_channels if channels else tamiz_ops.pack_int4
    values: np.ndarray = pack(quants, scales, np.float16(-7.5) * scales)
    return values


def block(activation: str = "relu2", bias: bool = False, activation_bits: int = 16) -> ir.Model:
    """A feed-forward block whose second product is masked."""
    sizes: dict[str, Any] = {"n": N, "k": K, "bits": 4}
    more = {"activation_bits": activation_bits}
    gate = ["x", "gate", "", *(["bias"] if bias else [])]
    nodes = [
        node("BlockMatMul", gate, ["g"], "gate", **sizes, **more),
        node("BlockMatMul", ["x", "up"], ["u"], "up", **sizes),
        node("SwiGLU", ["g", "u"], ["h"], activation=activation),
        node("ZeroMask", ["h"], ["mask"]),
        node("ChannelMatMul", ["h", "down", "mask"], ["y"], "down", n=K, k=N),
    ]
    constants = {"gate": packed(N, K, 0), "up": packed(N, K, 1), "down": packed(K, N, 2, True)}
    constants |= {"bias": np.ones(N, np.float32)} if bias else {}
    return ir.from_proto(onnx.load_from_string(model(nodes, ["x"], ["y"], constants)))


def serialized(graph: ir.Model) -> bytes:
    proto: onnx.ModelProto = ir.to_proto(graph)
    return proto.SerializeToString()


@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_gates_that_are_predicted_open_are_exact(activation: str, rows: int) -> None:
    gate, up, down = (packed(*size) for size in ((N, K, 0), (N, K, 1), (K, N, 2, True)))
    w = tamiz_ops.dequantize(gate, 4, N, K)
    found = fit(SITE, w, statistics(inputs()), SignsConfig(recall=0.9, density=1))
    graph = block(activation)
    assert [made.op_type for made in rewrite(SITE, found, graph)] == ["SignMask", "ChosenMatMul"]
    assert SkipUnneeded()(graph).modified
    assert [made.op_type for made in graph.graph].count("ChosenMatMul") == 2
    x = inputs(rows, seed=3)
    mask = predicted(found, x)
    g, u = (tamiz_ops.run("BlockMatMul", [x, each], bits=4, n=N, k=K)[0] for each in (gate, up))
    g = np.where(mask != 0, g, np.float32(0))
    [h] = tamiz_ops.run("SwiGLU", [g, u], activation=activation)
    [expected] = tamiz_ops.run("ChannelMatMul", [h, down], n=K, k=N)
    [y] = session(serialized(graph)).run(None, {"x": x})
    np.testing.assert_array_equal(y, expected)
    assert 0 < mask.mean() < 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "silu"}, "its activation is silu, expected relu or relu2"),
        ({"bias": True}, "no bias"),
        ({"activation_bits": 8}, "inputs of 16 bits"),
    ],
)
def test_other_gates_are_refused_and_stay(changes: dict[str, Any], reason: str) -> None:
    found = fit(SITE, weight(), statistics(inputs()), SignsConfig(recall=0.9, density=1))
    graph = block(**changes)
    before = serialized(graph)
    with pytest.raises(FitError, match=reason):
        rewrite(SITE, found, graph)
    assert serialized(graph) == before
