"""state-pack in the feed-forward block: popcounts on ternary weights, and zeros of ReLU.

As in `test_compositions`: CLI → plan → graph → numbers.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from kit.composed import PROMPT, Compose, Composed, needs, strongest
from kit.decoding import stages
from kit.llama_reference import Array
from tamiz.calibration.file import load as load_calibration
from tamiz.files.bundle import sha256
from tamiz.reporting.reader import read_report
from tamiz.runtime.model import Model
from tamiz_ops import metrics

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("mode", "density"), [("binary", 1.0), ("ternary", 1.0), ("ternary", 0.3)])
def test_popcounts_on_ternary_weights(compose: Compose, mode: str, density: float) -> None:
    """state-pack MLP on packed-bits; a token denser than ρ is exact."""
    needs("state-pack-mlp", "ternary")
    flags = ("--ternary-max-error=1", f"--state-pack-mlp={mode}", "--state-pack-mlp-eps=1.5")
    made = compose(*flags, f"--state-pack-mlp-density={density}")
    assert made.order("layers.0.ffn_down") == ["ternary", "state-pack-mlp"]
    assert made.order("layers.0.attn_q") == ["ternary"]
    made.use_weights_of("ternary", max_error=1)
    packed = levels_of_groups(0.0 if mode == "binary" else 1.5, density)
    sites = [s.id for s in made.found.sites if s.tensor in ("ffn_gate", "ffn_up", "ffn_down")]
    made.llama.masks = dict.fromkeys(sites, packed)
    made.check()


def levels_of_groups(eps: float, density: float) -> Callable[[Array], Array]:
    """γ sign(x) where |x| > eps mean|x| of its 32 inputs, else 0; dense tokens as they are."""

    def pack(x: Array) -> Array:
        groups = x.reshape(len(x), -1, 32)
        # where levels cancel, the kernels' integers give 0 and a sum of floats does not
        kept = np.abs(groups) > max(eps, 1e-9) * np.abs(groups).mean(-1, keepdims=True)
        gamma = np.ma.array(np.abs(groups), mask=~kept).mean(-1, keepdims=True).filled(0)
        packed = np.where(kept, gamma * np.sign(groups), 0).reshape(x.shape)
        dense = kept.reshape(len(x), -1).mean(-1, keepdims=True) > density
        return np.where(dense, x, packed)

    return pack


@pytest.fixture
def relu(tiny_dense: Path) -> None:
    """Makes relu(gate) · up of the tiny llama's silu(gate) · up."""
    model = onnx.load(tiny_dense / "model.onnx", load_external_data=False)
    nodes = {name: node for node in model.graph.node for name in node.output}
    for node in [n for n in model.graph.node if n.op_type == "Sigmoid"]:
        node.op_type = "Relu"
        (silu,) = (n for n in nodes.values() if node.output[0] in n.input)
        for user in nodes.values():
            user.input[:] = [node.output[0] if i == silu.output[0] else i for i in user.input]
    path, manifest = tiny_dense / "model.onnx", tiny_dense / "tamiz.json"
    onnx.save(model, path)
    told = json.loads(manifest.read_text())
    told["files"]["model.onnx"] = {"size": path.stat().st_size, "sha256": sha256(path)}
    manifest.write_text(json.dumps(told))


def composed_on_relu(compose: Compose, *flags: str, eps: float, exact: bool = True) -> Composed:
    mask = (f"--state-pack-mask-eps={eps}", "--state-pack-mask-density=0.9")
    made = compose(*flags, *mask, exact=exact)
    made.llama.activation = lambda gate: np.maximum(gate, 0)
    return made


def larger_than(eps: float, block: int) -> Callable[[Array], Array]:
    def mask(x: Array) -> Array:
        blocks = x.reshape(len(x), -1, block)
        return (blocks * (np.linalg.norm(blocks, axis=-1, keepdims=True) > eps)).reshape(x.shape)

    return mask


