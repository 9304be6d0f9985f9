"""Folders of the method ``bitnet`` of transformers: levels and scales, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf, tiny_safetensors
from kit.arrays import relative_error
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters.hf_model import HfModel

SHAPE: dict[str, Any] = {"hidden": 256, "ffn": 512, "head_dim": 64, "rotary_dim": 64}
AUTO = {"quant_method": "bitnet", "linear_class": "autobitlinear"}
ONLINE = {**AUTO, "quantization_mode": "online"}
SCALE, QUERY = 0.0859375, "model.layers.1.self_attn.q_proj.weight"  # a bfloat16


def ternary_model(architecture: str = "bitnet") -> tiny_gguf.TinyModel:
    """A model whose linear layers are levels."""
    model = tiny_gguf.random_model(architecture=architecture, **SHAPE)
    for name, value in model.weights.items():
        if name.endswith("_proj.weight"):
            value[...] = np.clip(np.rint(value / 0.15), -1, 1)
    return model


def packed(levels: np.ndarray) -> np.ndarray:
    """As ``transformers.integrations.bitnet.pack_weights`` does it: quarters of the rows."""
    quarters = np.split((levels + 1).astype(np.uint8), 4)
    return quarters[0] | quarters[1] << 2 | quarters[2] << 4 | quarters[3] << 6


def matrices(folder: Path) -> dict[str, np.ndarray]:
    """The linear layers that the exporter reads."""
    tensors = HfModel(folder).weights().tensors()
    linear = {name: tensor for name, tensor in tensors.items() if name.endswith("_proj.weight")}
    return {name: t.numpy() for name, t in linear.items() if isinstance(t, ir.TensorProtocol)}


def write(folder: Path, model: tiny_gguf.TinyModel, **quantization: Any) -> Path:
    tiny_safetensors.write(folder, model, quantization_config=quantization)
    found = tiny_safetensors.tensors(model)
    for name in [name for name in found if name.endswith("_proj.weight")]:
        found[name] = packed(found[name])
        found[f"{name}_scale"] = np.array([SCALE], np.float32)
    tiny_safetensors.write_file(folder / "model.safetensors", found)
    return folder


@pytest.mark.parametrize(
    ("architecture", "quantization", "factor"),
    [
        ("bitnet", AUTO, SCALE),
        ("bitnet", {"quant_method": "bitnet"}, np.float32(np.float16(1 / SCALE))),
        ("llama", {**AUTO, "modules_to_not_convert": ["lm_head"]}, SCALE),
    ],
)
def test_levels_are_multiplied_by_their_scale(
    tmp_path: Path, architecture: str, quantization: dict[str, Any], factor: float
) -> None:
    model = ternary_model(architecture)
    read = matrices(write(tmp_path, model, **quantization))
    for name, value in model.weights.items():
        if name.endswith("_proj.weight"):
            np.testing.assert_array_equal(read[name], value.T * np.float32(factor), name)


def test_a_packed_folder_runs_in_two_bits(tmp_path: Path, plugins: Plugins) -> None:
    model = ternary_model()
    bundle = export(str(write(tmp_path / "hf", model, **AUTO)), tmp_path / "dense", plugins)
    for name, value in model.weights.items():
        if name.endswith("_proj.weight"):
            value *= np.float32(SCALE)
    ids = np.random.default_rng(1).integers(0, 250, (1, 33))
    expected = tiny_gguf.logits(model, ids, np.ones_like(ids), np.arange(33)[None])
    found = Model.load(bundle.path, threads=1).logits(ids)
    assert relative_error(found, expected) < 5e-4
    sizes = [file.stat().st_size for file in bundle.path.iterdir()]
    linear = sum(v.size for n, v in model.weights.items() if n.endswith("_proj.weight"))
    table = model.weights["model.embed_tokens.weight"].nbytes
    assert sum(sizes) < linear * 2.0625 / 8 + table + 200_000


def test_weights_to_train_further_are_rounded_as_transformers_does(tmp_path: Path) -> None:
    model = tiny_gguf.random_model(architecture="bitnet", **SHAPE)
    tiny_safetensors.write(tmp_path, model, Type.BF16, quantization_config=ONLINE)
    plain = tiny_safetensors.write(tmp_path / "plain", model, Type.BF16)
    stored, read = matrices(plain), matrices(tmp_path)
    for name in (QUERY, QUERY.replace("self_attn.q_proj", "mlp.down_proj")):
        values = stored[name]
        mean = np.abs(values).mean(dtype=np.float64)
        found = read[name]
        np.testing.assert_array_equal(np.sign(found), np.clip(np.rint(values / mean), -1, 1))
        d = np.abs(found).max()
        assert abs(d - mean) <= mean * 2**-8
        assert d.view(np.uint32) & 0xFFFF == 0  # a bfloat16, as the file has
        np.testing.assert_array_equal(np.unique(found), [-d, 0, d])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("linear_class", "bitlinear2", "bitlinear or autobitlinear"),
        ("quantization_mode", "later", "offline or online"),
        ("use_rms_norm", True, "false"),
        ("modules_to_not_convert", ["model.layers.0"], "or no such key"),
    ],
)
def test_fields_that_are_not_understood_are_refused(
    tmp_path: Path, key: str, value: Any, expected: str
) -> None:
    write(tmp_path, ternary_model(), **{**AUTO, key: value})
    with pytest.raises(TamizError, match=rf"quantization_config\.{key}: .*{expected}"):
        HfModel(tmp_path)


def test_a_layer_that_is_stored_otherwise_is_refused(tmp_path: Path) -> None:
    model = ternary_model()
    tiny_safetensors.write(tmp_path / "floats", model, quantization_config=AUTO)
    with pytest.raises(TamizError, match="dtype: found F32, expected U8"):
        HfModel(tmp_path / "floats")
    write(tmp_path / "packed", model, **ONLINE)
    with pytest.raises(TamizError, match="dtype: found U8, expected floats"):
        HfModel(tmp_path / "packed")
    narrow = tiny_gguf.random_model(architecture="bitnet")
    tiny_safetensors.write(tmp_path / "narrow", narrow, quantization_config=ONLINE)
    with pytest.raises(TamizError, match=r"shape: found .*64.*, expected a matrix with a multiple"):
        HfModel(tmp_path / "narrow")


@pytest.mark.parametrize("damage", ["no scale", "scale of zero", "level"])
def test_damaged_weights_end_in_a_sentence(tmp_path: Path, damage: str) -> None:
    model = ternary_model()
    write(tmp_path, model, **AUTO)
    found = tiny_safetensors.tensors(model)
    for name in [name for name in found if name.endswith("_proj.weight")]:
        found[name] = packed(found[name]) | np.uint8(3 if damage == "level" else 0)
        if damage != "no scale":
            found[f"{name}_scale"] = np.array([float(damage == "level")], np.float32)
    tiny_safetensors.write_file(tmp_path / "model.safetensors", found)
    with pytest.raises(TamizError, match=r"expected (one float|a scale that|-1, 0 or 1)"):
        matrices(tmp_path)
