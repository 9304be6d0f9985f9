"""The architectures that are read from GGUF and safetensors, and what tells them apart."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.activations import CLAMPED, GELU_TANH, RELU2, SILU
from tamiz_exporters.alibi_architectures import WITH_ALIBI
from tamiz_exporters.apertus_architectures import APERTUS
from tamiz_exporters.architecture import LAYER, NORMS_AROUND, QKV, UNGATED, Architecture
from tamiz_exporters.delta_net_weights import QWEN3_NEXT, QWEN35
from tamiz_exporters.dense_architectures import DENSE, GATE_UP, HF_DENSE, OLMO_3
from tamiz_exporters.gemma_architectures import GEMMA_3N, GEMMA_4, GEMMA_4_MOE
from tamiz_exporters.hunyuan_architectures import HUNYUAN
from tamiz_exporters.hybrid_architectures import (
    HF_HYBRIDS,
    HYBRIDS,
    HYBRIDS_WITH_EXPERTS,
    WITH_NORMED_STATES,
)
from tamiz_exporters.llama4_architectures import LLAMA_4
from tamiz_exporters.mean_norm_architectures import WITH_MEANS
from tamiz_exporters.mixture_architectures import MIXTURES, WITH_SHARED
from tamiz_exporters.mixture_traits import (
    DEEPSEEK,
    DEEPSEEK_3,
    ERNIE_EXPERTS,
    GLM_EXPERTS,
    GPT_OSS_NAMES,
    LFM2_MIXTURE,
    MINIMAX,
    MIXTRAL,
    QWEN3_NEXT_MIXTURE,
    QWEN35_MIXTURE,
    QWEN_EXPERTS,
    QWEN_EXPERTS_SHARED,
    MixtureTraits,
)
from tamiz_exporters.picture_architectures import with_pictures
from tamiz_exporters.position_architectures import GPT_2, OPT
from tamiz_exporters.smallthinker_architectures import SMALLTHINKER

#: Of BitNet, with a norm before the last product of each block.
_SUB_NORMS = {"self_attn.attn_sub_norm": "attn_sub_norm", "mlp.ffn_sub_norm": "ffn_sub_norm"}
#: Of LFM2, whose layers attend or convolve.
_LFM2 = LAYER | {"conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj"}
#: Of keys and values that are made of a latent; `latent_weights` knows the names of the others.
_LATENT = {
    name: stored
    for name, stored in LAYER.items()
    if name == "self_attn.o_proj" or not name.startswith("self_attn.")
}
_LFM2_IN_TRANSFORMERS = {
    "self_attn.o_proj": "self_attn.out_proj",
    "self_attn.q_norm": "self_attn.q_layernorm",
    "self_attn.k_norm": "self_attn.k_layernorm",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "operator_norm",
    "post_attention_layernorm": "ffn_norm",
}
#: Of Qwen 3.5, where the projection of q has a gate on the output, too.
_GATED = LAYER | {
    "self_attn.output_gate": "attn_q",
    "post_attention_layernorm": "post_attention_norm",
}
_GATED_IN_TRANSFORMERS = {"self_attn.output_gate": "self_attn.q_proj"}

#: What sources call the soft caps.
SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")

_BITNET_2B = Architecture(
    "BitNetForCausalLM", "bitnet", LAYER | _SUB_NORMS, activation=RELU2, rope_base=500000.0
)
_QWEN35 = Architecture(
    "Qwen3_5ForCausalLM",
    "qwen3_5_text",
    _GATED,
    _GATED_IN_TRANSFORMERS,
    delta=QWEN35,
    gated_heads=True,
    norms_from_one=True,
    rotated=0.25,
)
_QWEN35_MOE = replace(
    _QWEN35,
    model_class="Qwen3_5MoeForCausalLM",
    model_type="qwen3_5_moe_text",
    mixture=QWEN35_MIXTURE,
)

_LFM2_MOE = Architecture(
    "Lfm2MoeForCausalLM",
    "lfm2_moe",
    _LFM2,
    _LFM2_IN_TRANSFORMERS,
    ("embedding_norm", "token_embd_norm"),
    epsilon_key="norm_eps",
    convolves=True,
    rope_base=1e6,
    mixture=LFM2_MIXTURE,
)

#: By `general.architecture`.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", pairs=True, global_every=0),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "qwen2moe": Architecture(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        mixture=MixtureTraits(
            QWEN_EXPERTS_SHARED,
            normalize=False,
            shared_key="shared_expert_intermediate_size",
        ),
    ),
    "qwen3moe": Architecture(
        "Qwen3MoeForCausalLM", "qwen3_moe", mixture=MixtureTraits(QWEN_EXPERTS)
    ),
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_MOE,
    "qwen3next": replace(
        _QWEN35_MOE,
        model_class="Qwen3NextForCausalLM",
        model_type="qwen3_next",
        delta=QWEN3_NEXT,
        mixture=QWEN3_NEXT_MIXTURE,
    ),
    "olmoe": Architecture(
        "OlmoeForCausalLM",
        "olmoe",
        mixture=MixtureTraits(
            QWEN_EXPERTS,
            width_key="intermediate_size",
            gguf_width_key="feed_forward_length",
            normalize=False,
        ),
        norms_of_all_heads=True,
    ),
    "gpt-oss": Architecture(
        "GptOssForCausalLM",
        "gpt_oss",
        LAYER | {"post_attention_layernorm": "post_attention_norm"},
        activation=CLAMPED,
        global_every=2,
        rope_base=150000.0,
        window=128,
        mixture=MixtureTraits(
            GPT_OSS_NAMES,
            count_key="num_local_experts",
            width_key="intermediate_size",
            score="softmax_of_chosen",
            normalize=False,
            normalize_key="",
            turned=True,
        ),
        renamed={SILU: CLAMPED},
        sinks=True,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "truncate": False,
        },
        yarn_truncated=False,
    ),
    "granite": Architecture("GraniteForCausalLM", "granite", pairs=True, multiplied=True),
    "ernie4_5": Architecture(
        "Ernie4_5ForCausalLM", "ernie4_5", pairs=True, pairs_everywhere=True, rope_base=500000.0
    ),
    "ernie4_5-moe": Architecture(
        "Ernie4_5_MoeForCausalLM",
        "ernie4_5_moe",
        pairs=True,
        pairs_everywhere=True,
        rope_base=500000.0,
        mixture=MixtureTraits(
            ERNIE_EXPERTS,
            count_key="moe_num_experts",
            top_key="moe_k",
            normalize_key="",
            shared_key="moe_num_shared_experts",
            shared_counts=True,
            span_keys=("moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval"),
        ),
    ),
    "glm4moe": Architecture(
        "Glm4MoeForCausalLM",
        "glm4_moe",
        LAYER | {"post_attention_layernorm": "post_attention_norm"},
        rotated=0.5,
        mixture=MixtureTraits(
            GLM_EXPERTS,
            count_key="n_routed_experts",
            score="sigmoid",
            normalize=False,
            shared_key="n_shared_experts",
            shared_counts=True,
            gguf_counts=True,
            routed=True,
            normalized=True,
            span_keys=("first_k_dense_replace", "", ""),
        ),
    ),
    "deepseek2": Architecture(
        "DeepseekV2ForCausalLM",
        "deepseek_v2",
        _LATENT,
        pairs=True,
        pairs_everywhere=True,
        mixture=DEEPSEEK,
        latent=True,
        stretches_scores=True,
    ),
    "minicpm3": Architecture(
        "MiniCPM3ForCausalLM", "minicpm3", _LATENT, latent=True, depth_scaled=True
    ),
    "plm": Architecture(
        "PLMForCausalLM",
        "plm",
        {name: stored for name, stored in _LATENT.items() if name in UNGATED},
        pairs=True,
        pairs_everywhere=True,
        activation=RELU2,
        latent=True,
    ),
    "phi3": Architecture(
        "Phi3ForCausalLM",
        "phi3",
        hf_fused={"self_attn.qkv_proj": QKV, "mlp.gate_up_proj": GATE_UP},
        gguf_fused={"attn_qkv": QKV, "ffn_up": GATE_UP},
        global_every=0,
    ),
    "arcee": Architecture("ArceeForCausalLM", "arcee", UNGATED, pairs=True, activation=RELU2),
    # llama.cpp gives it SiLU, which its first models have; BitNet b1.58 2B4T has ReLU².
    "bitnet": replace(_BITNET_2B, activation="", rope_base=10000.0),
    "bitnet-b1.58": _BITNET_2B,
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", pairs=True, no_rope_every=4),
    "lfm2": replace(
        _LFM2_MOE, model_class="Lfm2ForCausalLM", model_type="lfm2", mixture=None, ffn_adjusted=True
    ),
    "lfm2moe": _LFM2_MOE,
    "minimax-m2": Architecture(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        mixture=MINIMAX,
        norms_of_all_heads=True,
        rope_base=5e6,
    ),
    "gemma": Architecture(
        "GemmaForCausalLM",
        "gemma",
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
        renamed={"gelu": GELU_TANH},  # transformers reads its first files like this
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        LAYER | NORMS_AROUND,
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
        global_every=2,
        window=4096,
        soft_caps=(50.0, 30.0),
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        LAYER | NORMS_AROUND,
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
        global_every=6,
        local_rope_base=10000.0,
        local_unscaled=True,
    ),
    "gemma3n": GEMMA_3N,
    "gemma4": GEMMA_4,
    "gpt2": GPT_2,
    "llama4": LLAMA_4,
    **HYBRIDS,
    **APERTUS,
    **WITH_ALIBI,
    **WITH_MEANS,
    **DENSE,
    **HUNYUAN,
    **MIXTURES,
    **SMALLTHINKER,
}

#: Text models of models that also read pictures are those of others.
ARCHITECTURES |= {
    "mistral3": ARCHITECTURES["llama"],
    "qwen2vl": ARCHITECTURES["qwen2"],
    "qwen3vl": ARCHITECTURES["qwen3"],
    "qwen3vlmoe": ARCHITECTURES["qwen3moe"],
}

#: By `general.architecture`, where the file has experts.
WITH_EXPERTS = {
    "llama": replace(
        ARCHITECTURES["llama"],
        model_class="MixtralForCausalLM",
        model_type="mixtral",
        mixture=MIXTRAL,
    ),
    "gemma4": GEMMA_4_MOE,
    **HYBRIDS_WITH_EXPERTS,
}

#: By `general.architecture`, where scores of experts are sigmoids.
WITH_SIGMOIDS = {
    "deepseek2": replace(
        ARCHITECTURES["deepseek2"],
        model_class="DeepseekV3ForCausalLM",
        model_type="deepseek_v3",
        mixture=DEEPSEEK_3,
    ),
}

#: By `general.architecture`, where queries grow with their position.
WITH_GROWTH = {
    "mistral3": replace(
        ARCHITECTURES["llama"], model_class="Ministral3ForCausalLM", model_type="ministral3"
    ),
}

#: By `general.architecture`, where layers have sliding windows.
WITH_WINDOWS = {"olmo2": OLMO_3}

#: By `model_type` of Hugging Face's ``config.json``. GGUF calls a mistral a llama with a window.
HF_ARCHITECTURES: dict[str, Architecture] = {
    **{each.model_type: each for each in ARCHITECTURES.values()},
    **{
        each.model_type: each for each in (WITH_WINDOWS | WITH_SHARED | WITH_NORMED_STATES).values()
    },
    "llama": replace(ARCHITECTURES["llama"], global_every=None),
    "mistral": replace(
        ARCHITECTURES["llama"],
        model_class="MistralForCausalLM",
        model_type="mistral",
        window=4096,
    ),
    **{
        ARCHITECTURES[name].model_type: replace(ARCHITECTURES[name], window=4096)
        for name in ("qwen2", "qwen3", "qwen2moe", "qwen3moe", "gemma3")
    },
    **HF_DENSE,
    **HF_HYBRIDS,
    "ministral3": WITH_GROWTH["mistral3"],
    "bitnet": _BITNET_2B,
    "mixtral": WITH_EXPERTS["llama"],
    "opt": OPT,
    "deepseek_v3": WITH_SIGMOIDS["deepseek2"],
    "glm4_moe_lite": replace(
        WITH_SIGMOIDS["deepseek2"],
        model_class="Glm4MoeLiteForCausalLM",
        model_type="glm4_moe_lite",
        mixture=replace(DEEPSEEK_3, first=1, scale=1.8, groups=(1, 1)),
    ),
    "gemma3n": replace(GEMMA_3N, model_class="Gemma3nForConditionalGeneration"),
    "gemma4": replace(GEMMA_4, model_class="Gemma4ForConditionalGeneration"),
    "qwen3_5": replace(_QWEN35, model_class="Qwen3_5ForConditionalGeneration"),
    "qwen3_5_moe": replace(_QWEN35_MOE, model_class="Qwen3_5MoeForConditionalGeneration"),
}

#: By `model_type` of a model that also reads pictures or sound, and by that of its text model.
TEXT_MODELS = with_pictures(HF_ARCHITECTURES)
HF_ARCHITECTURES |= {whole: next(iter(texts.values())) for whole, texts in TEXT_MODELS.items()}
