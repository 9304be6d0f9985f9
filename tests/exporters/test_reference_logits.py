"""Logits of tiny models beside those of the libraries that the files were made for.

``reference_logits.json`` holds the logits of ids 0 to 7 after 33 tokens: of GGUF files from
llama-cpp-python 0.3.36 (``Llama(path, n_ctx=64, logits_all=True, type_k=0, type_v=0)``, caches of
float32), of Hugging Face folders from transformers 5.24 (``AutoModelForCausalLM`` with
``attn_implementation="eager"``, float32). Its greedy tokens, 50 after the 33, are those of
llama.cpp or of transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from gguf import GGUFWriter

import tamiz_ops
from kit import mamba_gguf, mambas, tiny_gguf, tiny_safetensors
from kit.delta_nets import DELTA_NETS
from kit.latents import LATENTS
from kit.mambas import MAMBAS
from kit.mixtures import MIXTURES
from tamiz.files.errors import TamizError
from tamiz.interface.states import State
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters import gguf, safetensors

VALUES = Path(__file__).with_name("reference_logits.json")
#: Of the largest logit. llama.cpp looks GELU up in a table of float16; its logits of Qwen 3.5 are
#: 1e-5 from those of transformers.
RELATIVE_ERROR, WITH_GELU, WITH_DELTA_NETS = 2e-6, 5e-4, 2e-5
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
#: Metadata beside that of `kit.tiny_gguf`, by its shape.
GGUF: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a factor without a type is linear": ({}, {"llama__rope__scaling__factor": 8.0}),
    "the old name of the factor": ({}, {"llama__rope__scale_linear": 8.0}),
    "the new name counts": (
        {},
        {"llama__rope__scale_linear": 8.0, "llama__rope__scaling__factor": 2.0},
    ),
    "no scaling": (
        {},
        {"llama__rope__scaling__type": "none", "llama__rope__scaling__factor": 8.0},
    ),
    "yarn": ({"yarn": (4.0, 16)}, {}),
    "yarn and a factor on lengths": (
        {"yarn": (4.0, 16)},
        {"llama__rope__scaling__attn_factor": 1.25},
    ),
    "linear and a factor on lengths": (
        {"rope_factor": 2.0},
        {"llama__rope__scaling__attn_factor": 1.25},
    ),
    "gemma 3 with a window of every second layer": (
        {"architecture": "gemma3", "layers": 4, "window": 8, "rope_base": 1e6},
        {"gemma3__attention__sliding_window_pattern": 2},
    ),
    "gemma 3 with a cap of logits": (
        {"architecture": "gemma3", "layers": 2, "window": 8},
        {"gemma3__final_logit_softcapping": 3.0},
    ),
    "gpt-oss without scaling": ({**MIXTURES["gpt-oss"], "yarn": None}, {}),
    "glm 4 MoE": (MIXTURES["glm4moe"], {}),
    # llama.cpp reads files of 26 or 27 layers alone without a latent of queries.
    "deepseek 2": ({**LATENTS["deepseek 2 lite"], "query_rank": 32}, {}),
    "deepseek 3": (LATENTS["deepseek 3"], {}),
    "plm": (LATENTS["plm"], {}),
    "deepseek 3, keys and values apart": ({**LATENTS["deepseek 3"], "split": True}, {}),
    "minicpm3": (
        {**LATENTS["minicpm3"], "epsilon": 1e-3},
        {"minicpm3__rope__scaling__original_context_length": 512},
    ),
    "bitnet with the activation of llama.cpp": (
        {"architecture": "bitnet"},
        {"bitnet__hidden_activation": "silu"},
    ),
    "lfm2": ({"architecture": "lfm2", "layers": 4}, {}),
    "lfm2, 4 taps and a head": (
        {"architecture": "lfm2", "layers": 4, "taps": 4, "tied": False},
        {},
    ),
    "qwen 3.5": (DELTA_NETS["qwen35"], {}),
    "qwen 3.5 MoE": (DELTA_NETS["qwen35moe"], {}),
    "qwen3-next": (DELTA_NETS["qwen3next"], {}),
    "gemma 3 with a window as long as the context": (
        {"architecture": "gemma3", "layers": 2, "window": 512, "rope_base": 1e6},
        {"gemma3__rope__freq_base_swa": 100.0},
    ),
}
#: Fields beside those of `kit.tiny_safetensors`, by the model's shape.
HUGGING_FACE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "yarn": ({}, {"rope_scaling": YARN}),
    "yarn, mscale": ({}, {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1}}),
    "yarn, not truncated": ({}, {"rope_scaling": {**YARN, "truncate": False}}),
    "yarn, other turns": ({}, {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 2}}),
    "yarn, attention factor": ({}, {"rope_scaling": {**YARN, "attention_factor": 1.3}}),
    "dynamic": ({}, {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}),
    "longrope within its original context": (
        {"architecture": "phi3", "long_factors": np.linspace(1, 3, 8, dtype=np.float32)},
        {"pad_token_id": 0},
    ),
    "longrope beyond its original context": (
        {"architecture": "phi3", "long_factors": np.linspace(1, 3, 8, dtype=np.float32)},
        {"original_max_position_embeddings": 16, "pad_token_id": 0},
    ),
    "mistral without a window in its file": (
        {"window": 9, "tied": False},
        {"sliding_window": None},
    ),
    "gemma 3 with a cap of logits": (
        {"architecture": "gemma3", "layers": 2, "window": 8},
        {"final_logit_softcapping": 3.0, "rope_local_base_freq": 100.0},
    ),
    **{
        f"activation {name}": ({}, {"hidden_act": name})
        for name in (
            "gelu",
            "gelu_new",
            "quick_gelu",
            "relu",
            "relu2",
            "relu6",
            "mish",
            "sigmoid",
            "tanh",
        )
    },
    "mixtral": ({"experts": 5, "tied": False}, {}),
    **{
        name: ({"architecture": name, "experts": 6, "top": 3}, {})
        for name in ("qwen2moe", "qwen3moe", "olmoe", "granitemoe")
    },
    "qwen 2 MoE, normalised": (
        {"architecture": "qwen2moe", "experts": 6, "biases": True},
        {"norm_topk_prob": True},
    ),
    "qwen 3 MoE, not normalised": (
        {"architecture": "qwen3moe", "experts": 6},
        {"norm_topk_prob": False},
    ),
    "qwen 3 MoE as transformers 5 writes it": (
        {"architecture": "qwen3moe", "experts": 6},
        {"norm_topk_prob": False, "num_experts": None, "num_local_experts": 6},
    ),
    "ernie 4.5": ({"architecture": "ernie4_5"}, {"bos_token_id": 1, "pad_token_id": 0}),
    "ernie 4.5 MoE": (
        {"architecture": "ernie4_5-moe", "experts": 6, "top": 3, "dense_layers": 1},
        {"bos_token_id": 1, "pad_token_id": 0, "moe_layer_end_index": 1},
    ),
    "gpt-oss": (MIXTURES["gpt-oss"], {}),
    "gpt-oss without rope_scaling": (MIXTURES["gpt-oss"], {"rope_scaling": None}),
    "glm 4 MoE": (MIXTURES["glm4moe"], {"pad_token_id": 0}),
    "glm 4 MoE, other weights": (
        {**MIXTURES["glm4moe"], "groups": (1, 1)},
        {"norm_topk_prob": False, "pad_token_id": 0},
    ),
    "deepseek 2 lite": (LATENTS["deepseek 2 lite"], {"pad_token_id": 0}),
    "deepseek 2, a latent of queries": (
        {**LATENTS["deepseek 2 lite"], "query_rank": 32, "yarn_scale": 0.0, "yarn": None},
        {"pad_token_id": 0},
    ),
    "deepseek 3": (LATENTS["deepseek 3"], {"pad_token_id": 0}),
    "deepseek 3, two scales of yarn": (
        LATENTS["deepseek 3"],
        {"pad_token_id": 0, "rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1}},
    ),
    "glm 4.7 flash": (
        {**LATENTS["deepseek 3"], "groups": (1, 1), "yarn": None},
        {
            "model_type": "glm4_moe_lite",
            "architectures": ["Glm4MoeLiteForCausalLM"],
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "first_k_dense_replace": None,
            "pad_token_id": 0,
        },
    ),
    "minicpm3, norms of latents with an epsilon of their own": (
        {**LATENTS["minicpm3"], "epsilon": 1e-3},
        {"pad_token_id": 0},
    ),
    "granite": ({"architecture": "granite"}, {}),
    "lfm2": ({"architecture": "lfm2", "layers": 4}, {}),
    "lfm2, 4 taps and a head": (
        {"architecture": "lfm2", "layers": 4, "taps": 4, "tied": False},
        {},
    ),
    "qwen 3.5": (DELTA_NETS["qwen35"], {"pad_token_id": 0}),
    "qwen 3.5 MoE": (DELTA_NETS["qwen35moe"], {"pad_token_id": 0}),
    "qwen3-next": (DELTA_NETS["qwen3next"], {"pad_token_id": 0}),
    "lfm2 in the names of its first files": (
        {"architecture": "lfm2", "layers": 4, "ffn": 96},
        {
            "layer_types": None,
            "full_attn_idxs": [2, 3],
            "block_ff_dim": 130,
            "block_auto_adjust_ff_dim": True,
            "block_multiple_of": 32,
            "tie_embedding": True,
        },
    ),
    "arcee": ({"architecture": "arcee"}, {}),
    "bitnet": ({"architecture": "bitnet"}, {"pad_token_id": 0}),
    "arcee with another activation": ({"architecture": "arcee"}, {"hidden_act": "gelu"}),
    "gemma with another activation": (
        {"architecture": "gemma", "kv_heads": 1, "head_dim": 32, "rotary_dim": 32},
        {"hidden_act": "relu", "hidden_activation": None},
    ),
}


def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (1, 33))


def write_gguf(path: Path, name: str) -> None:
    if name in MAMBAS:
        mamba_gguf.write_gguf(path, mambas.random_mamba(**MAMBAS[name]))
        return
    shape, metadata = GGUF[name]
    tiny_gguf.write(path, tiny_gguf.random_model(**shape), **metadata)


def write_folder(path: Path, name: str) -> None:
    if name in MAMBAS:
        mambas.write_folder(path, mambas.random_mamba(**MAMBAS[name]))
        return
    shape, changes = HUGGING_FACE[name]
    tiny_safetensors.write(path, tiny_gguf.random_model(**shape), **changes)


def last_logits(folder: Path) -> np.ndarray:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(folder / "model.onnx", options)
    feeds = {"input_ids": ids(), "attention_mask": np.ones_like(ids())}
    feeds["position_ids"] = np.arange(33)[None]
    for value in session.get_inputs():
        if value.name.startswith("past_"):
            state = State.of(value)
            assert state is not None
            feeds[value.name] = state.zeros()
    found: np.ndarray = session.run(["logits"], feeds)[0]
    return found[0, -1]


def check(folder: Path, expected: list[float], bound: float = RELATIVE_ERROR) -> None:
    found = last_logits(folder)
    error = np.abs(found[: len(expected)] - expected).max() / np.abs(found).max()
    assert error < bound


@pytest.mark.parametrize("name", [*GGUF, *MAMBAS])
def test_logits_equal_those_of_llama_cpp(tmp_path, name) -> None:
    write_gguf(tmp_path / "tiny.gguf", name)
    (tmp_path / "dense").mkdir()
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", "float32")
    bound = WITH_GELU if "gemma" in name else RELATIVE_ERROR
    bound = WITH_DELTA_NETS if name.startswith("qwen") else bound
    check(tmp_path / "dense", json.loads(VALUES.read_text())["gguf"][name], bound)


@pytest.mark.parametrize("name", [*HUGGING_FACE, *MAMBAS])
def test_logits_equal_those_of_transformers(tmp_path, name) -> None:
    write_folder(tmp_path / "hf", name)
    (tmp_path / "dense").mkdir()
    safetensors.export(str(tmp_path / "hf"), tmp_path / "dense", "float32")
    check(tmp_path / "dense", json.loads(VALUES.read_text())["hugging face"][name])


@pytest.mark.parametrize("name", json.loads(VALUES.read_text())["greedy"])
def test_fifty_greedy_tokens_equal_those_of_llama_cpp(tmp_path, plugins, name) -> None:
    write_gguf(tmp_path / "tiny.gguf", name)
    expected = json.loads(VALUES.read_text())["greedy"][name]
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins, "float32")
    assert greedy(bundle.path, len(expected)) == expected


@pytest.mark.parametrize("name", json.loads(VALUES.read_text())["greedy of transformers"])
def test_fifty_greedy_tokens_equal_those_of_transformers(tmp_path, plugins, name) -> None:
    write_folder(tmp_path / "hf", name)
    expected = json.loads(VALUES.read_text())["greedy of transformers"][name]
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    assert greedy(bundle.path, len(expected)) == expected


def greedy(bundle: Path, count: int) -> list[int]:
    sequence, found = Model.load(bundle, threads=1).sequence(), list[int]()
    logits = sequence.read(ids()[0].tolist())
    for _ in range(count):
        found.append(int(logits.argmax()))
        logits = sequence.step(found[-1])
    return found


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "quick_gelu", "relu", "relu2"])
def test_a_gguf_that_names_no_activation_takes_the_option(tmp_path, name) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model())
    (tmp_path / "dense").mkdir()
    option = {"gelu_new": "gelu_tanh"}.get(name, name)
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", "float32", option)
    check(tmp_path / "dense", json.loads(VALUES.read_text())["hugging face"][f"activation {name}"])


def test_a_bitnet_that_names_no_activation_is_asked_for_one(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("gguf.GGUFWriter.add_string", _but_the_activation(GGUFWriter.add_string))
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(architecture="bitnet"))
    expected = "hidden_activation: found nothing, expected one of .*, or --activation"
    with pytest.raises(TamizError, match=expected):
        gguf.export(str(tmp_path / "tiny.gguf"), tmp_path)
    (tmp_path / "dense").mkdir()
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", "float32", "silu")
    name = "bitnet with the activation of llama.cpp"
    check(tmp_path / "dense", json.loads(VALUES.read_text())["gguf"][name])


def _but_the_activation(add_string: Any) -> Any:
    def add(writer: GGUFWriter, key: str, value: str) -> None:
        if not key.endswith("hidden_activation"):
            add_string(writer, key, value)

    return add


def test_a_source_that_names_another_activation_than_the_option_is_refused(tmp_path) -> None:
    tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model())
    model = tiny_gguf.random_model()
    tiny_gguf.write(tmp_path / "tiny.gguf", model, llama__hidden_activation="relu")
    expected = "hidden_act: found silu, expected gelu, as --activation says, or no --activation"
    with pytest.raises(TamizError, match=expected):
        safetensors.export(str(tmp_path / "hf"), tmp_path, activation="gelu")
    with pytest.raises(TamizError, match="hidden_activation: found relu, expected silu, as"):
        gguf.export(str(tmp_path / "tiny.gguf"), tmp_path, activation="silu")
