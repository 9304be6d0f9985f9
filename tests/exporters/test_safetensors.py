"""Safetensors of Hugging Face, exported without torch, beside the same model as GGUF."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf, tiny_safetensors
from kit.arrays import relative_error
from kit.command_line import ok, refused
from kit.latents import LATENTS
from kit.mixtures import MIXTURES
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters import safetensors

RELATIVE_ERROR = 2e-6
#: What scores of DeepSeek's router are off by moves the weights of experts.
ROUTED_ERROR = 1e-5
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 5e-4

LONG = np.linspace(1, 3, 8, dtype=np.float32)
MODELS: dict[str, dict[str, Any]] = {
    "llama, tied head": {},
    "llama, separate head and biases": {"tied": False, "biases": True},
    "llama, linear rope scaling": {"rope_factor": 4.0},
    "llama, half of the head rotates": {"rotary_dim": 8},
    "mistral": {"window": 9, "tied": False},
    "qwen2": {"architecture": "qwen2", "biases": True, "rope_base": 1e6},
    "qwen2, yarn": {"architecture": "qwen2", "yarn": (2.0, 128)},
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "rotary_dim": 32, "tied": False},
    "phi3": {"architecture": "phi3", "tied": False, "window": 20},
    "phi3, long rope": {"architecture": "phi3", "long_factors": LONG},
    **MIXTURES,
    **LATENTS,
    "ernie4_5": {"architecture": "ernie4_5", "biases": True, "rope_base": 5e5},
    "arcee": {"architecture": "arcee", "biases": True},
    "bitnet": {"architecture": "bitnet"},
    "smollm3": {"architecture": "smollm3", "layers": 4},
    "lfm2": {"architecture": "lfm2", "layers": 4},
    "lfm2, 4 taps": {"architecture": "lfm2", "layers": 4, "taps": 4, "tied": False},
    "gemma": {"architecture": "gemma", "kv_heads": 1, "head_dim": 32, "rotary_dim": 32},
    "gemma2": {"architecture": "gemma2", "layers": 3, "window": 8, "soft_caps": (2.0, 3.0)},
    "gemma3": {"architecture": "gemma3", "layers": 7, "window": 8, "rope_base": 1e6},
}


def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (1, 33))


def expected_logits(model: tiny_gguf.TinyModel) -> np.ndarray:
    return tiny_gguf.logits(model, ids(), np.ones_like(ids()), np.arange(33)[None])


def logits(bundle: Path) -> np.ndarray:
    return Model.load(bundle, threads=1).logits(ids())


@pytest.mark.parametrize("name", MODELS)
def test_float32_logits_equal_the_model_in_numpy(
    tmp_path: Path, plugins: Plugins, name: str
) -> None:
    model = tiny_gguf.random_model(**MODELS[name])
    source = tiny_safetensors.write(tmp_path / "hf", model)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    assert bundle.manifest.weights == "float32"
    graph = ir.load(bundle.path / "model.onnx").graph
    assert {node.domain for node in graph} == {""}
    bound = ROUTED_ERROR if model.architecture == "deepseek2" else RELATIVE_ERROR
    assert relative_error(logits(bundle.path), expected_logits(model)) < bound


@pytest.mark.parametrize("kind", [Type.F16, Type.BF16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("phi3")])
def test_stored_logits_equal_those_of_the_same_model_as_gguf(
    tmp_path: Path, plugins: Plugins, name: str, kind: Type
) -> None:
    model = tiny_gguf.random_model(**MODELS[name])
    source = tiny_safetensors.write(tmp_path / "hf", model, kind)
    held = tiny_gguf.write(tmp_path / "tiny.gguf", model, kind)
    bundle = export(str(source), tmp_path / "a", plugins)
    by_gguf = export(str(tmp_path / "tiny.gguf"), tmp_path / "b", plugins)
    assert bundle.manifest.weights == by_gguf.manifest.weights == "stored"
    found = logits(bundle.path)
    assert relative_error(found, expected_logits(held)) < STORED_ERROR
    if "gemma" in name:  # transformers stores norms less 1, which rounds
        assert relative_error(found, logits(by_gguf.path)) < STORED_ERROR
    else:
        np.testing.assert_array_equal(found, logits(by_gguf.path))


@pytest.mark.parametrize("kind", [Type.F32, Type.F16, Type.BF16], ids=lambda kind: kind.name)
def test_matrices_are_stored_as_they_are(tmp_path: Path, plugins: Plugins, kind: Type) -> None:
    model = tiny_gguf.random_model(architecture="phi3", tied=False)
    source = tiny_safetensors.write(tmp_path / "hf", model, kind)
    bundle = export(str(source), tmp_path / "dense", plugins)
    nodes = list(ir.load(bundle.path / "model.onnx").graph)
    formats = [
        node.attributes["format"].as_string() for node in nodes if node.op_type == "BlockMatMul"
    ]
    linears = 7 * model.layers + 1
    assert formats == ([] if kind == Type.F32 else [kind.name.lower()] * linears)


@pytest.mark.parametrize("shards", [2, 5])
def test_shards_with_an_index(tmp_path: Path, plugins: Plugins, shards: int) -> None:
    model = tiny_gguf.random_model()
    found = []
    for count in (1, shards):
        source = tiny_safetensors.write(tmp_path / f"hf{count}", model, Type.BF16, count)
        found.append(logits(export(str(source), tmp_path / f"dense{count}", plugins).path))
    np.testing.assert_array_equal(found[0], found[1])


def test_the_cache_of_the_hub_is_read(tmp_path: Path, plugins: Plugins) -> None:
    """Its files are links to ``blobs``."""
    snapshot, blobs = tmp_path / "models--org--name" / "snapshots" / "1a", tmp_path / "blobs"
    blobs = snapshot.parent.parent / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for file in tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model()).iterdir():
        os.replace(file, blobs / file.name)
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert logits(export(str(snapshot), tmp_path / "dense", plugins).path).shape[1] == 33


def test_llama_3_scaling(tmp_path: Path, plugins: Plugins) -> None:
    base, factor, low, high, original = 500000.0, 8.0, 1.0, 4.0, 64
    weights = []
    for pair in range(8):  # as in llama.cpp's conversion
        wavelength = 2 * math.pi * base ** (pair / 8)
        smooth = (original / wavelength - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
        far = factor if wavelength > original / low else between
        weights.append(1.0 if wavelength < original / high else far)
    assert 1 < len(set(weights)) < 8
    freqs = np.array(weights, np.float32)
    model = tiny_gguf.random_model(rope_base=base, rope_freqs=freqs)
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    source = tiny_safetensors.write(tmp_path / "hf", model, rope_scaling=scaling)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle.path), expected_logits(model)) < RELATIVE_ERROR


PARAMETERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "one kind of layers": (
        {"rope_factor": 4.0, "rotary_dim": 8},
        {
            "rope_parameters": {
                "rope_type": "linear",
                "factor": 4.0,
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.5,
            },
            "partial_rotary_factor": None,
        },
    ),
    "two kinds of layers": (
        {"architecture": "gemma3", "layers": 7, "window": 8, "rope_base": 1e6},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
            "rope_local_base_freq": None,
            "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        },
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_names_of_transformers_5(tmp_path: Path, plugins: Plugins, name: str) -> None:
    shape, changes = PARAMETERS[name]
    model = tiny_gguf.random_model(**shape)
    changes = {"rope_theta": None, "rope_scaling": None, **changes}
    source = tiny_safetensors.write(tmp_path / "hf", model, **changes)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle.path), expected_logits(model)) < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("scores", "final"), [(None, None), (2.0, None), (None, 3.0)], ids=["none", "scores", "logits"]
)
def test_a_soft_cap_may_be_null(
    tmp_path: Path, plugins: Plugins, scores: float | None, final: float | None
) -> None:
    caps = (scores or 0.0, final or 0.0)
    model = tiny_gguf.random_model(architecture="gemma2", window=8, soft_caps=caps)
    source = tiny_safetensors.write(tmp_path / "hf", model)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle.path), expected_logits(model)) < RELATIVE_ERROR


def test_a_soft_cap_that_is_absent_is_that_of_transformers(
    tmp_path: Path, plugins: Plugins
) -> None:
    model = tiny_gguf.random_model(architecture="gemma2", window=8, soft_caps=(50.0, 30.0))
    source = tiny_safetensors.write(tmp_path / "hf", model)
    config = json.loads((source / "config.json").read_text())
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        del config[key]
    (source / "config.json").write_text(json.dumps(config))
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle.path), expected_logits(model)) < RELATIVE_ERROR


def test_a_head_in_the_file_is_not_used_where_it_is_tied(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(tied=False)
    source = tiny_safetensors.write(tmp_path / "hf", model, tie_word_embeddings=True)
    bundle = export(str(source), tmp_path / "dense", plugins, "float32")
    model.weights.pop("lm_head.weight")
    assert relative_error(logits(bundle.path), expected_logits(model)) < RELATIVE_ERROR


def test_the_tokenizer_and_the_configuration_come_along(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model()
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    by_gguf = export(str(tmp_path / "tiny.gguf"), tmp_path / "b", plugins).path
    source = tiny_safetensors.write(tmp_path / "hf", model, Type.F16)
    (source / "tokenizer.json").write_bytes((by_gguf / "tokenizer.json").read_bytes())
    settings = json.loads((by_gguf / "tokenizer_config.json").read_text())
    template, settings["chat_template"] = settings["chat_template"], "another"
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    (source / "chat_template.jinja").write_text(template)
    shown = ok("export", source, "-o", tmp_path / "dense")
    assert "dense bundle of" in shown
    bundle = tmp_path / "dense"
    assert (bundle / "tokenizer.onnx").is_file()
    copied = json.loads((bundle / "tokenizer_config.json").read_text())
    assert copied["chat_template"] == template
    assert json.loads((bundle / "config.json").read_text())["model_type"] == "llama"
    assert json.loads((bundle / "generation_config.json").read_text()) == {"eos_token_id": 2}
    ok("build", bundle, "-o", tmp_path / "built", "--block-quant=on")
    ok("run", tmp_path / "built", "hello", "--max-new-tokens", "3")


def test_a_longrope_reaches_beyond_its_original_context(tmp_path: Path, plugins: Plugins) -> None:
    model = tiny_gguf.random_model(architecture="phi3", long_factors=LONG)
    source = tiny_safetensors.write(tmp_path / "hf", model)
    bundle = export(str(source), tmp_path / "dense", plugins)
    assert json.loads((bundle.path / "config.json").read_text())["max_position_embeddings"] == 512


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "quant_method: found gptq"),
    "scaling": ({"rope_scaling": {"type": "su"}}, r"rope_scaling\.type: found su"),
    "activation": ({"hidden_act": "laplace"}, "hidden_act: found laplace, expected one of silu"),
    "heads": ({"num_attention_heads": 5}, "num_key_value_heads: found 2, expected a divisor of 5"),
    "many heads": (
        {"num_attention_heads": 1 << 30},
        r"q_proj\.weight: found 64 x 64, expected shape 17179869184 x 64",
    ),
    "layers": ({"num_hidden_layers": 3}, r"model\.layers\.2\..*: found no such tensor"),
    "fewer layers": ({"num_hidden_layers": 1}, r"model\.layers\.1\..*: found the tensor"),
    "text": ({"hidden_size": "64"}, "hidden_size: found 64, expected a positive number"),
    "head": ({"tie_word_embeddings": False}, r"tensor lm_head\.weight: found no such tensor"),
    "nothing": ({"rms_norm_eps": None}, "rms_norm_eps: found nothing, expected a positive number"),
    "rotary": (
        {"partial_rotary_factor": 0.2},
        "partial_rotary_factor: found 0.2, expected an even",
    ),
    "soft cap": (
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping: found 50.0, expected 0 or no such key; try: optimum-cli export",
    ),
    "base": ({"rope_theta": 1}, "rope_theta: found 1.0, expected a number over 1"),
}


@pytest.mark.parametrize(("context", "limit"), [(512, 2048), (256, 2048), (4096, 4096)])
def test_yarn_stretches_its_original_context(
    tmp_path: Path, plugins: Plugins, context: int, limit: int
) -> None:
    """As vLLM: factor times the original, unless the file says more."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    source = tiny_safetensors.write(
        tmp_path / "hf",
        tiny_gguf.random_model(layers=1),
        max_position_embeddings=context,
        rope_scaling=scaling,
    )
    bundle = export(str(source), tmp_path / "dense", plugins)
    assert bundle.json("config.json")["max_position_embeddings"] == limit


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_the_graph_does_not_have(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(), **changes)
    (tmp_path / "out").mkdir()
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(source), tmp_path / "out")


