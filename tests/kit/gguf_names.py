"""What tiny models call their weights in GGUF."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.delta_nets import GGUF_NAMES, gated
from kit.latents import gguf_latents

if TYPE_CHECKING:
    from kit.tiny_gguf import TinyModel

_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "exp_probs_b": "mlp.gate_correction",
    "attn_sinks": "self_attn.sinks",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.conv": "conv.conv",
    "shortconv.out_proj": "conv.out_proj",
}
_LAST_NORM = {"lfm2": "token_embd_norm"}


def gguf_names(model: TinyModel) -> dict[str, str]:
    """Hugging Face's name of every weight → its name in the file."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": f"{_LAST_NORM.get(model.architecture, 'output_norm')}.weight",
        "lm_head.weight": "output.weight",
    }
    norms = {"ffn_norm": "pre_feedforward_layernorm"} if model.norms_around else {}
    renamed = model.norms_around or (gated(model) or model.architecture in ("gpt-oss", "glm4moe"))
    norms |= {"post_attention_norm": "post_attention_layernorm"} if renamed else {}
    norms |= {"post_ffw_norm": "post_feedforward_layernorm"} if model.norms_around else {}
    latents = {stored: f"self_attn.{name}" for name, stored in gguf_latents(model)}
    for layer in range(model.layers):
        for source, name in (_NAMES | norms | latents).items():
            for part in ("weight", "bias"):
                names[f"model.layers.{layer}.{name}.{part}"] = f"blk.{layer}.{source}.{part}"
        for name, source in GGUF_NAMES.items():
            names[f"model.layers.{layer}.{name}"] = f"blk.{layer}.{source}"
    return {name: source for name, source in names.items() if name in model.weights}