def test_zeros_of_relu_are_skipped_for_free(
    relu: None, compose: Compose, calibration: Path
) -> None:
    needs("state-pack-mask")
    made = composed_on_relu(compose, f"--calibration={calibration}", eps=0)
    assert made.order("layers.1.ffn_down") == ["block-quant", "state-pack-mask"]
    made.check()
    model = Model.load(made.path, threads=2)
    model.sequence().step(PROMPT[0])
    counted = [node for node in metrics(model.session).values() if "pack.inputs" in node]
    assert len(counted) == made.llama.layers
    for node in counted:
        assert node["pack.active"] == node["pack.enabled"] == 1
        assert 0 < node["pack.nonzero"] < 0.9 * node["pack.inputs"]


@pytest.mark.parametrize(
    ("owner", "block", "flags", "fields"),
    [
        ("proc-sparse", 32, ("--proc-sparse=on", "--proc-sparse-shed-eps=0"), {"shed_eps": 0}),
        ("seed-delta", 32, ("--seed-delta=on", "--seed-delta-k=48"), {"k": 48}),
        ("ternary", 16, ("--ternary=on", "--ternary-max-error=1"), {"max_error": 1}),
    ],
)
def test_zeros_are_skipped_in_the_blocks_of_the_weights(
    relu: None,
    compose: Compose,
    calibration: Path,
    owner: str,
    block: int,
    flags: tuple[str, ...],
    fields: dict[str, Any],
) -> None:
    needs("state-pack-mask", owner)
    made = composed_on_relu(
        compose, f"--calibration={calibration}", *flags, eps=block / 8, exact=False
    )
    assert made.order("layers.1.ffn_down") == [owner, "state-pack-mask"]
    made.use_weights_of(owner, load_calibration(calibration, made.found.bundle), **fields)
    downs = [s.id for s in made.found.sites if s.tensor == "ffn_down"]
    made.llama.masks = dict.fromkeys(downs, larger_than(block / 8, block))
    made.check()


def test_without_zeros_a_site_is_refused(compose: Compose, calibration: Path) -> None:
    """The density gate on the calibration text: silu gives no zeros."""
    needs("state-pack-mask")
    made = compose(f"--calibration={calibration}", "--state-pack-mask=on")
    _, refused = read_report(made.path / "report.json").sites["layers.0.ffn_down"].techniques
    expected = "1.00 of its inputs are not zero on the calibration text, more than density 0.2"
    assert expected in refused.decision.reason
    made.check()


def test_a_mask_of_zeros_and_then_the_strongest(
    relu: None, compose: Compose, calibration: Path
) -> None:
    """state-pack's mask before kwta: what is small is no candidate."""
    needs("state-pack-mask", "kwta")
    made = composed_on_relu(
        compose,
        f"--calibration={calibration}",
        "--state-pack-mask-block=16",
        "--kwta-k=0.5",
        "--kwta-select=topk",
        "--kwta-target=mlp",
        "--kwta-block=16",
        "--kwta-center=false",
        "--kwta-weighted=false",
        eps=1.5,
        exact=False,
    )
    assert made.order("layers.0.ffn_down") == ["block-quant", "state-pack-mask", "kwta"]
    zeros, winners = larger_than(1.5, 16), strongest(0.5, 16)
    masked = [s.id for s in made.found.sites if s.tensor in ("ffn_gate", "ffn_up")]
    made.llama.masks = dict.fromkeys(masked, winners)
    downs = [s.id for s in made.found.sites if s.tensor == "ffn_down"]
    made.llama.masks |= dict.fromkeys(downs, lambda x: winners(zeros(x)))
    made.check()


def test_a_mask_of_zeros_and_then_deltas(relu: None, compose: Compose, calibration: Path) -> None:
    """state-pack's mask before event-driven: no delta of an input that is zero is measured."""
    needs("state-pack-mask", "event-driven")
    made = composed_on_relu(
        compose,
        f"--calibration={calibration}",
        "--event-driven-target=mlp",
        "--event-driven-anywhere=true",
        "--event-driven-select=topk",
        "--event-driven-topk=1",
        eps=0,
        exact=False,
    )
    assert made.order("layers.0.ffn_down") == ["block-quant", "state-pack-mask", "event-driven"]
    zeros = [stage.outputs[-1] for stage in stages(made.path) if stage.op == "ZeroMask"]
    assert len(zeros) == made.llama.layers
    events = [stage for stage in stages(made.path) if stage.op == "EventSelect"]
    assert set(zeros) <= {value for stage in events for value in stage.inputs[5:]}
    made.check()
