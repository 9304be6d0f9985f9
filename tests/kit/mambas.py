"""Tiny models with selective state spaces (Mamba-2): their weights, and files of Hugging Face."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.tiny_gguf import byte_level_tokens
from kit.tiny_safetensors import CONTEXT, write_file

Array = np.ndarray[Any, Any]
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, EPSILON = 64, 4, 2, 16, 96, 1e-5
EXPERTS, TOP, EXPERT_FFN, ROUTED_SCALE = 5, 2, 32, 2.5
_VOCABULARY = len(byte_level_tokens())


@dataclass(frozen=True)
class TinyMamba:
    """Weights have the names and the layout of the graph: linear ``[N, K]``.

    Attributes:
        architecture: In GGUF.
        layers: A letter each: M for a state space, * for attention; of Nemotron-H - for a
            feed-forward block and E for experts; of Falcon-H1 B for M and * beside each other;
            of Mamba-2 M alone.
        heads: Of state spaces.
        groups: Of these heads.
        d_head: Length of such a head.
        d_state: Length of B and C.
        taps: Tokens that the convolution mixes.
        rotary: Whether heads of attention rotate.
        rope_base: Of rotary embeddings.
        experts: Of each layer; 0: a feed-forward block.
        normed: Whether the output of a state space is normed.
        norm_first: Whether that comes before the gate.
        scales: Factors of Falcon-H1 by their names in ``config.json``; those of Granite likewise.
        weights: By name.
    """

    architecture: str
    layers: str
    heads: int = 8
    groups: int = 1
    d_head: int = 16
    d_state: int = 16
    taps: int = 4
    rotary: bool = False
    rope_base: float = 1e4
    experts: int = 0
    normed: bool = True
    norm_first: bool = False
    scales: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)

    @property
    def inner(self) -> int:
        return self.heads * self.d_head

    @property
    def channels(self) -> int:
        return self.inner + 2 * self.groups * self.d_state

    @property
    def one_block(self) -> bool:
        return self.architecture.startswith(("nemotron_h", "mamba2"))

    def mixes_experts(self, kind: str) -> bool:
        """Whether a layer of this kind has experts beside its feed-forward block."""
        return kind == "E" if self.one_block else self.experts > 0

    def scale(self, name: str) -> float:
        return float(self.scales.get(name, 1.0))


_GRANITE_SCALES = {
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.3,
    "residual_multiplier": 0.4,
    "logits_scaling": 2.0,
}
_FALCON_SCALES = {
    "embedding_multiplier": 2.5,
    "lm_head_multiplier": 0.4,
    "key_multiplier": 0.6,
    "attention_in_multiplier": 0.9,
    "attention_out_multiplier": 0.7,
    "ssm_in_multiplier": 1.2,
    "ssm_out_multiplier": 0.8,
    "mlp_multipliers": [0.75, 1.3],
    "ssm_multipliers": [0.9, 1.1, 0.8, 1.3, 0.7],
}
#: Arguments of `random_mamba` by name.
MAMBAS: dict[str, dict[str, Any]] = {
    "granite 4": {"architecture": "granitehybrid", "layers": "MM*M", "scales": _GRANITE_SCALES},
    "granite 4 MoE": {
        "architecture": "granitehybrid",
        "layers": "MM*M",
        "experts": EXPERTS,
        "scales": _GRANITE_SCALES,
    },
    "falcon h1": {
        "architecture": "falcon-h1",
        "layers": "BB",
        "heads": 6,
        "groups": 2,
        "rotary": True,
        "normed": False,
        "scales": _FALCON_SCALES,
    },
    "falcon h1, normed": {
        "architecture": "falcon-h1",
        "layers": "BB",
        "heads": 6,
        "groups": 2,
        "rotary": True,
        "scales": _FALCON_SCALES,
    },
    "mamba 2": {"architecture": "mamba2", "layers": "MMM", "groups": 2},
    "nemotron h": {"architecture": "nemotron_h", "layers": "M-M*-M-", "groups": 2},
    "nemotron h MoE": {
        "architecture": "nemotron_h_moe",
        "layers": "MEM*EM",
        "groups": 2,
        "experts": EXPERTS,
    },
}


def random_mamba(seed: int = 0, tied: bool = False, **shape: Any) -> TinyMamba:
    """A model of random numbers."""
    model, random = TinyMamba(**shape), np.random.default_rng(seed)

    def normal(*size: int, scale: float = 0.15) -> Array:
        return (random.standard_normal(size) * scale).astype(np.float32)

    found = {"model.embed_tokens.weight": normal(_VOCABULARY, HIDDEN, scale=0.6)}
    for number, kind in enumerate(model.layers):
        name = f"model.layers.{number}"
        found[f"{name}.input_layernorm.weight"] = 1 + normal(HIDDEN)
        if kind in "*B":
            sizes = {"q": HEADS, "k": KV_HEADS, "v": KV_HEADS}
            for part, heads in sizes.items():
                found[f"{name}.self_attn.{part}_proj.weight"] = normal(heads * HEAD_DIM, HIDDEN)
            found[f"{name}.self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * HEAD_DIM)
        if kind in "MB":
            at = f"{name}.mamba"
            found[f"{at}.in_proj.weight"] = normal(
                model.inner + model.channels + model.heads, HIDDEN
            )
            found[f"{at}.conv1d.weight"] = normal(model.channels, model.taps, scale=0.6)
            found[f"{at}.conv1d.bias"] = normal(model.channels)
            found[f"{at}.A_log"] = normal(model.heads, scale=0.5)
            found[f"{at}.dt_bias"] = normal(model.heads)
            found[f"{at}.D"] = 1 + normal(model.heads)
            if model.normed:
                found[f"{at}.norm.weight"] = 1 + normal(model.inner)
            found[f"{at}.out_proj.weight"] = normal(HIDDEN, model.inner)
        if model.one_block and kind not in "-E":
            continue
        if not model.one_block:
            found[f"{name}.post_attention_layernorm.weight"] = 1 + normal(HIDDEN)
            found[f"{name}.mlp.gate_proj.weight"] = normal(FFN, HIDDEN)
        found[f"{name}.mlp.up_proj.weight"] = normal(FFN, HIDDEN)
        found[f"{name}.mlp.down_proj.weight"] = normal(HIDDEN, FFN)
        if model.mixes_experts(kind):
            if model.one_block:
                found[f"{name}.correction"] = normal(model.experts)
            rows = EXPERT_FFN if model.one_block else 2 * EXPERT_FFN
            found[f"{name}.router"] = normal(model.experts, HIDDEN, scale=0.6)
            found[f"{name}.experts_in"] = normal(model.experts, rows, HIDDEN)
            found[f"{name}.experts_out"] = normal(model.experts, HIDDEN, EXPERT_FFN)
    found["model.norm.weight"] = 1 + normal(HIDDEN)
    if not tied:
        found["lm_head.weight"] = normal(_VOCABULARY, HIDDEN)
    return replace(model, weights=found)


def _sizes(model: TinyMamba) -> dict[str, Any]:
    values = model.heads, model.groups, model.d_head, model.d_state, model.taps
    names = ["mamba_num_heads", "n_groups", "mamba_head_dim", "ssm_state_size", "conv_kernel"]
    if model.architecture == "mamba2":
        names = ["num_heads", "n_groups", "head_dim", "state_size", "conv_kernel"]
    if not model.one_block:
        names = [f"mamba_{part}" for part in ("n_heads", "n_groups", "d_head", "d_state", "d_conv")]
    return dict(zip(names, values, strict=True))


def config(model: TinyMamba) -> dict[str, Any]:
    """What ``config.json`` holds, as the models are published."""
    if model.architecture == "mamba2":
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": "mamba2",
            "vocab_size": _VOCABULARY,
            "hidden_size": HIDDEN,
            "num_hidden_layers": len(model.layers),
            "tie_word_embeddings": "lm_head.weight" not in model.weights,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "layer_norm_epsilon": EPSILON,
            "hidden_act": "silu",
            "expand": 2,
            "rms_norm": True,
            "use_bias": False,
            "use_conv_bias": True,
            "time_step_rank": 160,
            "residual_in_fp32": True,
            **_sizes(model),
        }
    names = {
        "granitehybrid": ("GraniteMoeHybridForCausalLM", "granitemoehybrid"),
        "falcon-h1": ("FalconH1ForCausalLM", "falcon_h1"),
        "nemotron_h": ("NemotronHForCausalLM", "nemotron_h"),
        "nemotron_h_moe": ("NemotronHForCausalLM", "nemotron_h"),
    }[model.architecture]
    values: dict[str, Any] = {
        "architectures": [names[0]],
        "model_type": names[1],
        "vocab_size": _VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": "lm_head.weight" not in model.weights,
        "eos_token_id": 2,
        "pad_token_id": 0,
        **_sizes(model),
        **model.scales,
    }
    if model.experts and model.one_block:
        values |= {
            "n_routed_experts": model.experts,
            "num_experts_per_tok": TOP,
            "moe_intermediate_size": EXPERT_FFN,
            "moe_shared_expert_intermediate_size": FFN,
            "n_shared_experts": 1,
            "routed_scaling_factor": ROUTED_SCALE,
            "norm_topk_prob": True,
            "n_group": 1,
            "topk_group": 1,
        }
    if model.one_block:
        return values | {
            "head_dim": HEAD_DIM,
            "hybrid_override_pattern": model.layers,
            "layer_norm_epsilon": EPSILON,
            "mlp_hidden_act": "relu2",
            "mamba_hidden_act": "silu",
            "expand": 2,
            "use_conv_bias": True,
        }
    values |= {"rms_norm_eps": EPSILON, "hidden_act": "silu", "mamba_conv_bias": True}
    if model.architecture == "falcon-h1":
        return values | {
            "head_dim": HEAD_DIM,
            "rope_theta": model.rope_base,
            "mamba_d_ssm": model.inner,
            "mamba_rms_norm": model.normed,
            "mamba_norm_before_gate": model.norm_first,
        }
    return values | {
        "layer_types": ["attention" if kind == "*" else "mamba" for kind in model.layers],
        "position_embedding_type": "rope" if model.rotary else "nope",
        "rope_theta": model.rope_base,
        "mamba_expand": 2,
        "shared_intermediate_size": FFN,
        "intermediate_size": EXPERT_FFN if model.experts else FFN,
        "num_local_experts": model.experts,
        "num_experts_per_tok": TOP if model.experts else 0,
    }


def tensors(model: TinyMamba) -> dict[str, Array]:
    """The weights as transformers names them."""
    found = dict[str, Array]()
    for name, value in model.weights.items():
        if name.endswith("conv1d.weight"):
            value = value[:, None]
        if model.architecture == "granitehybrid":
            if name.endswith("mlp.gate_proj.weight"):
                up = model.weights[name.replace("gate_proj", "up_proj")]
                name, value = (
                    name.replace("mlp.gate_proj", "shared_mlp.input_linear"),
                    np.concatenate([value, up]),
                )
            elif name.endswith("mlp.up_proj.weight"):
                continue
            name = name.replace("mlp.down_proj", "shared_mlp.output_linear")
            for own, stored in (
                (".router", "router.layer"),
                (".experts_in", "input_linear"),
                (".experts_out", "output_linear"),
            ):
                if name.endswith(own):
                    name = f"{name.removesuffix(own)}.block_sparse_moe.{stored}.weight"
        elif model.architecture == "falcon-h1":
            name = name.replace(".mlp.", ".feed_forward.").replace(
                "model.norm", "model.final_layernorm"
            )
            name = name.replace("post_attention_layernorm", "pre_ff_layernorm")
        else:
            if model.experts and name.endswith((".experts_in", ".experts_out")):
                layer, _, part = name.replace("model.", "backbone.").rpartition(".experts_")
                own = {"in": "up_proj", "out": "down_proj"}[part]
                for number, rows in enumerate(value):
                    found[f"{layer}.mixer.experts.{number}.{own}.weight"] = rows
                continue
            if model.experts:
                name = name.replace(".mlp.", ".mixer.shared_experts.")
            name = name.replace(".router", ".mixer.gate.weight")
            name = name.replace(".correction", ".mixer.gate.e_score_correction_bias")
            for part in (".self_attn.", ".mamba.", ".mlp."):
                name = name.replace(part, ".mixer.")
            name = name.replace("input_layernorm", "norm").replace("model.norm", "model.norm_f")
            name = name.replace("embed_tokens", "embeddings").replace("model.", "backbone.")
        found[name] = value
    return found


def write_folder(folder: Path, model: TinyMamba, kind: Type = Type.F32, **changes: Any) -> Path:
    """Writes a folder of Hugging Face; `changes` are other values in ``config.json``."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**config(model), **changes}, indent=2))
    write_file(folder / "model.safetensors", tensors(model), kind)
    return folder
