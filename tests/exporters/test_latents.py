"""Keys and values that are made of a latent: what is cached, formats, what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf, tiny_safetensors
from kit.latents import LATENTS
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.hf_model import HfModel

DEEPSEEK, LITE = LATENTS["deepseek 3"], LATENTS["deepseek 2 lite"]


def write_gguf(folder: Path, shape: dict[str, Any], kind: Type = Type.F32, **metadata: Any) -> Path:
    path = folder / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(**shape), kind, **metadata)
    return path


def of_heads(graph: ir.Graph) -> dict[str, str]:
    """Formats of the products with a matrix of each head."""
    nodes = [node for node in graph if node.op_type == "ExpertMatMul"]
    found = {(node.name or "").split("/")[-1]: node for node in nodes}
    return {
        name: node.attributes.get_string("format", "")
        for name, node in found.items()
        if name in ("k_b_proj", "v_b_proj")
    }


@pytest.mark.parametrize(
    ("kind", "split", "keys", "values"),
    [
        (Type.F16, False, "f16", "f16"),
        (Type.BF16, False, "bf16", "bf16"),
        (Type.BF16, True, "bf16", "bf16"),
        (Type.Q8_0, True, "q8_0", "q8_0"),
        (Type.Q8_0, False, "f16", "q8_0"),
    ],
)
def test_heads_keep_their_formats_but_for_turned_blocks(
    tmp_path: Path, plugins: Plugins, kind: Type, split: bool, keys: str, values: str
) -> None:
    path = write_gguf(tmp_path, {**DEEPSEEK, "split": split}, kind)
    bundle = export(str(path), tmp_path / "dense", plugins)
    found = of_heads(ir.load(bundle.path / "model.onnx").graph)
    assert found == {"k_b_proj": keys, "v_b_proj": values}


def test_all_heads_share_what_is_cached(tmp_path: Path, plugins: Plugins) -> None:
    path = write_gguf(tmp_path, DEEPSEEK)
    bundle = export(str(path), tmp_path / "dense", plugins)
    graph = ir.load(bundle.path / "model.onnx").graph
    pasts = {value.name: value for value in graph.inputs if "past" in (value.name or "")}
    assert list(pasts) == [f"past_key_values.{layer}.key" for layer in range(3)]
    shape = pasts["past_key_values.0.key"].shape
    assert shape is not None
    assert (shape[1], shape[3]) == (1, 32 + 16)
    assert survey(bundle, plugins).bytes_of_a_token == 3 * (32 + 16) * 4


def test_yarn_without_a_scale_stretches_scores_as_llama_cpp_does(tmp_path: Path) -> None:
    """Its length is on cosine and sine, and squared on all scores once more."""
    path = write_gguf(tmp_path, {**LITE, "yarn_scale": 0.0})
    config = GgufModel(GgufFile(path)).config
    length = 0.1 * math.log(4) + 1
    assert config.scale == pytest.approx(48**-0.5 * length**2, rel=1e-12)
    assert config.attentions[0].rotary is not None
    assert config.attentions[0].rotary.factor == pytest.approx(length, rel=1e-12)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("attention.key_length", 16, "more than 16, which rotate"),
        ("attention.value_length", 0, "a positive number"),
        ("attention.kv_lora_rank", 0, "a positive number"),
        ("attention.q_lora_rank", 0, "a positive number"),
    ],
)
def test_absurd_keys_of_a_gguf_are_refused(
    tmp_path: Path, key: str, value: int, expected: str
) -> None:
    metadata: dict[str, Any] = {f"deepseek2__{key.replace('.', '__')}": value}
    path = write_gguf(tmp_path, DEEPSEEK, **metadata)
    with pytest.raises(TamizError, match=rf"{key}: found {value}, expected {expected}"):
        GgufModel(GgufFile(path))


def test_biases_of_a_router_without_its_score_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("gguf.GGUFWriter.add_expert_gating_func", lambda *_: None)
    path = write_gguf(tmp_path, DEEPSEEK)
    with pytest.raises(TamizError, match="expert_gating_func: found nothing, beside biases"):
        GgufModel(GgufFile(path))


@pytest.mark.parametrize(
    ("shape", "key", "value", "expected"),
    [
        (LITE, "topk_method", "group_limited_greedy", "greedy or noaux_tc"),
        (LITE, "n_group", 2, "1 or no such key"),
        (LITE, "norm_topk_prob", True, "0 or no such key"),
        (LITE, "scoring_func", "sigmoid", "softmax"),
        (LITE, "moe_layer_freq", 2, "1 or no such key"),
        (DEEPSEEK, "rope_interleave", False, "True or no such key"),
        (DEEPSEEK, "scoring_func", "softmax", "sigmoid"),
        (DEEPSEEK, "num_key_value_heads", 2, "4, as num_attention_heads"),
        (DEEPSEEK, "kv_lora_rank", None, "a positive number"),
    ],
)
def test_fields_of_a_folder_that_change_results_are_refused(
    tmp_path: Path, shape: dict[str, Any], key: str, value: Any, expected: str
) -> None:
    tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(**shape), **{key: value})
    found = "nothing" if value is None else value
    with pytest.raises(TamizError, match=f"{key}: found {found}, expected {expected}"):
        HfModel(tmp_path / "hf")


@pytest.mark.parametrize("key", ["kv_lora_rank", "qk_rope_head_dim", "v_head_dim"])
def test_a_damaged_size_ends_in_a_sentence(tmp_path: Path, key: str) -> None:
    changes: dict[str, Any] = {key: 1 << 30}
    tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(**DEEPSEEK), **changes)
    with pytest.raises(TamizError, match=r"tensor model\.layers\.0"):
        HfModel(tmp_path / "hf").weights().find()


def test_layers_of_glm_4_7_flash_have_experts_where_its_file_says_it(tmp_path: Path) -> None:
    kinds = ["sparse", "dense", "sparse"]
    changes: dict[str, Any] = {"model_type": "glm4_moe_lite", "mlp_layer_types": kinds}
    model = tiny_gguf.random_model(**DEEPSEEK)
    tiny_safetensors.write(tmp_path / "hf", model, **changes)
    experts = HfModel(tmp_path / "hf").config.experts
    assert experts is not None
    assert experts.layers == {0, 2}
    tiny_safetensors.write(tmp_path / "hf", model, **{**changes, "mlp_layer_types": kinds[:2]})
    with pytest.raises(TamizError, match=r"mlp_layer_types: found .*, expected 3 times dense or"):
        HfModel(tmp_path / "hf")