def change_header(path: Path, change: Any) -> None:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


UP = "model.layers.0.mlp.up_proj.weight"
DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "type": ({"dtype": "F8_E4M3"}, "dtype: found F8_E4M3, expected F32, F16, BF16 or U8"),
    "shape": ({"shape": [96, -64]}, r"shape: found \[96, -64\]"),
    "size": ({"shape": [96, 65]}, "expected a length of 24960 bytes"),
    "end": ({"data_offsets": [0, 1 << 40]}, r"data_offsets: found \[0, 1099511627776\]"),
    "nothing": ({"data_offsets": None}, "data_offsets: found None"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_refuses_damaged_headers(tmp_path: Path, name: str) -> None:
    change, message = DAMAGED[name]
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model())
    change_header(source / "model.safetensors", lambda header: header[UP].update(change))
    (tmp_path / "out").mkdir()
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(source), tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "size: found 0 bytes, expected a header of at least 9 bytes"),
        (b"\xff" * 16, "length of the header: found 18446744073709551615"),
        (b"\x04" + b"\0" * 7 + b"nope", "the header is not valid JSON"),
        (b"\x02" + b"\0" * 7 + b"[]", "header: found list, expected a JSON object"),
    ],
)
def test_refuses_what_is_no_safetensors_file(tmp_path: Path, content: bytes, message: str) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model())
    (source / "model.safetensors").write_bytes(content)
    sentence = refused("export", source, "-o", tmp_path / "out")
    assert message in sentence


