"""The tiny decoder of `kit.tiny_gguf` as a folder of Hugging Face: safetensors and config.json."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.convolutions import convolves
from kit.delta_nets import delta_config, delta_tensors, gated
from kit.latents import latent_of, paired
from kit.mixtures import ROUTED_SCALE, gpt_oss_tensors
from kit.tiny_gguf import TinyModel, interleave

CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "olmoe": "OlmoeForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "glm4_moe": "Glm4MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "minicpm3": "MiniCPM3ForCausalLM",
    "plm": "PLMForCausalLM",
    "arcee": "ArceeForCausalLM",
    "bitnet": "BitNetForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
CONTEXT = 512
_OWN_CORRECTION = "e_score_correction_bias"
_CORRECTION = f"moe_statics.{_OWN_CORRECTION}"
_FIRST_QUERY = "model.layers.0.self_attn.q_proj"


#: What no file quantises.
_FLOATS = (
    ".gate.weight",
    "router.layer.weight",
    "mlp.router.weight",
    "_proj_bias",
    "expert_gate.weight",
    "conv.conv.weight",
    "conv1d.weight",
    _CORRECTION,
)
_LFM2 = {
    "o_proj": "out_proj",
    "q_norm": "q_layernorm",
    "k_norm": "k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.norm": "model.embedding_norm",
}


def model_type(model: TinyModel) -> str:
    """What transformers calls the architecture."""
    if model.architecture == "llama" and model.window:
        return "mistral"
    if model.architecture == "llama" and model.experts:
        return "mixtral"
    if model.architecture == "deepseek2":
        return "deepseek_v3" if model.sigmoids else "deepseek_v2"
    names = {"gemma3": "gemma3_text", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
    names |= {"ernie4_5-moe": "ernie4_5_moe", "gpt-oss": "gpt_oss", "glm4moe": "glm4_moe"}
    names |= {"qwen3next": "qwen3_next", "qwen35": "qwen3_5_text"}
    names |= {"qwen35moe": "qwen3_5_moe_text", "bitnet-b1.58": "bitnet"}
    return names.get(model.architecture, model.architecture)


def config(model: TinyModel) -> dict[str, Any]:
    """What transformers 4 writes as ``config.json``."""
    kind = model_type(model)
    values: dict[str, Any] = {
        "architectures": [CLASSES[kind]],
        "model_type": kind,
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "rms_norm_eps": model.epsilon,
        "rope_theta": model.rope_base,
        "rope_scaling": None,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": "lm_head.weight" not in model.weights,
        "hidden_act": "silu",
        "eos_token_id": 2,
    }
    if kind == "ernie4_5_moe":
        values |= {
            "moe_num_experts": model.experts,
            "moe_k": model.top,
            "moe_intermediate_size": model.expert_ffn,
            "moe_num_shared_experts": model.shared_ffn // model.expert_ffn,
            "moe_layer_start_index": model.dense_layers,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
        }
    elif kind in ("glm4_moe", "deepseek_v2", "deepseek_v3"):
        values |= {
            "n_routed_experts": model.experts,
            "num_experts_per_tok": model.top,
            "moe_intermediate_size": model.expert_ffn,
            "n_shared_experts": model.shared_ffn // model.expert_ffn,
            "first_k_dense_replace": model.dense_layers,
            "routed_scaling_factor": ROUTED_SCALE,
            "norm_topk_prob": kind != "deepseek_v2",
            "n_group": model.groups[0],
            "topk_group": model.groups[1],
        }
        if kind == "glm4_moe":
            biased = f"{_FIRST_QUERY}.bias" in model.weights
            values |= {"use_qk_norm": True, "attention_bias": biased}
    elif model.experts:
        local = kind in ("mixtral", "granitemoe", "gpt_oss")
        values["num_local_experts" if local else "num_experts"] = model.experts
        values["num_experts_per_tok"] = model.top
        own_width = kind in ("qwen2_moe", "qwen3_moe")
        values["moe_intermediate_size" if own_width else "intermediate_size"] = model.expert_ffn
    if kind == "qwen2_moe":
        values["shared_expert_intermediate_size"] = model.shared_ffn
    if kind in ("qwen2_moe", "qwen3_moe", "olmoe"):
        values["norm_topk_prob"] = kind == "qwen3_moe"
    if kind.startswith("granite"):
        names = "embedding_multiplier", "attention_multiplier", "residual_multiplier"
        values |= zip((*names, "logits_scaling"), model.factors, strict=True)
    if kind == "lfm2":
        del values["rms_norm_eps"], values["hidden_act"]
        values |= {"norm_eps": model.epsilon, "conv_L_cache": model.taps, "conv_bias": False}
        layers = range(model.layers)
        kinds = ["conv" if convolves(model, n) else "full_attention" for n in layers]
        values |= {"layer_types": kinds, "block_auto_adjust_ff_dim": False}
    if (latent := latent_of(model)) is not None:
        values |= {
            "num_key_value_heads": model.heads,
            "head_dim": model.rotary_dim,
            "kv_lora_rank": latent.rank,
            "q_lora_rank": model.query_rank or None,
            "qk_nope_head_dim": latent.nope,
            "qk_rope_head_dim": model.rotary_dim,
            "v_head_dim": latent.value_dim,
        }
    if kind == "minicpm3":
        values |= {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256}
    if kind in ("arcee", "plm", "bitnet"):
        values["hidden_act"] = "relu2"
    if kind.startswith("gemma"):
        values |= {"hidden_act": None, "hidden_activation": "gelu_pytorch_tanh"}
    if kind == "gemma3_text":
        values |= {"rope_local_base_freq": 1e4, "query_pre_attn_scalar": model.head_dim}
        values |= {"attn_logit_softcapping": None, "sliding_window_pattern": 6}
    if kind == "gemma2":
        caps = zip(("attn", "final"), model.soft_caps, strict=True)
        values |= {f"{name}_logit_softcapping": cap or None for name, cap in caps}
        values["query_pre_attn_scalar"] = model.head_dim
    if model.window:
        values["sliding_window"] = model.window
    if gated(model):
        del values["rope_theta"], values["rope_scaling"]
        values |= delta_config(model)
    elif model.rotary_dim != model.head_dim and latent is None:
        values["partial_rotary_factor"] = model.rotary_dim / model.head_dim
    if model.rope_factor != 1:
        values["rope_scaling"] = {"type": "linear", "factor": model.rope_factor}
    if model.yarn:
        values["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": model.yarn[0],
            "original_max_position_embeddings": model.yarn[1],
        }
        if kind == "gpt_oss":
            values["rope_scaling"]["truncate"] = False
        if model.yarn_scale:
            scales = dict.fromkeys(("mscale", "mscale_all_dim"), model.yarn_scale)
            values["rope_scaling"] |= scales
    if model.long_factors is not None:
        factors = model.long_factors.tolist()
        values["original_max_position_embeddings"] = 128
        values["rope_scaling"] = {
            "type": "longrope",
            "short_factor": factors,
            "long_factor": [2 * factor for factor in factors],
        }
    return values


def tensors(model: TinyModel, microscaled: bool = False) -> dict[str, np.ndarray]:
    """The weights as transformers stores them, float32; those of experts of gpt-oss as MXFP4."""
    found, kind = {}, model_type(model)
    for name, value in model.weights.items():
        if model.architecture.startswith("gemma") and value.ndim == 1:
            value = value - np.float32(1)
        value = paired(model, name, value)
        if kind in ("glm4_moe", "deepseek_v2", "deepseek_v3"):
            name = name.replace("shared_expert.", "shared_experts.")
            name = name.replace("gate_correction.bias", f"gate.{_OWN_CORRECTION}")
        if kind.startswith("ernie"):
            name = name.replace("shared_expert.", "shared_experts.")
            if name.endswith("gate_correction.bias"):
                name, value = name.replace("gate_correction.bias", _CORRECTION), value[None]
            elif ".q_proj." in name or ".k_proj." in name:
                value = interleave(model, value)
        if kind == "lfm2":
            for own, stored in _LFM2.items():
                name = name.replace(own, stored)
            value = value[:, None] if name.endswith("conv.conv.weight") else value
        found[name] = value
    if model.architecture == "phi3":
        for layer in range(model.layers):
            name = f"model.layers.{layer}"
            for fused, parts in (
                ("self_attn.qkv_proj", [f"self_attn.{part}_proj" for part in "qkv"]),
                ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]),
            ):
                rows = [found.pop(f"{name}.{part}.weight") for part in parts]
                found[f"{name}.{fused}.weight"] = np.concatenate(rows)
    if gated(model):
        return delta_tensors(model, found)
    if kind == "gpt_oss":
        return gpt_oss_tensors(model, found, microscaled)
    return dict(_expert_tensors(model, found))


def _expert_tensors(
    model: TinyModel, found: dict[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Mixtral and Granite name the weights of experts in their own ways."""
    kind = model_type(model)
    for name, value in found.items():
        if kind == "mixtral":
            name = name.replace(".mlp.", ".block_sparse_moe.")
            for part, own in (("gate_proj", "w1"), ("up_proj", "w3"), ("down_proj", "w2")):
                name = name.replace(part, own)
        elif kind == "granitemoe" and ".mlp.experts." in name:
            continue
        elif kind == "granitemoe":
            name = name.replace(".mlp.gate.", ".block_sparse_moe.router.layer.")
        yield name, value
    for layer in range(model.layers if kind == "granitemoe" else 0):
        part = f"model.layers.{layer}.mlp.experts.{{}}.{{}}_proj.weight"
        own = f"model.layers.{layer}.block_sparse_moe"

        def stack(*names: str, part: str = part) -> np.ndarray:
            each = range(model.experts)
            rows = [np.concatenate([found[part.format(e, n)] for n in names]) for e in each]
            return np.stack(rows)

        yield f"{own}.input_linear.weight", stack("gate", "up")
        yield f"{own}.output_linear.weight", stack("down")


