"""Tiny decoders of many families: random weights, files of Hugging Face and of llama.cpp.

Weights have the names and the layout of transformers. A GGUF has the names of gguf-py's table and
the metadata that llama.cpp's converter writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.constants import GGMLQuantizationType as Type

from kit.tiny_gguf import add_tokenizer, byte_level_tokens
from kit.tiny_safetensors import CONTEXT, write_file

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 4
EXPERTS, EXPERT_FFN = 5, 32
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
#: What names one of a layer's experts.
_EXPERT = re.compile(r"experts\.\d+(\..*)")
_VOCABULARY = len(byte_level_tokens())
#: Weights that converters keep in float32.
_FLOATS = ("ffn_gate_inp.weight", "shortconv.conv.weight")
_ARCHITECTURES = {name: number for number, name in MODEL_ARCH_NAMES.items()}


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        model_class: Its class in transformers.
        model_type: Its name in ``config.json``.
        gguf: Its name in GGUF.
        layer: Tensors of a layer and their shapes, in transformers.
        ends: Tensors beside the layers.
        config: Fields of ``config.json`` beside the usual ones.
        keys: Metadata of GGUF beside the usual ones, without the architecture.
        seed: Of its weights. llama.cpp looks GELU up in a table of float16, so near ties of two
            tokens may turn.
    """

    model_class: str
    model_type: str
    gguf: str
    layer: Shapes
    ends: Shapes
    config: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    seed: int = 0


def _norms(*names: str, width: int = HIDDEN) -> Shapes:
    return {f"{name}.weight": (width,) for name in names}


def _biases(shapes: Shapes) -> Shapes:
    """The shapes with a bias beside each weight."""
    biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    return shapes | biases


