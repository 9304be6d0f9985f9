"""Products of `up` that the gate makes 0 are left out: the graph, and equal bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import tamiz_ops
from kit.ops_graphs import model, node, session
from tamiz_state_pack.unneeded import SkipUnneeded

N, K = 96, 1024


def weight(n: int, k: int, seed: int, scale_bits: int, channels: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    quants, groups = rng.integers(0, 16, (n, k), dtype=np.uint8), -(-k // 32)
    kind = "channels" if channels else "int4"
    if scale_bits == 8:
        factors = rng.integers(0, 256, (2, n, groups), dtype=np.uint8)
        units = rng.uniform(0.001, 0.002, n).astype(np.float16)
        packed: np.ndarray = getattr(tamiz_ops, f"pack_{kind}_in_units")(quants, *factors, units)
        return packed
    scales = rng.uniform(0.01, 0.02, (n, groups)).astype(np.float16)
    packed = getattr(tamiz_ops, f"pack_{kind}")(quants, scales, np.float16(-7.5) * scales)
    return packed


def block(
    activation: str = "relu2",
    scale_bits: int = 16,
    normed: bool = False,
    gated: bool = True,
    mask: dict[str, Any] | None = None,
    more: list[str] | None = None,
    k: int = K,
) -> bytes:
    """A feed-forward block whose second product is masked."""
    sizes: dict[str, Any] = {"n": N, "k": k, "bits": 4, "scale_bits": scale_bits}
    last = {"n": k, "k": N, "scale_bits": scale_bits}
    up = [node("BlockMatMul", ["x", "up", "", "bias"], ["u"], "up", **sizes)] if gated else []
    h = "normed" if normed else "h"
    nodes = [
        node("BlockMatMul", ["x", "gate"], ["g"], "gate", **sizes),
        *up,
        node("SwiGLU", ["g", *(["u"] if gated else [])], ["h"], activation=activation),
        *([node("RMSNorm", ["h", "norm"], ["normed"])] if normed else []),
        node("ZeroMask", [h], ["mask"], **(mask or {})),
        node("ChannelMatMul", [h, "down", "mask"], ["y"], "down", **last),
    ]
    constants = {"gate": weight(N, k, 0, scale_bits)}
    constants["down"] = weight(k, N, 2, scale_bits, channels=True)
    if gated:
        constants |= {"up": weight(N, k, 1, scale_bits), "bias": np.ones(N, np.float32)}
    if normed:
        constants["norm"] = np.linspace(0.5, 2, N, dtype=np.float32)
    return model(nodes, ["x"], ["y", *(more or [])], constants)


def rewritten(before: bytes) -> tuple[bytes, SkipUnneeded, bool]:
    graph = ir.from_proto(onnx.load_from_string(before))
    graph_pass = SkipUnneeded()
    modified = graph_pass(graph).modified
    proto: onnx.ModelProto = ir.to_proto(graph)
    return proto.SerializeToString(), graph_pass, modified


@pytest.mark.parametrize("activation", ["relu", "relu2"])
@pytest.mark.parametrize("scale_bits", [16, 8])
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_bits_stay_and_up_is_chosen(activation, scale_bits, normed, rows) -> None:
    before = block(activation, scale_bits, normed)
    after, _, modified = rewritten(before)
    assert modified
    made = onnx.load_from_string(after)
    ops = [each.op_type for each in made.graph.node]
    assert ops.count("ChosenMatMul") == 1
    assert "up" not in {tensor.name for tensor in made.graph.initializer}
    x = np.random.default_rng(3).standard_normal((rows, K)).astype(np.float32)
    expected, found = (session(each).run(None, {"x": x})[0] for each in (before, after))
    np.testing.assert_array_equal(found, expected)
    assert np.abs(found).max() > 0


def test_weights_of_up_are_read_where_the_gate_is_open() -> None:
    after, _, _ = rewritten(block())
    run = session(after)
    run.run(None, {"x": np.random.default_rng(3).standard_normal((1, K)).astype(np.float32)})
    counted = tamiz_ops.metrics(run)
    kept = next(c["pack.nonzero"] for c in counted.values() if "pack.nonzero" in c)
    assert 0 < kept < N
    assert counted["up"]["matmul.bytes_read"] == kept * 640


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"activation": "silu"}, "relu or relu2"),
        ({"mask": {"epsilon": 0.5}}, "not that of all zeros"),
        ({"mask": {"block": 32}}, "not that of all zeros"),
        ({"gated": False}, "no up of int4"),
        ({"more": ["u"]}, "no up of int4"),
        ({"k": 600}, "no multiple of 512"),
    ],
)
def test_other_blocks_stay(changes: dict[str, Any], reason: str) -> None:
    before = block(**changes)
    _, graph_pass, modified = rewritten(before)
    assert not modified
    (note,) = graph_pass.notes
    assert reason in note.reason
