"""Mixtures of experts beside those in `architectures`."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import LAYER, NORMS_AROUND, QKV, Architecture
from tamiz_exporters.expert_weights import DOWN, GATE, UP
from tamiz_exporters.mixture_traits import (
    DEEPSEEK_3,
    GLM_EXPERTS,
    GRANITE_NAMES,
    MIXTRAL,
    MixtureTraits,
)

_SHARED_IN, _SHARED_OUT = "shared_mlp.input_linear", "shared_mlp.output_linear"
_BAILING_FUSED = {"attention.query_key_value": QKV}

_GRANITE = Architecture(
    "GraniteMoeForCausalLM",
    "granitemoe",
    pairs=True,
    mixture=replace(MIXTRAL, names=GRANITE_NAMES, score="softmax_of_chosen", normalize=False),
    multiplied=True,
)

#: By `general.architecture`.
MIXTURES = {
    "afmoe": Architecture(
        "AfmoeForCausalLM",
        "afmoe",
        LAYER | NORMS_AROUND | {"self_attn.output_gate": "attn_gate"},
        {
            "self_attn.output_gate": "self_attn.gate_proj",
            "pre_feedforward_layernorm": "pre_mlp_layernorm",
            "post_feedforward_layernorm": "post_mlp_layernorm",
        },
        own_keys={
            "sliding_window_pattern": "global_attn_every_n_layers",
            "routed_scaling_factor": "route_scale",
            "scoring_func": "score_func",
        },
        scales_embedding=True,
        scale_key="mup_enabled",
        global_every=4,
        window=1024,
        turns_in_windows=True,
        mixture=MixtureTraits(
            replace(GLM_EXPERTS, router="mlp.router.gate", bias="mlp.expert_bias"),
            score="sigmoid",
            normalize=False,
            normalized=True,
            shared_key="num_shared_experts",
            shared_counts=True,
            gguf_counts=True,
            routed=True,
            span_keys=("num_dense_layers", "", ""),
        ),
    ),
    "bailingmoe2": Architecture(
        "BailingMoeV2ForCausalLM",
        "bailing_moe",
        own_names={
            "self_attn.o_proj": "attention.dense",
            "self_attn.q_norm": "attention.query_layernorm",
            "self_attn.k_norm": "attention.key_layernorm",
        },
        hf_fused=_BAILING_FUSED,
        gguf_fused={"attn_qkv": QKV},
        embedding="word_embeddings",
        own_keys={"scoring_func": "score_function"},
        class_decides=True,
        rotated=0.5,
        mixture=replace(
            DEEPSEEK_3,
            names=replace(GLM_EXPERTS, bias="mlp.gate.expert_bias"),
            count_key="num_experts",
            shared_key="num_shared_experts",
            first=0,
            scale=1.0,
            groups=(1, 1),
        ),
    ),
    "dots1": Architecture(
        "Dots1ForCausalLM",
        "dots1",
        mixture=replace(DEEPSEEK_3, normalized=False, first=0, scale=1.0, groups=(1, 1)),
        defaults={"use_sliding_window": True},
    ),
    "granitemoe": _GRANITE,
}

#: By `general.architecture`, where every token takes an expert, too.
WITH_SHARED = {
    "granitemoe": replace(
        _GRANITE,
        model_class="GraniteMoeSharedForCausalLM",
        model_type="granitemoeshared",
        mixture=replace(
            MIXTRAL,
            names=replace(
                GRANITE_NAMES, shared={GATE: _SHARED_IN, UP: _SHARED_IN, DOWN: _SHARED_OUT}
            ),
            score="softmax_of_chosen",
            normalize=False,
            shared_key="shared_intermediate_size",
        ),
    ),
}
