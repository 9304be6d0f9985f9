"""The architecture of Apertus, whose layers have trained the numbers of their activation."""

from __future__ import annotations

from tamiz_exporters.activations import XIELU
from tamiz_exporters.architecture import UNGATED, Architecture

#: By `general.architecture`.
APERTUS = {
    "apertus": Architecture(
        "ApertusForCausalLM",
        "apertus",
        UNGATED,
        {
            "input_layernorm": "attention_layernorm",
            "post_attention_layernorm": "feedforward_layernorm",
        },
        activation=XIELU,
        trained_activation=True,
        renamed={XIELU: XIELU},
        rope_base=12e6,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
}
