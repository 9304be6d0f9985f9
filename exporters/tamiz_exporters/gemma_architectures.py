"""The architectures with inputs of single layers: Gemma 3n and Gemma 4."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.activations import GELU_TANH
from tamiz_exporters.architecture import LAYER, NORMS_AROUND, Architecture
from tamiz_exporters.mixture_traits import GEMMA_4_MIXTURE

GEMMA_3N = Architecture(
    "Gemma3nForCausalLM",
    "gemma3n_text",
    LAYER | NORMS_AROUND,
    activation=GELU_TANH,
    scales_embedding=True,
    global_every=5,
    rope_base=1e6,
    local_rope_base=10000.0,
    local_unscaled=True,
    window=512,
    soft_caps=(0.0, 30.0),
    streams=True,
    normed_values=True,
    score_scale=1.0,
)
GEMMA_4 = Architecture(
    "Gemma4ForCausalLM",
    "gemma4_text",
    LAYER | NORMS_AROUND | {"layer_scalar": "layer_output_scale"},
    activation=GELU_TANH,
    scales_embedding=True,
    global_every=6,
    rope_base=1e6,
    local_rope_base=10000.0,
    local_unscaled=True,
    window=512,
    normed_values=True,
    wide_heads=True,
    score_scale=1.0,
)
GEMMA_4_MOE = replace(
    GEMMA_4,
    names=GEMMA_4.names
    | {
        "post_feedforward_layernorm_1": "post_ffw_norm_1",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
        "post_feedforward_layernorm_2": "post_ffw_norm_2",
    },
    mixture=GEMMA_4_MIXTURE,
)
