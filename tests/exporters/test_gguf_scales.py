"""Factors of whole NVFP4 tensors in a GGUF: they become a part of the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.arrays import relative_error
from kit.gguf_append import append_tensors
from kit.gguf_names import gguf_names
from kit.mixtures import gguf_experts
from kit.tiny_gguf import TinyModel
from tamiz.api.linear import linear_at, weight_array
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_split import open_gguf

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(Type, "NVFP4"), reason="gguf-py knows no NVFP4"),
]

#: As in tests/exporters/test_gguf_stored.py.
RELATIVE_ERROR = 5e-4
WIDE: dict[str, Any] = {"hidden": 256, "ffn": 512, "heads": 4, "head_dim": 64, "rotary_dim": 64}


def write(path: Path, **shape: Any) -> tuple[TinyModel, dict[str, np.ndarray]]:
    """A model of NVFP4 whose tensors have factors; returns what it holds, and the factors."""
    model = tiny_gguf.random_model(tied=False, **{**WIDE, **shape})
    held = tiny_gguf.write(path, model, Type.NVFP4)
    rng = np.random.default_rng(4)
    factors: dict[str, np.ndarray] = {}
    for name, tensor in GgufFile(path).tensors.items():
        if tensor.type is Type.NVFP4 and name != "token_embd.weight":
            count = tensor.shape[0] if len(tensor.shape) == 3 else 1
            stem = name.removesuffix(".weight")
            factors[f"{stem}.scale"] = rng.uniform(0.6, 1.7, count).astype(np.float32)
            factors[f"{stem}.input_scale"] = rng.uniform(0.1, 0.2, count).astype(np.float32)
    append_tensors(path, factors)
    return held, factors


def scaled(held: TinyModel, factors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights with their factors, in float64."""
    found = {name: rows.astype(np.float64) for name, rows in held.weights.items()}
    for name, source in gguf_names(held).items():
        if (factor := factors.get(source.replace(".weight", ".scale"))) is not None:
            found[name] *= factor.astype(np.float64)
    for name, source in gguf_experts(held).items():
        for expert, factor in enumerate(factors.get(source.replace(".weight", ".scale"), ())):
            found[name.format(expert)] *= float(factor)
    return found


_EXPERTS = {"architecture": "qwen3moe", "experts": 4, "top": 2}
MODELS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {**_EXPERTS, "expert_ffn": 256},
    "narrow": {"ffn": 320},
    "narrow experts": {**_EXPERTS, "expert_ffn": 64},
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_factors(tmp_path, plugins, name) -> None:
    held, factors = write(tmp_path / "tiny.gguf", **MODELS[name])
    weights = {key: rows.astype(np.float32) for key, rows in scaled(held, factors).items()}
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "bundle", plugins)
    ids = np.random.default_rng(1).integers(0, 250, (1, 33))
    mask, positions = np.ones_like(ids), np.arange(33)[None]
    expected = tiny_gguf.logits(replace(held, weights=weights), ids, mask, positions)
    assert relative_error(Model.load(bundle.path, threads=1).logits(ids), expected) < RELATIVE_ERROR
    floats = export(str(tmp_path / "tiny.gguf"), tmp_path / "floats", plugins, "float32")
    assert relative_error(Model.load(floats.path, threads=1).logits(ids), expected) < RELATIVE_ERROR


def test_weights_are_stored_with_their_factors(tmp_path, plugins) -> None:
    """Rounded to float32 once with a scale, and once with an element."""
    held, factors = write(tmp_path / "tiny.gguf")
    exact = scaled(held, factors)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "bundle", plugins)
    found = survey(bundle, plugins)
    nodes = {node.name: node for node in found.model.graph}
    sites = [site for site in found.sites if site.weight is not None]
    assert {site.format for site in sites} == {"nvfp4"}
    for site in sites:
        rows = weight_array(linear_at(nodes[site.node]), site)
        np.testing.assert_allclose(rows, exact[site.weight], rtol=2**-23, err_msg=site.id)


def test_rows_that_are_no_whole_super_blocks_have_elements_of_8_bits(tmp_path, plugins) -> None:
    held, factors = write(tmp_path / "tiny.gguf", ffn=320)
    exact = scaled(held, factors)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "bundle", plugins)
    found = survey(bundle, plugins)
    nodes = {node.name: node for node in found.model.graph}
    sites = {site.weight: site for site in found.sites if site.weight is not None}
    down = sites["model.layers.0.mlp.down_proj.weight"]
    assert down.format == "affine8_16"
    rows = weight_array(linear_at(nodes[down.node]), down)
    np.testing.assert_allclose(rows, exact[down.weight], rtol=2**-23)
    assert sites["model.layers.0.mlp.up_proj.weight"].format == "nvfp4"


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("blk.0.ffn_up.scale", [1, 2], "blk.0.ffn_up.scale: found F32 of shape 2, expected F32 of"),
        ("blk.0.ffn_up.scale", [np.nan], "blk.0.ffn_up.scale: found NaN or infinity, expected fin"),
        ("blk.0.attn_norm.scale", [1], "blk.0.attn_norm.scale: found the tensor, expected none bu"),
    ],
)
def test_other_factors_are_refused(tmp_path, plugins, name, values, message) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(tied=False, **WIDE), Type.NVFP4)
    append_tensors(path, {name: np.array(values, np.float32)})
    with pytest.raises(TamizError, match=message.replace(".", r"\.")):
        export(str(path), tmp_path / "bundle", plugins)


def test_factors_beside_other_types_are_refused(tmp_path, plugins) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(), Type.Q8_0)
    append_tensors(path, {"blk.0.ffn_up.scale": np.ones(1, np.float32)})
    assert "blk.0.ffn_up.scale" in open_gguf(path).tensors
    with pytest.raises(TamizError, match=r"blk\.0\.ffn_up\.scale: found the tensor, expected none"):
        export(str(path), tmp_path / "bundle", plugins)
