"""The architectures with several residual streams."""

from __future__ import annotations

from tamiz_exporters.activations import GELU_TANH
from tamiz_exporters.architecture import LAYER, NORMS_AROUND, Architecture

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
    score_scale=1.0,
)
