"""Decoders that embed texts, exported without torch: Qwen3-Embedding, EmbeddingGemma and others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz
import tamiz_ops
from kit import tiny_gguf, tiny_safetensors
from kit.command_line import ok, refused
from kit.encoders import write_tokenizer
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export

MODULES = [
    {"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"biases": True},
    "mistral": {"window": 9},
    "qwen2": {"architecture": "qwen2", "biases": True, "rope_base": 1e6},
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "rotary_dim": 32},
    "gemma3": {"architecture": "gemma3", "layers": 7, "window": 8, "rope_base": 1e6},
}
IDS = np.random.default_rng(1).integers(0, 250, (2, 33))


def write_embedder(folder: Path, model: tiny_gguf.TinyModel, **config: Any) -> Path:
    """A folder of sentence-transformers around a decoder."""
    tiny_safetensors.write(folder, model, **config)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    return folder


def hidden(bundle: Bundle, mask: np.ndarray, ids: np.ndarray = IDS) -> np.ndarray:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(bundle.model, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_hidden_states_are_those_that_give_a_decoder_its_logits(
    name: str, tmp_path: Path, plugins: Plugins
) -> None:
    model = tiny_gguf.random_model(**MODELS[name])
    tiny_safetensors.write(tmp_path / "hf", model)
    decoder = export(str(tmp_path / "hf"), tmp_path / "decoder", plugins, "float32")
    folder = write_embedder(tmp_path / "embedder", model)
    embedder = export(str(folder), tmp_path / "dense", plugins, "float32")
    mask = np.ones_like(IDS)
    mask[1, 20:] = 0
    states = hidden(embedder, mask)
    head = model.weights["model.embed_tokens.weight"]
    logits = Model.load(decoder.path, threads=1).logits(IDS)
    for row, tokens in enumerate((33, 20)):
        found, expected = states[row, :tokens] @ head.T, logits[row, :tokens]
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def test_tokens_of_a_bidirectional_embedder_see_later_ones_within_the_window(
    tmp_path: Path, plugins: Plugins
) -> None:
    """A window of 16 is 8 tokens on each side, as transformers reads it; padding is not seen."""
    model = tiny_gguf.random_model(**MODELS["gemma3"] | {"layers": 1, "window": 16})
    options = {"use_bidirectional_attention": True, "layer_types": ["sliding_attention"]}
    folder = write_embedder(tmp_path / "hf", model, **options)
    embedder = export(str(folder), tmp_path / "dense", plugins, "float32")
    mask = np.ones_like(IDS)
    mask[1, 20:] = 0
    other = np.where(np.arange(33) == 30, (IDS + 1) % 250, IDS)
    changed = (hidden(embedder, mask) != hidden(embedder, mask, other)).any(axis=-1)
    assert changed[0].tolist() == [abs(token - 30) <= 8 for token in range(33)]
    assert not changed[1, :20].any()


def test_an_embedder_is_built(tmp_path: Path, plugins: Plugins) -> None:
    """The last token of a text is its embedding, in any batch."""
    model = tiny_gguf.random_model(**MODELS["qwen3"])
    folder = write_embedder(tmp_path / "hf", model, architectures=["Qwen3Model"])
    write_tokenizer(folder)
    export(str(folder), tmp_path / "dense", plugins)
    ok("build", tmp_path / "dense", "-o", tmp_path / "built")
    texts = ["w3 w4 w5 w6", "w7", "w8 w9 w10"]
    for name in ("dense", "built"):
        encoder = tamiz.load(tmp_path / name)
        assert isinstance(encoder, tamiz.EmbeddingModel)
        together = encoder.embed(texts)
        allowed = 1e-5 * np.abs(together).max() if name == "dense" else 0
        for text, row in zip(texts, together, strict=True):
            np.testing.assert_allclose(encoder.embed(text), row, rtol=0, atol=allowed)


def test_tokens_that_see_later_ones_write_no_text(tmp_path: Path) -> None:
    model = tiny_gguf.random_model(**MODELS["gemma3"])
    tiny_safetensors.write(tmp_path / "hf", model, use_bidirectional_attention=True)
    text = refused("export", tmp_path / "hf", "-o", tmp_path / "dense")
    assert "use_bidirectional_attention: found True, expected false, or modules.json" in text


@pytest.mark.parametrize("kind", ["Qwen3", "Gemma3Text"])
def test_values_are_those_of_transformers(kind: str, tmp_path: Path, plugins: Plugins) -> None:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    shape = {
        "vocab_size": 250,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 7,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    }
    if kind == "Gemma3Text":
        shape |= {"use_bidirectional_attention": True, "sliding_window": 8}
    config = getattr(transformers, f"{kind}Config")(**shape)
    network = getattr(transformers, f"{kind}Model")(config).eval()
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    network.save_pretrained(tmp_path / "hf")
    written = json.loads((tmp_path / "hf" / "config.json").read_text())
    written |= {key: shape[key] for key in ("sliding_window",) if key in shape}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(written))
    (tmp_path / "hf" / "modules.json").write_text(json.dumps(MODULES[:1]))
    found = hidden(export(str(tmp_path / "hf"), tmp_path / "dense", plugins), np.ones_like(IDS))
    with torch.no_grad():
        expected = network(torch.tensor(IDS)).last_hidden_state.numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
