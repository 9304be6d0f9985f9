"""The architecture of Llama 4, whose router scales what the chosen experts read."""

from __future__ import annotations

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.expert_weights import DOWN, GATE, UP, ExpertNames
from tamiz_exporters.mixture_traits import MixtureTraits

_PARTS = (GATE, UP, DOWN)

LLAMA_4 = Architecture(
    "Llama4ForCausalLM",
    "llama4_text",
    own_names={f"mlp.{part}": f"feed_forward.{part}" for part in _PARTS},
    ffn_key="intermediate_size_mlp",
    pairs=True,
    pairs_everywhere=True,
    rope_base=500000.0,
    no_rope_every=4,
    chunked=True,
    unit_heads=True,
    mixture=MixtureTraits(
        ExpertNames(
            "feed_forward.router",
            {
                **dict.fromkeys((GATE, UP), "feed_forward.experts.gate_up_proj"),
                DOWN: "feed_forward.experts.down_proj",
            },
            {part: f"feed_forward.shared_expert.{part}" for part in _PARTS},
        ),
        count_key="num_local_experts",
        width_key="intermediate_size",
        score="sigmoid",
        normalize=False,
        normalize_key="",
        shared_key="intermediate_size",
        shared_alike=True,
        turned=True,
        span_keys=("", "", "interleave_moe_layer_step"),
        first=0,
        listed_key="moe_layers",
        scales_input=True,
    ),
)

#: A GGUF of so many experts has no norms of queries and keys, as llama.cpp reads it.
WITHOUT_NORMS = 128