_QKV: Shapes = {
    "self_attn.q_proj.weight": (Q, HIDDEN),
    "self_attn.k_proj.weight": (KV, HIDDEN),
    "self_attn.v_proj.weight": (KV, HIDDEN),
}
_OUT: Shapes = {"self_attn.o_proj.weight": (HIDDEN, Q)}
_DOWN: Shapes = {"mlp.down_proj.weight": (HIDDEN, FFN)}
_MLP: Shapes = {
    "mlp.gate_proj.weight": (FFN, HIDDEN),
    "mlp.up_proj.weight": (FFN, HIDDEN),
    **_DOWN,
}
_ENDS: Shapes = {
    "model.embed_tokens.weight": (_VOCABULARY, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (_VOCABULARY, HIDDEN),
}
_OLMO: Shapes = {
    **_QKV,
    **_OUT,
    **_MLP,
    **_norms("self_attn.q_norm", width=Q),
    **_norms("self_attn.k_norm", width=KV),
    **_norms("post_attention_layernorm", "post_feedforward_layernorm"),
}
_LFM2_KINDS = ["conv", "full_attention", "conv", "full_attention"]


def _experts(block: str) -> Shapes:
    """Gate, down and up of all experts of a layer."""
    shapes = {"w1": (EXPERT_FFN, HIDDEN), "w2": (HIDDEN, EXPERT_FFN), "w3": (EXPERT_FFN, HIDDEN)}
    return {
        f"{block}.experts.{expert}.{part}.weight": shape
        for part, shape in shapes.items()
        for expert in range(EXPERTS)
    }


def _lfm2(layer: int) -> Shapes:
    """A layer of LFM2 with experts but in the first."""
    shapes = _norms("operator_norm", "ffn_norm")
    if _LFM2_KINDS[layer] == "conv":
        shapes |= {
            "conv.conv.weight": (HIDDEN, 1, 3),
            "conv.in_proj.weight": (3 * HIDDEN, HIDDEN),
            "conv.out_proj.weight": (HIDDEN, HIDDEN),
        }
    else:
        shapes |= {**_QKV, "self_attn.out_proj.weight": (HIDDEN, Q)}
        shapes |= _norms("self_attn.q_layernorm", "self_attn.k_layernorm", width=HEAD_DIM)
    if layer == 0:
        widths = {"w1": (FFN, HIDDEN), "w2": (HIDDEN, FFN), "w3": (FFN, HIDDEN)}
        return shapes | {f"feed_forward.{part}.weight": size for part, size in widths.items()}
    shapes |= {"feed_forward.gate.weight": (EXPERTS, HIDDEN)}
    return shapes | {"feed_forward.expert_bias": (EXPERTS,)} | _experts("feed_forward")


_WINDOWS_OF_FOUR = ["sliding_attention"] * 3 + ["full_attention"]
_TIED = {name: shape for name, shape in _ENDS.items() if name != "lm_head.weight"}
_MULTI_HEADED = {name: (Q, HIDDEN) for name in _QKV}
_COHERE: Shapes = {**_QKV, **_OUT, **_MLP, **_norms("input_layernorm")}
_COHERE_FIELDS = {"layer_norm_eps": 1e-5, "logit_scale": 0.25}
_COHERE_KEYS = {
    "attention.layer_norm_epsilon": 1e-5,
    "logit_scale": 0.25,
    "rope.scaling.type": "none",
}

FAMILIES = {
    "olmo 2": Family("Olmo2ForCausalLM", "olmo2", "olmo2", _OLMO, _ENDS),
    "olmo 3": Family(
        "Olmo3ForCausalLM",
        "olmo3",
        "olmo2",
        _OLMO,
        _ENDS,
        {
            "rope_theta": 500000.0,
            "sliding_window": 8,
            "layer_types": _WINDOWS_OF_FOUR,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [
                kind != "full_attention" for kind in _WINDOWS_OF_FOUR
            ],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_attn_factor": 1.2079441541679836,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.freq_base_swa": 500000.0,
        },
    ),
    "lfm2 MoE": Family(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        "lfm2moe",
        {},
        {
            "model.embed_tokens.weight": (_VOCABULARY, HIDDEN),
            "model.embedding_norm.weight": (HIDDEN,),
            **{f"model.layers.{n}.{k}": v for n in range(LAYERS) for k, v in _lfm2(n).items()},
        },
        {
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "layer_types": _LFM2_KINDS,
            "num_dense_layers": 1,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": EXPERT_FFN,
        },
        {
            "attention.head_count_kv": [KV_HEADS if "full" in kind else 0 for kind in _LFM2_KINDS],
            "shortconv.l_cache": 3,
            "leading_dense_block_count": 1,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_feed_forward_length": EXPERT_FFN,
        },
    ),
    "minimax m2": Family(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        "minimax-m2",
        {
            **_QKV,
            **_OUT,
            **_norms("input_layernorm", "post_attention_layernorm"),
            **_norms("self_attn.q_norm", width=Q),
            **_norms("self_attn.k_norm", width=KV),
            "block_sparse_moe.gate.weight": (EXPERTS, HIDDEN),
            "block_sparse_moe.e_score_correction_bias": (EXPERTS,),
            **_experts("block_sparse_moe"),
        },
        _ENDS,
        {
            "intermediate_size": EXPERT_FFN,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "rotary_dim": HEAD_DIM // 2,
        },
        {
            "rope.dimension_count": HEAD_DIM // 2,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_feed_forward_length": EXPERT_FFN,
        },
    ),
    "command r": Family(
        "CohereForCausalLM", "cohere", "command-r", _COHERE, _TIED, _COHERE_FIELDS, _COHERE_KEYS
    ),
    "command r7b": Family(
        "Cohere2ForCausalLM",
        "cohere2",
        "cohere2",
        _COHERE,
        _TIED,
        {**_COHERE_FIELDS, "sliding_window": 8, "layer_types": _WINDOWS_OF_FOUR},
        {**_COHERE_KEYS, "attention.sliding_window": 8},
    ),
    "phi 2": Family(
        "PhiForCausalLM",
        "phi",
        "phi2",
        _biases(
            {
                **_MULTI_HEADED,
                "self_attn.dense.weight": (HIDDEN, Q),
                "mlp.fc1.weight": (FFN, HIDDEN),
                "mlp.fc2.weight": (HIDDEN, FFN),
                **_norms("input_layernorm"),
            }
        ),
        {
            "model.embed_tokens.weight": (_VOCABULARY, HIDDEN),
            **_biases(_norms("model.final_layernorm")),
            **_biases({"lm_head.weight": (_VOCABULARY, HIDDEN)}),
        },
        {
            "hidden_act": "gelu_new",
            "partial_rotary_factor": 0.5,
            "layer_norm_eps": 1e-5,
            "num_key_value_heads": HEADS,
        },
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD_DIM // 2},
        seed=1,
    ),
    "stablelm 2": Family(
        "StableLmForCausalLM",
        "stablelm",
        "stablelm",
        {
            **_biases(_QKV),
            **_OUT,
            **_MLP,
            **_biases(_norms("input_layernorm", "post_attention_layernorm")),
        },
        _ENDS | _biases(_norms("model.norm")),
        {"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "use_qkv_bias": True},
        {
            "attention.layer_norm_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM // 4,
            "use_parallel_residual": False,
        },
    ),
    "starcoder 2": Family(
        "Starcoder2ForCausalLM",
        "starcoder2",
        "starcoder2",
        _biases(
            {
                **_QKV,
                **_OUT,
                "mlp.c_fc.weight": (FFN, HIDDEN),
                "mlp.c_proj.weight": (HIDDEN, FFN),
                **_norms("input_layernorm", "post_attention_layernorm"),
            }
        ),
        _TIED | _biases(_norms("model.norm")),
        {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": True},
        {"attention.layer_norm_epsilon": 1e-5},
    ),
    "glm 4": Family(
        "Glm4ForCausalLM",
        "glm4",
        "glm4",
        {
            **_biases(_QKV),
            **_OUT,
            "mlp.gate_up_proj.weight": (2 * FFN, HIDDEN),
            **_DOWN,
            **_norms("input_layernorm", "post_attention_layernorm"),
            **_norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        },
        _ENDS,
        {"attention_bias": True, "partial_rotary_factor": 0.5},
        {"rope.dimension_count": HEAD_DIM // 2},
    ),
}


def config(family: Family) -> dict[str, Any]:
    """What ``config.json`` holds."""
    return {
        "architectures": [family.model_class],
        "model_type": family.model_type,
        "vocab_size": _VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": "lm_head.weight" not in family.ends,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **family.config,
    }


def tensors(family: Family) -> dict[str, Array]:
    """Random weights; those of norms are near 1."""
    random = np.random.default_rng(family.seed)
    shapes = dict(family.ends)
    for layer in range(LAYERS):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in family.layer.items()}

    def values(name: str, shape: tuple[int, ...]) -> Array:
        near = 1.0 if "norm" in name and name.endswith(".weight") else 0.0
        scale = 0.6 if "embed" in name else 0.15
        return (near + random.standard_normal(shape) * scale).astype(np.float32)

    return {name: values(name, shape) for name, shape in shapes.items()}


def write_folder(path: Path, name: str, kind: Type = Type.F32, **changes: Any) -> None:
    """Writes a folder of Hugging Face's layout; `changes` are other values in its configuration."""
    path.mkdir(exist_ok=True)
    family = FAMILIES[name]
    (path / "config.json").write_text(json.dumps({**config(family), **changes}, indent=2))
    write_file(path / "model.safetensors", tensors(family), kind)


def write_gguf(path: Path, name: str, kind: Type = Type.F32, **changes: Any) -> None:
    """Writes a GGUF; matrices are of a kind, `changes` are other metadata."""
    family = FAMILIES[name]
    writer = gguf.GGUFWriter(path, family.gguf)
    fields = config(family)
    usual = {
        "context_length": fields["max_position_embeddings"],
        "block_count": fields["num_hidden_layers"],
        "embedding_length": fields["hidden_size"],
        "feed_forward_length": fields["intermediate_size"],
        "attention.head_count": fields["num_attention_heads"],
        "attention.head_count_kv": fields["num_key_value_heads"],
        "attention.key_length": fields["head_dim"],
        "attention.value_length": fields["head_dim"],
        "attention.layer_norm_rms_epsilon": fields["rms_norm_eps"],
        "rope.freq_base": fields["rope_theta"],
    }
    for key, value in {**usual, **family.keys, **changes}.items():
        _add(writer, f"{family.gguf}.{key}", value)
    add_tokenizer(writer)
    for stored, values in _gguf_tensors(family):
        matrix = values.ndim > 1 and not stored.endswith(_FLOATS)
        own = kind if matrix else Type.F32
        writer.add_tensor(stored, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _gguf_tensors(family: Family) -> Iterator[tuple[str, Array]]:
    """Tensors under the names of GGUF."""
    table = gguf.get_tensor_name_map(_ARCHITECTURES[family.gguf], LAYERS)
    stacks: dict[str, list[Array]] = {}
    for name, values in tensors(family).items():
        whole = _EXPERT.sub(r"experts\1", name)
        whole = whole.replace("correction_bias", "correction.bias")
        whole = f"{whole}.bias" if whole.endswith(".expert_bias") else whole
        names = (table.get_name(each, (".weight", ".bias")) for each in (whole, whole[6:]))
        stored = next(filter(None, names), None)
        assert stored is not None, name
        stacks.setdefault(stored, []).append(values.squeeze())
        if whole == name or len(stacks[stored]) == EXPERTS or values.ndim == 1:
            parts = stacks.pop(stored)
            yield stored, parts[0] if len(parts) == 1 else np.stack(parts)
