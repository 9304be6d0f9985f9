"""Behind its attention the last layer computes only the positions that the head needs."""

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_ops
from kit.decoders import constant, decoder, run_passes, session
from tamiz.api.editing import GraphEditor
from tamiz.api.site import SiteKind
from tamiz_passes.fuse import FuseNodes
from tamiz_passes.last_layer import LastLayer
from tamiz_passes.sites import find_sites


def packed(mask: str = "") -> ir.Model:
    """A decoder of two layers with 8-bit products; the site `mask` has a mask."""
    model = decoder()
    run_passes(model)
    for site in find_sites(model)[0]:
        if site.kind is not SiteKind.LINEAR:
            continue
        graph = GraphEditor(model)
        linear = graph.linear(site)
        n, k = site.out_features, site.in_features
        weight = int8(linear.weight.const_value.numpy().T)
        inputs: dict[str, Any] = {
            "x": linear.input,
            "weight": graph.constant(f"{site.id}.int8", weight),
            "bias": linear.bias,
        }
        if site.id == mask:
            inputs["mask"] = constant(model, "mask", np.ones((1, 1, k)), np.uint8)
        graph.replace(linear, "BlockMatMul", inputs, {"bits": 8, "n": n, "k": k})
    return model


def int8(weight: np.ndarray) -> np.ndarray:
    scales = np.full((len(weight), weight.shape[1] // 32), 0.01, np.float16)
    quants = np.rint(weight * 100).clip(-127, 127).astype(np.int8)
    return tamiz_ops.pack_int8(quants, scales)


def after_attention(model: ir.Model) -> list[str]:
    """The ops of the domain behind the last attention, sorted."""
    types = [node.op_type for node in model.graph if node.domain == "tamiz"]
    return sorted(types[len(types) - types[::-1].index("Attention") :])


def logits(model: ir.Model, keep: int) -> np.ndarray:
    ids = np.random.default_rng(2).integers(0, 250, (2, 21))
    run = session(model)
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.broadcast_to(np.arange(21), ids.shape),
        "logits_to_keep": np.array([keep]),
    }
    for item in run.get_inputs():
        if item.name.startswith("past"):
            feeds[item.name] = np.zeros((2, item.shape[1], 0, item.shape[3]), np.float32)
    given = {item.name for item in run.get_inputs()} | {"logits_to_keep"}
    return run.run(["logits"], {k: v for k, v in feeds.items() if k in given})[0]


def test_positions_are_chosen_behind_the_last_attention() -> None:
    model = packed()
    assert LastLayer()(model).modified
    products = ["BlockMatMul"] * 4  # o, gate, up and down
    assert after_attention(model) == [*products, *["LastPositions"] * 2, *["RMSNorm"] * 2, "SwiGLU"]
    chosen = [node.inputs[0] for node in model.graph if node.op_type == "LastPositions"]
    assert sorted(value.producer().op_type for value in chosen) == ["Attention", "RMSNorm"]


@pytest.mark.parametrize("keep", [0, 1, 5, 21])
@pytest.mark.parametrize("fused", [False, True])
def test_logits_keep_their_bits(keep, fused) -> None:
    model, moved = packed(), packed()
    assert LastLayer()(moved).modified
    if fused:
        FuseNodes()(moved)
    np.testing.assert_array_equal(logits(moved, keep), logits(model, keep))


def test_a_product_with_a_mask_stays() -> None:
    model = packed(mask="layers.1.ffn_down")
    assert LastLayer()(model).modified
    chosen = [node.inputs[0] for node in model.graph if node.op_type == "LastPositions"]
    assert sorted(value.producer().op_type for value in chosen) == ["BlockMatMul", "RMSNorm"]


def test_a_second_run_changes_nothing() -> None:
    model = packed()
    assert LastLayer()(model).modified
    assert not LastLayer()(model).modified
