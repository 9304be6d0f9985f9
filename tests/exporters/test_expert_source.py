"""Experts of gpt-oss in safetensors: the same weights as in GGUF, bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf, tiny_safetensors
from kit.arrays import relative_error
from kit.mixtures import MIXTURES
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters.expert_source import ExpertSource
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.hf_model import HfModel
from tamiz_exporters.stored_tensor import StoredTensor

BLOCKS, SCALES = "down_proj_blocks", "down_proj_scales"


class Tensors:
    """A source of some tensors."""

    path = Path("model")

    def __init__(self, tensors: Mapping[str, np.ndarray], kind: Type = Type.I8) -> None:
        self.tensors = {
            name: StoredTensor(name, x.shape, kind, x.reshape(-1, x.shape[-1]).view(np.uint8))
            for name, x in tensors.items()
        }

    def fail(self, field: str, found: Any, expected: str) -> Any:
        raise TamizError(f"{self.path}: {field}: found {found}, expected {expected}")


def random_bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("kind", [Type.MXFP4, Type.F32, Type.F16, Type.BF16])
def test_weights_are_those_of_the_gguf(tmp_path, kind) -> None:
    others = Type.BF16 if kind is Type.MXFP4 else kind
    model = tiny_gguf.random_model(**MIXTURES["gpt-oss"])
    held = tiny_gguf.write(tmp_path / "tiny.gguf", model, others, kind)
    tiny_safetensors.write(tmp_path / "hf", held, kind)
    in_gguf = GgufFile(tmp_path / "tiny.gguf").tensors
    for weight in HfModel(tmp_path / "hf").weights().find():
        if ".mlp.experts." not in weight.target:
            continue
        parts = weight.target.split(".")
        stored = in_gguf[f"blk.{parts[2]}.ffn_{parts[5].removesuffix('_proj')}_exps.{parts[6]}"]
        found = weight.tensor.dequantize(weight.rows)
        np.testing.assert_array_equal(found.ravel(), stored.dequantize().ravel())
        if parts[6] == "weight":
            rows = (
                weight.tensor.stored()
                if weight.rows is None
                else weight.tensor.stored()[weight.rows]
            )
            np.testing.assert_array_equal(rows, stored.stored())


def test_logits_of_a_folder_in_mxfp4(tmp_path, plugins) -> None:
    model = tiny_gguf.random_model(**MIXTURES["gpt-oss"])
    held = tiny_gguf.write(tmp_path / "tiny.gguf", model, Type.BF16, Type.MXFP4)
    source = tiny_safetensors.write(tmp_path / "hf", held, Type.MXFP4)
    bundle = export(str(source), tmp_path / "dense", plugins)
    assert bundle.manifest.weights == "stored"
    ids = np.random.default_rng(1).integers(0, 250, (1, 33))
    found = Model.load(bundle.path, threads=1).logits(ids)
    expected = tiny_gguf.logits(held, ids, np.ones_like(ids), np.arange(33)[None])
    assert relative_error(found, expected) < 2e-3  # inputs of 16 bits; see test_gguf_stored


def test_blocks_are_read_as_transformers_reads_them() -> None:
    """Byte i has inputs 2i and 2i + 1 (``convert_moe_packed_tensors`` of transformers 5.24)."""
    numbers = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    blocks, scales = random_bytes(2, 3, 4, 16), random_bytes(2, 3, 4) % 20 + 117
    found = ExpertSource(Tensors({BLOCKS: blocks, SCALES: scales}), ["down_proj"]).tensors
    expected = np.stack([numbers[blocks & 15], numbers[blocks >> 4]], -1).reshape(2, 3, 4, 32)
    expected = np.ldexp(expected, scales[..., None].astype(int) - 127)
    assert list(found) == ["down_proj.weight"]
    np.testing.assert_array_equal(
        found["down_proj.weight"].dequantize(), expected.reshape(2, 3, 128)
    )


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({BLOCKS: random_bytes(2, 3, 4, 8)}, "blocks: shape: found .*, expected experts, rows,"),
        ({BLOCKS: random_bytes(2, 3, 4, 16)}, "down_proj_scales: found no such tensor, expected"),
        (
            {BLOCKS: random_bytes(2, 3, 4, 16), SCALES: random_bytes(2, 3, 5)},
            r"scales: found \(2, 3, 5\), expected shape \(2, 3, 4\)",
        ),
    ],
)
def test_blocks_without_their_scales_are_refused(tensors, message) -> None:
    with pytest.raises(TamizError, match=message):
        ExpertSource(Tensors(tensors), ["down_proj"])


def test_blocks_of_other_numbers_are_refused() -> None:
    floats = {BLOCKS: np.zeros((2, 3, 4, 16), np.float32), SCALES: np.zeros((2, 3, 4), np.float32)}
    with pytest.raises(TamizError, match="blocks: dtype: found F32, expected U8"):
        ExpertSource(Tensors(floats, Type.F32), ["down_proj"])


def test_another_quantisation_is_refused_by_name(tmp_path) -> None:
    model = tiny_gguf.random_model(**MIXTURES["gpt-oss"])
    tiny_safetensors.write(tmp_path, model, quantization_config={"quant_method": "awq"})
    with pytest.raises(TamizError, match="quant_method: found awq, expected mxfp4"):
        HfModel(tmp_path)


@pytest.mark.parametrize("field", ["swiglu_limit", "swiglu_alpha"])
def test_another_clamp_is_refused_by_name(tmp_path, field) -> None:
    model = tiny_gguf.random_model(**MIXTURES["gpt-oss"])
    changed: dict[str, Any] = {field: 5.0}
    tiny_safetensors.write(tmp_path, model, **changed)
    with pytest.raises(TamizError, match=f"{field}: found 5.0, expected"):
        HfModel(tmp_path)
