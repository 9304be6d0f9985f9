"""What the files of tiny models with inputs of single layers share: Gemma 3n and Gemma 4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.tiny_safetensors import write_file

#: Names in transformers → in GGUF: weights of no layer, those of a layer, and those of its input.
WHOLE = {
    "embed_tokens": "token_embd",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
    "norm": "output_norm",
}
LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
INPUT = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}


def write_text_model(
    folder: Path,
    weights: Mapping[str, np.ndarray],
    fields: Mapping[str, Any],
    kind: Type,
    whole: Mapping[str, Any] | None,
) -> Path:
    """Writes a folder of Hugging Face.

    Args:
        folder: Made where it is not there.
        weights: Without what begins their names.
        fields: The configuration of the text model.
        kind: Of matrices.
        whole: Other fields, where the text model lies beside what reads pictures and sound.
    """
    folder.mkdir(exist_ok=True)
    prefix = "model." if whole is None else "model.language_model."
    found = {f"{prefix}{name}": value for name, value in weights.items()}
    if whole is not None:
        fields = {**whole, "text_config": fields}
        for tower in ("vision_tower.stem", "audio_tower.first", "embed_vision.norm"):
            found[f"model.{tower}.weight"] = np.ones((2, 32), np.float32)
    (folder / "config.json").write_text(json.dumps(fields, indent=2))
    write_file(folder / "model.safetensors", found, kind)
    return folder