def test_an_index_that_leads_out_of_the_folder(tmp_path: Path) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(), shards=2)
    os.replace(source / "model-00001-of-00002.safetensors", tmp_path / "m")
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001-of-00002.safetensors", "../m"))
    assert "leads out of the folder" in refused("export", source, "-o", tmp_path / "out")


def test_refuses_weights_that_are_not_finite(tmp_path: Path) -> None:
    model = tiny_gguf.random_model()
    model.weights[UP][3, 5] = np.inf
    source = tiny_safetensors.write(tmp_path / "hf", model)
    (tmp_path / "out").mkdir()
    with pytest.raises(TamizError, match=r"up_proj\.weight: found NaN or infinity"):
        safetensors.export(str(source), tmp_path / "out")


def test_accepts(tmp_path: Path) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model())
    config = json.loads((source / "config.json").read_text())
    assert safetensors.accepts(str(source))
    assert not safetensors.accepts(str(tmp_path))
    for change in ({"model_type": "mixtral"}, {"architectures": ["LlamaModel"]}):
        (source / "config.json").write_text(json.dumps(config | change))
        assert not safetensors.accepts(str(source))
    (source / "config.json").write_text(json.dumps(config))
    os.remove(source / "model.safetensors")
    assert not safetensors.accepts(str(source))


def test_a_task_is_for_optimum(tmp_path: Path, tiny_gguf: Path) -> None:
    sentence = refused("export", tiny_gguf, "-o", tmp_path / "out", "--task", "fill-mask")
    assert sentence == f"{tiny_gguf}: found --task fill-mask, expected none for gguf"


def test_the_bundle_says_where_it_is_from(tmp_path: Path, plugins: Plugins) -> None:
    source = tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model())
    export(str(source), tmp_path / "dense", plugins)
    assert Bundle.open(tmp_path / "dense").manifest.source.name == str(source)
