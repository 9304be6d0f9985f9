"""Techniques on a model with soft caps of scores and logits, against the model in NumPy."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.command_line import ok
from kit.composed import needs
from kit.decoding import built, distance, steps
from tamiz.plugins import Plugins, load
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_ops.program import read_program

pytestmark = pytest.mark.slow

CAPS = (1.0, 3.0)
IDS = np.random.default_rng(1).integers(3, 250, 160).tolist()
START = 135
#: Relative error of products with 16-bit weights, in logits.
EXACT = 1e-3


@pytest.fixture
def gemma(tmp_path: Path) -> tiny_gguf.TinyModel:
    """The model that a file of 16-bit weights holds; a build keeps these."""
    shape: dict[str, Any] = {"architecture": "gemma2", "layers": 4, "window": 8}
    model = tiny_gguf.random_model(**shape, soft_caps=CAPS)
    return tiny_gguf.write(tmp_path / "model.gguf", model, Type.F16)


@pytest.fixture
def dense(gemma: tiny_gguf.TinyModel, tmp_path: Path) -> Path:
    return export(str(tmp_path / "model.gguf"), tmp_path / "dense", load()).path


def in_numpy(model: tiny_gguf.TinyModel) -> np.ndarray:
    """Logits of the steps that `steps` gives."""
    ids = np.array([IDS])
    logits = tiny_gguf.logits(model, ids, np.ones_like(ids), np.arange(len(IDS))[None])
    return logits[0, START - 1 :]


def caps(bundle: Path) -> list[float]:
    """The soft caps of all attentions of a bundle."""
    found = []
    for node in ir.load(bundle / "model.onnx").graph:
        if node.op_type == "Attention":
            found.append(node.attributes["softcap"].as_float())
        elif node.op_type == "Fused":
            stages = read_program(node.attributes["program"].as_string())
            found += [s.attributes.get("softcap", 0.0) for s in stages if s.op == "Attention"]
    return [float(cap) for cap in found]


def narrowed(model: tiny_gguf.TinyModel, window: int) -> tiny_gguf.TinyModel:
    """The model with this window in every layer."""

    class Narrowed(tiny_gguf.TinyModel):
        def window_of(self, layer: int) -> int:
            return window

    return Narrowed(**{field.name: getattr(model, field.name) for field in fields(model)})


def test_without_techniques(plugins: Plugins, gemma: tiny_gguf.TinyModel, dense: Path) -> None:
    out = built(plugins, dense, "plain")
    assert caps(out) == [CAPS[0]] * 4
    assert distance(steps(Model.load(out), IDS, START), in_numpy(gemma)) < EXACT


def test_a_cache_of_bytes(plugins: Plugins, gemma: tiny_gguf.TinyModel, dense: Path) -> None:
    needs("kv-int8")
    out = built(plugins, dense, "bytes", kv_int8={})
    assert caps(out) == [CAPS[0]] * 4
    assert 0 < distance(steps(Model.load(out), IDS, START), in_numpy(gemma)) < 0.02


def test_a_narrower_window(plugins: Plugins, gemma: tiny_gguf.TinyModel, dense: Path) -> None:
    needs("window-attention")
    out = built(plugins, dense, "window", window_attention={"tokens": 6, "sinks": 0})
    assert caps(out) == [CAPS[0]] * 4
    model = Model.load(out)
    assert distance(steps(model, IDS, START), in_numpy(narrowed(gemma, 6))) < EXACT
    model = Model.load(out, without=["window-attention"])
    assert distance(steps(model, IDS, START), in_numpy(gemma)) < EXACT


#: They keep most keys of the layers that see all, and so most of each softmax.
FILTERS: dict[str, dict[str, Any]] = {
    "state-pack": {"keep": 60, "recent": 32},
    "key-filter": {"keep": 60},
    "event-attention": {"least_keys": 0, "theta": 0.01},
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters_of_keys(
    name: str, plugins: Plugins, gemma: tiny_gguf.TinyModel, dense: Path
) -> None:
    needs(name)
    techniques: dict[str, Any] = {name.replace("-", "_"): FILTERS[name]}
    out = built(plugins, dense, "filtered", **techniques)
    assert caps(out) == [CAPS[0]] * 4
    model = Model.load(out)
    assert 0 < distance(steps(model, IDS, START), in_numpy(gemma)) < 0.2
    model = Model.load(out, without=[name])
    assert distance(steps(model, IDS, START), in_numpy(gemma)) < EXACT


def test_a_shortlist_of_the_head(
    plugins: Plugins, gemma: tiny_gguf.TinyModel, dense: Path, tmp_path: Path
) -> None:
    """With all tokens exact, the capped logits are those of the model."""
    needs("head-shortlist")
    (tmp_path / "text").write_text("hello world, this is a sieve. " * 80)
    calibration = tmp_path / "calibration"
    ok("calibrate", dense, "-o", calibration, "--text", tmp_path / "text", "--windows", 2)
    config = {"keep": gemma.vocabulary, "dims": 16}
    out = built(plugins, dense, "short", calibration, head_shortlist=config, block_quant={})
    model, exact = Model.load(out), Model.load(built(plugins, dense, "exact", block_quant={}))
    np.testing.assert_array_equal(steps(model, IDS, START), steps(exact, IDS, START))
    assert np.abs(steps(model, IDS, START)).max() < CAPS[1]
