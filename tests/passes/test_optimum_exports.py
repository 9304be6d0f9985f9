"""Graphs as optimum exports them, of small models with random weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from kit.decoders import CASES, attentions, largest_error, ops, run_passes, session
from kit.hf_configs import SHAPE, YARN
from tamiz.api.site import SiteKind
from tamiz_exporters.huggingface import by_optimum
from tamiz_passes.sites import find_sites

torch = pytest.importorskip("torch", reason="torch is not installed (extra 'export')")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("optimum.exporters.onnx", reason="optimum-onnx is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")

TOLERANCE = 1e-4


#: Configuration, model, what differs from SHAPE.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {"tie_word_embeddings": True}),
    "llama yarn": ("LlamaConfig", "LlamaForCausalLM", {"rope_scaling": YARN}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 16}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {"head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            "head_dim": 16,
            "sliding_window": 9,
            "query_pre_attn_scalar": 24,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "phi": ("PhiConfig", "PhiForCausalLM", {"num_key_value_heads": 4}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {}),
    "mistral with a window": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 9}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {}),
    "bert": ("BertConfig", "BertModel", {}),
}

LLAMA = {"RMSNorm": 5, "Attention": 2, "SwiGLU": 2, "MatMul": 15, "Gather": 1}

#: How often the ops stand in the recognised graph; None leaves them open.
RECOGNISED: dict[str, dict[str, int]] = {
    "llama": LLAMA,
    "llama yarn": LLAMA,
    "qwen2": {**LLAMA, "Add": 6},
    "qwen3": {**LLAMA, "RMSNorm": 9, "Reshape": 0},
    "gemma": {"RMSNorm": 5, "Attention": 2, "Softmax": 0, "Tanh": 0},
    "gemma2": {"RMSNorm": 9, "Attention": 2, "Softmax": 0, "Tanh": 1},
    "phi": {"Attention": 2, "LayerNormalization": 3, "Softmax": 0},
    "phi3": {"RMSNorm": 5, "Attention": 2, "SwiGLU": 2, "MatMul": 15, "Softmax": 0},
    "mistral with a window": LLAMA,
}
REFUSED = {
    "cohere": "Rotary embedding: expected x·cos + concat(−x₂, x₁)·sin (half-split); interleaved "
    "pairs are not supported.",
    "bert": "The key is not a past with new tokens appended: there is no KV cache.",
}


@pytest.fixture(scope="module", params=MODELS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """The name of a model and the graph that optimum makes of it."""
    config, kind, options = MODELS[request.param]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**{**SHAPE, **options}))
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):  # away from 1 and 0, so that they matter
            parameter.data += torch.randn_like(parameter) * 0.1
    folder: Path = tmp_path_factory.mktemp("optimum")
    model.eval().save_pretrained(folder / "torch")
    task = "feature-extraction" if request.param == "bert" else "text-generation-with-past"
    by_optimum(str(folder / "torch"), folder / "onnx", task)
    return request.param, folder / "onnx" / "model.onnx"


def test_what_is_recognised(exported: tuple[str, Path]) -> None:
    name, path = exported
    model = ir.load(path)
    notes = run_passes(model)
    count = Counter(ops(model))
    assert {op: count[op] for op in RECOGNISED.get(name, {})} == RECOGNISED.get(name, {})
    if RECOGNISED.get(name) is LLAMA:
        count.pop("Transpose", None)  # of the embedding, for a tied head
        assert count == LLAMA
        assert notes == []
    reasons = {note.reason for note in notes if note.pass_name == "attention"}
    assert reasons == ({REFUSED[name]} if name in REFUSED else set())


def test_soft_caps_are_attributes(exported: tuple[str, Path]) -> None:
    name, path = exported
    model = ir.load(path)
    run_passes(model)
    caps = [node.attributes.get("softcap") for node in attentions(model)]
    expected = MODELS[name][2].get("attn_logit_softcapping")
    assert all((cap.as_float() if cap else None) == expected for cap in caps)
    heads = [site for site in find_sites(model)[0] if site.kind == SiteKind.HEAD]
    expected = MODELS[name][2].get("final_logit_softcapping", 0.0)
    assert [site.logit_cap for site in heads] == [expected] * len(heads)


def test_the_recognised_graph_computes_the_same(exported: tuple[str, Path]) -> None:
    name, path = exported
    model = ir.load(path)
    run_passes(model)
    before, after = session(path), session(model)
    for case in ("prompt",) if name == "bert" else CASES:
        assert largest_error(before, after, case) < TOLERANCE, case


def test_every_linear_is_a_site(exported: tuple[str, Path]) -> None:
    name, path = exported
    model = ir.load(path)
    run_passes(model)
    sites = {site.id: site for site in find_sites(model)[0]}
    if name == "bert":
        assert len(sites) == 13
        kinds = Counter(site.kind for site in sites.values())
        assert kinds == {SiteKind.LINEAR: 12, SiteKind.EMBEDDING: 1}
        return
    assert {"tok_embd", "output"} <= set(sites)
    parts = ["attn_q", "attn_k", "attn_v", "attention", "attn_o", "ffn_up", "ffn", "ffn_down"]
    if name == "phi3":  # q, k, v are one linear, gate and up another
        parts = ["attn_o"]
    for layer in range(2):
        assert {f"layers.{layer}.{part}" for part in parts} <= set(sites)
        assert (f"layers.{layer}.ffn_gate" in sites) == (name not in ("phi", "phi3"))
