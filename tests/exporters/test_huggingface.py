from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from kit import tiny_gguf
from kit.arrays import relative_error
from kit.hf_configs import SHAPE, YARN
from tamiz.files.errors import TamizError
from tamiz_exporters import gguf, huggingface, safetensors

pytestmark = pytest.mark.slow

RELATIVE_ERROR = 1e-5


@pytest.fixture(scope="module")
def libraries() -> tuple[Any, Any]:
    torch = pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
    pytest.importorskip("optimum.onnxruntime", reason="needs optimum: pip install 'tamiz[export]'")
    import transformers

    return torch, transformers


def transformers_model(libraries, model: tiny_gguf.TinyModel) -> Any:
    torch, transformers = libraries
    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[model.architecture]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=model.vocabulary,
        hidden_size=model.hidden,
        intermediate_size=model.ffn,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=model.epsilon,
        rope_theta=model.rope_base,
        max_position_embeddings=512,
        tie_word_embeddings="lm_head.weight" not in model.weights,
    )
    network = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    state = {name: torch.tensor(value) for name, value in model.weights.items()}
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert unexpected == []
    assert missing in ([], ["lm_head.weight"])
    network.tie_weights()
    return network


def run(folder: Path, ids: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(folder / "model.onnx")
    positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": positions}
    given = {node.name: node.shape for node in session.get_inputs()}
    for name, shape in given.items():
        if name.startswith("past_"):
            feeds[name] = np.zeros((len(ids), shape[1], 0, shape[3]), np.float32)
    return session.run(["logits"], {name: feeds[name] for name in given})[0]


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"tied": False, "kv_heads": 4},
        {"architecture": "qwen2", "biases": True},
        {"architecture": "qwen3"},
    ],
    ids=["llama", "llama untied", "qwen2", "qwen3"],
)
def test_gguf_and_optimum_exports_of_the_same_weights_equal_torch(
    tmp_path, libraries, shape
) -> None:
    torch, _ = libraries
    model = tiny_gguf.random_model(**shape)
    network = transformers_model(libraries, model)
    network.save_pretrained(tmp_path / "hf")
    for name in ("by_gguf", "by_optimum"):
        (tmp_path / name).mkdir()
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "by_gguf", "float32")
    huggingface.export(str(tmp_path / "hf"), tmp_path / "by_optimum")
    ids = np.random.default_rng(1).integers(0, 250, (2, 21))
    with torch.no_grad():
        expected = network(torch.tensor(ids)).logits.numpy()
    by_gguf, by_optimum = run(tmp_path / "by_gguf", ids), run(tmp_path / "by_optimum", ids)
    assert relative_error(by_gguf, expected) < RELATIVE_ERROR
    assert relative_error(by_optimum, expected) < RELATIVE_ERROR
    assert relative_error(by_gguf, by_optimum) < RELATIVE_ERROR


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "type": "longrope",
    "short_factor": [1.0, 1.5, 2, 3, 4, 5, 6, 7],
    "long_factor": [9.0] * 8,
}
#: Architecture in the names of transformers' classes, what differs from SHAPE.
DIRECT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases": ("Llama", {"attention_bias": True}),
    "llama, linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama 3": ("Llama", {"rope_scaling": LLAMA3, "rope_theta": 500000.0}),
    "llama, yarn": ("Llama", {"rope_scaling": YARN}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "qwen2": ("Qwen2", {}),
    "qwen2, windows": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "phi3": ("Phi3", {"sliding_window": 8}),
    "phi3, longrope": (
        "Phi3",
        {"rope_scaling": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "gemma": ("Gemma", {"head_dim": 32}),
    "gemma2": (
        "Gemma2",
        {
            "head_dim": 32,
            "num_hidden_layers": 3,
            "sliding_window": 8,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 1.5,
            "attn_implementation": "eager",  # others leave the soft cap of scores out
        },
    ),
    "gemma3": (
        "Gemma3Text",
        {"head_dim": 32, "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 24},
    ),
}


@pytest.mark.parametrize("name", DIRECT)
def test_safetensors_that_transformers_writes_equal_torch(tmp_path, libraries, name) -> None:
    torch, transformers = libraries
    kind, options = DIRECT[name]
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **options})
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval()
    for parameter in network.parameters():  # norms away from 1, biases away from 0
        parameter.data += torch.randn_like(parameter) * 0.1
    network.save_pretrained(tmp_path / "hf")
    assert safetensors.accepts(str(tmp_path / "hf"))
    (tmp_path / "dense").mkdir()
    safetensors.export(str(tmp_path / "hf"), tmp_path / "dense", "float32")
    ids = np.random.default_rng(1).integers(3, 250, (2, 41))
    with torch.no_grad():
        expected = network(torch.tensor(ids)).logits.numpy()
    assert relative_error(run(tmp_path / "dense", ids), expected) < RELATIVE_ERROR


def test_optimum_exports_the_soft_cap_of_scores(tmp_path, libraries) -> None:
    torch, transformers = libraries
    config = transformers.Gemma2Config(**{**SHAPE, **DIRECT["gemma2"][1]})
    torch.manual_seed(0)
    network = transformers.Gemma2ForCausalLM(config).eval()
    for parameter in network.parameters():  # large scores
        parameter.data += torch.randn_like(parameter) * 0.1
    network.save_pretrained(tmp_path / "hf")
    (tmp_path / "dense").mkdir()
    huggingface.export(str(tmp_path / "hf"), tmp_path / "dense")
    ids = np.random.default_rng(1).integers(3, 250, (2, 41))
    with torch.no_grad():
        expected = network(torch.tensor(ids)).logits.numpy()
    assert relative_error(run(tmp_path / "dense", ids), expected) < RELATIVE_ERROR


def test_the_tokenizer_of_a_bundle_feeds_its_model(tmp_path, libraries) -> None:
    """`generate(**tokenizer(...))`, as everybody writes it."""
    _, transformers = libraries
    from optimum.onnxruntime import ORTModelForCausalLM

    model = tiny_gguf.random_model()
    network = transformers_model(libraries, model)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    (tmp_path / "dense").mkdir()
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "dense")
        inputs = tokenizer("hello world", return_tensors="pt")
    bundle = ORTModelForCausalLM.from_pretrained(tmp_path / "dense", local_files_only=True)
    options = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 2}
    found, expected = (m.generate(**inputs, **options).tolist() for m in (bundle, network))
    assert set(inputs) == {"input_ids", "attention_mask"}
    assert found == expected


