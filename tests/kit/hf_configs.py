"""Settings of small transformers models with random weights."""

from __future__ import annotations

from typing import Any

#: What every model has, unless a test says otherwise.
SHAPE: dict[str, Any] = {
    "vocab_size": 250,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
#: Positions beyond 64, stretched.
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