def write(
    folder: Path, model: TinyModel, kind: Type = Type.F32, shards: int = 1, **changes: Any
) -> Path:
    """Writes the folder.

    Args:
        folder: Made where it is not there.
        model: The model.
        kind: F32, F16 or BF16, of matrices; vectors are F32. MXFP4, of the experts of gpt-oss,
            whose other matrices are BF16.
        shards: Files; several have an index.
        changes: Other values in ``config.json``.
    """
    folder.mkdir(exist_ok=True)
    values = {**config(model), **changes}
    if microscaled := kind is Type.MXFP4:
        kind, quantized = Type.BF16, {"quant_method": "mxfp4", "modules_to_not_convert": []}
        values.setdefault("quantization_config", quantized)
    (folder / "config.json").write_text(json.dumps(values, indent=2))
    found = list(tensors(model, microscaled).items())
    if shards == 1:
        write_file(folder / "model.safetensors", dict(found), kind)
        return folder
    places: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = dict(found[shard::shards])
        write_file(folder / name, part, kind)
        places |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_file(path: Path, values: dict[str, np.ndarray], kind: Type = Type.F32) -> None:
    """Writes one file; NumPy has no bfloat16, so by hand."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, value in values.items():
        routes = name.endswith(_FLOATS)
        stored = kind if value.ndim > 1 and not routes else Type.F32
        if value.dtype == np.uint8:
            dtype, content = "U8", value.tobytes()
        else:
            dtype, content = stored.name, gguf.quants.quantize(value, stored).tobytes()
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(value.shape), "data_offsets": place}
        data += content
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