def test_both_exports_have_the_same_interface(tmp_path, libraries) -> None:
    model = tiny_gguf.random_model()
    transformers_model(libraries, model).save_pretrained(tmp_path / "hf")
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    interfaces = []
    for name, exporter, source in (("a", gguf, "tiny.gguf"), ("b", huggingface, "hf")):
        (tmp_path / name).mkdir()
        exporter.export(str(tmp_path / source), tmp_path / name)
        session = ort.InferenceSession(tmp_path / name / "model.onnx")
        nodes = [*session.get_inputs(), *session.get_outputs()]
        interfaces.append([(node.name, node.type, node.shape) for node in nodes])
    assert interfaces[0] == interfaces[1]


def test_a_gguf_bundle_loads_in_optimum_and_generates_what_torch_does(tmp_path, libraries) -> None:
    torch, _ = libraries
    from optimum.onnxruntime import ORTModelForCausalLM

    model = tiny_gguf.random_model()
    network = transformers_model(libraries, model)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    (tmp_path / "dense").mkdir()
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", "float32")
    bundle = ORTModelForCausalLM.from_pretrained(tmp_path / "dense", local_files_only=True)
    ids = torch.tensor(np.random.default_rng(1).integers(3, 250, (2, 9)))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1], [1] * 9])
    options = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 2}
    options["eos_token_id"] = 10_000
    found, expected = (m.generate(ids, **options).tolist() for m in (bundle, network))
    assert found == expected


#: Of a small encoder.
ENCODER = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}


def hidden_states(source: Path, folder: Path, ids: np.ndarray) -> np.ndarray:
    """The only output of the export of an encoder."""
    folder.mkdir()
    huggingface.export(str(source), folder)
    session = ort.InferenceSession(folder / "model.onnx")
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids}
    (found,) = session.run(None, {node.name: feeds[node.name] for node in session.get_inputs()})
    return found


def test_an_encoder(tmp_path, libraries) -> None:
    torch, transformers = libraries
    config = transformers.BertConfig(**ENCODER)
    network = transformers.BertModel(config, add_pooling_layer=False).eval()
    network.save_pretrained(tmp_path / "hf")
    ids = np.random.default_rng(0).integers(2, 60, (2, 7))
    with torch.no_grad():
        expected = network(torch.tensor(ids)).last_hidden_state.numpy()
    found = hidden_states(tmp_path / "hf", tmp_path / "dense", ids)
    assert relative_error(found, expected) < RELATIVE_ERROR


def test_a_model_of_sentence_transformers_that_guesses_masked_words(tmp_path, libraries) -> None:
    torch, transformers = libraries
    network = transformers.MPNetForMaskedLM(transformers.MPNetConfig(**ENCODER)).eval()
    network.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "modules.json").write_text('[{"path": ""}]')
    ids = np.random.default_rng(0).integers(2, 60, (2, 7))
    with torch.no_grad():
        expected = network.mpnet(torch.tensor(ids)).last_hidden_state.numpy()
    found = hidden_states(tmp_path / "hf", tmp_path / "dense", ids)
    assert relative_error(found, expected) < RELATIVE_ERROR


def test_the_tokenizer_comes_along(tmp_path, libraries) -> None:
    model = tiny_gguf.random_model()
    transformers_model(libraries, model).save_pretrained(tmp_path / "hf")
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    gguf.export(str(tmp_path / "tiny.gguf"), tmp_path / "a", "float32")
    _, transformers = libraries
    transformers.AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "hf")
    huggingface.export(str(tmp_path / "hf"), tmp_path / "b")
    assert (tmp_path / "b/tokenizer.onnx").is_file()
    config = json.loads((tmp_path / "b/tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages[0]['content'] }}"
    assert config["add_bos_token"] is False


def test_a_hub_that_cannot_be_reached(tmp_path, libraries, monkeypatch, capfd) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(TamizError, match="no-such-org/no-such-model: optimum cannot export it: "):
        huggingface.export("no-such-org/no-such-model", tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_architecture_that_optimum_does_not_know(tmp_path, libraries) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no-such-type"}')
    with pytest.raises(TamizError, match=r"optimum cannot export it: .*no-such-type"):
        huggingface.export(str(tmp_path), tmp_path)


def test_without_optimum(tmp_path, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "optimum"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optimum", None)
    with pytest.raises(TamizError, match=r"run: pip install 'tamiz\[export\]'"):
        huggingface.export("org/name", tmp_path)


def test_accepts(tmp_path) -> None:
    assert huggingface.accepts("org/name")
    assert not huggingface.accepts("name")
    assert not huggingface.accepts(str(tmp_path))
    assert not huggingface.accepts("../some/where")
    (tmp_path / "config.json").write_text("{}")
    assert huggingface.accepts(str(tmp_path))
