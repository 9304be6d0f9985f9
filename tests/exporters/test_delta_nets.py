"""Gated delta nets from Hugging Face's files and GGUF, beside the same model in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf, tiny_safetensors
from kit.arrays import relative_error
from kit.delta_nets import DELTA_NETS
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters import safetensors

#: The norm of a value head divides by what may be small.
RELATIVE_ERROR = 5e-5
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 5e-3


def ids(batch: int = 1) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (batch, 33))


def expected_logits(model: tiny_gguf.TinyModel) -> np.ndarray:
    return tiny_gguf.logits(model, ids(), np.ones_like(ids()), np.arange(33)[None])


def logits(bundle: Bundle) -> np.ndarray:
    return Model.load(bundle.path, threads=1).logits(ids())


@pytest.fixture(params=DELTA_NETS)
def model(request: pytest.FixtureRequest) -> tiny_gguf.TinyModel:
    return tiny_gguf.random_model(**DELTA_NETS[request.param])


def test_logits_equal_the_model_in_numpy(
    tmp_path: Path, plugins: Plugins, model: tiny_gguf.TinyModel
) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", model)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    for number, path in enumerate((source, tmp_path / "tiny.gguf")):
        bundle = export(str(path), tmp_path / f"dense{number}", plugins, "float32")
        assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


def test_only_the_recurrence_is_an_op_of_tamiz(
    tmp_path: Path, plugins: Plugins, model: tiny_gguf.TinyModel
) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", model)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    nodes = [node for node in ir.load(bundle.path / "model.onnx").graph if node.domain]
    assert [node.op_type for node in nodes] == ["GatedDeltaNet"] * 3


@pytest.mark.parametrize("kind", [Type.F16, Type.Q8_0], ids=lambda kind: kind.name)
def test_stored_weights_of_a_gguf_are_kept(
    tmp_path: Path, plugins: Plugins, model: tiny_gguf.TinyModel, kind: Type
) -> None:
    held = tiny_gguf.write(tmp_path / "tiny.gguf", model, kind)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    assert relative_error(logits(bundle), expected_logits(held)) < STORED_ERROR


def test_every_linear_is_a_site(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**DELTA_NETS["qwen35"])
    source = tiny_safetensors.write(tmp_path / "hf", model)
    found = survey(export(str(source), tmp_path / "dense", plugins, "float32"), plugins)
    assert found.recognised["Attention"] == 1, found.notes
    assert found.recognised["SwiGLU"] == 4, found.notes
    named = {site.id for site in found.sites}
    parts = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
    assert {f"layers.0.linear_attn.{part}" for part in parts} <= named
    assert {f"layers.3.{part}" for part in ("attn_q", "attn_k", "attn_v", "attn_o")} <= named
    assert "layers.3.self_attn.output_gate" in named
    assert {f"layers.{n}.ffn_{part}" for n in range(4) for part in ("gate", "up", "down")} <= named


def test_a_model_that_also_reads_pictures_gives_its_text_model(
    tmp_path: Path, plugins: Plugins
) -> None:
    model = tiny_gguf.random_model(**DELTA_NETS["qwen35"])
    values = tiny_safetensors.config(model)
    inner = {key: value for key, value in values.items() if key != "architectures"}
    inner.pop("tie_word_embeddings")
    outer: dict[str, Any] = {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
    }
    outer |= {"text_config": inner, "tie_word_embeddings": True, "vision_config": {"depth": 1}}
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(outer))
    stored = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in tiny_safetensors.tensors(model).items()
    }
    stored["model.visual.patch_embed.proj.weight"] = np.ones((2, 3, 2, 4, 4), np.float32)
    stored["mtp.fc.weight"] = np.ones((4, 8), np.float32)
    tiny_safetensors.write_file(folder / "model.safetensors", stored)
    assert safetensors.accepts(str(folder))
    bundle = export(str(folder), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR
    config = bundle.json("config.json")
    assert "text_config" not in config
    assert config["max_position_embeddings"] == tiny_safetensors.CONTEXT


def test_experts_in_one_tensor_are_those_of_their_own(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**DELTA_NETS["qwen35moe"])
    folder = tiny_safetensors.write(tmp_path / "hf", model)
    stored = tiny_safetensors.tensors(model)
    for layer in range(model.layers):
        name = f"model.layers.{layer}.mlp.experts"

        def all_of(part: str, name: str = name) -> np.ndarray:
            parts = [stored.pop(f"{name}.{e}.{part}_proj.weight") for e in range(model.experts)]
            return np.stack(parts)

        stored[f"{name}.gate_up_proj"] = np.concatenate([all_of("gate"), all_of("up")], axis=1)
        stored[f"{name}.down_proj"] = all_of("down")
    tiny_safetensors.write_file(folder / "model.safetensors", stored)
    bundle = export(str(folder), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


def test_padding_on_the_left_is_no_token(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(**DELTA_NETS["qwen35"])
    source = tiny_safetensors.write(tmp_path / "hf", model)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    loaded = Model.load(bundle.path, threads=1)
    mask = np.ones((2, 33), np.int64)
    mask[1, :5] = 0
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    feeds = {"input_ids": ids(2), "attention_mask": mask, "position_ids": positions}
    feeds |= {state.past: state.zeros(2) for state in loaded.states}
    found = loaded.session.run(["logits"], feeds)[0]
    expected = tiny_gguf.logits(model, ids(2), mask, positions)
    assert relative_error(found[0], expected[0]) < RELATIVE_ERROR
    assert relative_error(found[1, 5:], expected[1, 5:]) < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"linear_num_value_heads": 3}, "linear_num_value_heads: found 3, expected a multiple of"),
        ({"linear_key_head_dim": 7}, "linear_key_head_dim: found 7, expected an even number up to"),
        ({"linear_value_head_dim": 300}, "linear_value_head_dim: found 300, expected at most 256"),
        ({"linear_conv_kernel_dim": 17}, "linear_conv_kernel_dim: found 17, expected at most 16"),
        ({"layer_types": ["conv"] * 4}, "expected 4 times linear_attention or full_attention"),
    ],
)
def test_absurd_fields_are_refused_by_name(tmp_path: Path, change, message) -> None:
    model = tiny_gguf.random_model(**DELTA_NETS["qwen35"])
    tiny_safetensors.write(tmp_path / "hf", model, **change)
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(tmp_path / "hf"), tmp_path)
