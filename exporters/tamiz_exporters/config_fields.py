"""What becomes of each field of a ``config.json`` of Hugging Face, and of its rotary embedding."""

from __future__ import annotations

from tamiz_exporters.alibi_fields import ALIBI_FIELDS
from tamiz_exporters.gemma_config_fields import GEMMA_4, GEMMA_FIELDS, LAYER_INPUTS, STREAMS
from tamiz_exporters.hunyuan_config_fields import HUNYUAN, HUNYUAN_FIELDS, HUNYUAN_MOE
from tamiz_exporters.idle_config_fields import WITHOUT_EFFECT
from tamiz_exporters.lfm2_config_fields import LFM2, LFM2_FIELDS
from tamiz_exporters.llama4_config_fields import LLAMA_4, LLAMA_4_FIELDS
from tamiz_exporters.mamba_config_fields import (
    FALCON_H1,
    GRANITE_HYBRID,
    JAMBA,
    MAMBA_FIELDS,
    NEMOTRON_H,
)
from tamiz_exporters.position_config_fields import POSITION_FIELDS
from tamiz_exporters.smallthinker_config_fields import SMALLTHINKER, SMALLTHINKER_FIELDS
from tamiz_exporters.source_fields import (
    Field,
    Treatment,
    no_effect,
    obeyed,
    obeyed_by,
    refused,
    required,
)

_ROTARY = "see the table of rotary embeddings"
_WINDOWED = (
    "exaone4",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen3",
    "qwen2_moe",
    "qwen3_moe",
    "phi3",
    "smollm3",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gemma4_text",
    "gpt_oss",
    "olmo3",
    "cohere2",
    "starcoder2",
    *("afmoe", "dots1", "ministral3", *SMALLTHINKER),
)
_BY_KIND = (
    *LAYER_INPUTS,
    "exaone4",
    *(
        "qwen2",
        "qwen3",
        "qwen2_moe",
        "smollm3",
        "gemma2",
        "gemma3_text",
        "gpt_oss",
        "olmo3",
        "cohere2",
    ),
    *("afmoe", "dots1", *LLAMA_4),
    *("lfm2", "lfm2_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", GRANITE_HYBRID),
)
_NEOX = ("gpt_neox",)
_FALCON = ("falcon",)
_COHERE = ("cohere", "cohere2")
_CHOSEN = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "smollm3", "dots1")
_BIASED = (
    "llama",
    "arcee",
    "bitnet",
    "qwen3",
    "qwen3_moe",
    "olmoe",
    "granite",
    "granitemoe",
    "granitemoeshared",
    *("afmoe", "dots1"),
    "smollm3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3n_text",
    "gpt_oss",
    "glm4",
    "glm4_moe",
    "olmo2",
    "olmo3",
    *_COHERE,
    *_NEOX,
    "seed_oss",
    "jais2",
    "nemotron",
    *HUNYUAN,
    "apertus",
    GRANITE_HYBRID,
    FALCON_H1,
    NEMOTRON_H,
)
_GEMMA = ("gemma2", "gemma3_text")
_MINIMAX = ("minimax_m2",)
_DELTA = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
_DELTA_MIXTURES = ("qwen3_5_moe_text", "qwen3_next")

_ERNIE = ("ernie4_5_moe",)
_DEEPSEEK_3 = ("deepseek_v3", "glm4_moe_lite")
_DEEPSEEK = ("deepseek_v2", *_DEEPSEEK_3)
_LATENT = (*_DEEPSEEK, "minicpm3", "plm")
_BAILING = ("bailing_moe",)
_LIKE_DEEPSEEK = ("glm4_moe", "dots1")
_GROUPED = (*_LIKE_DEEPSEEK, *_DEEPSEEK_3, *_BAILING, NEMOTRON_H)
_ROUTED = (*_LIKE_DEEPSEEK, *_DEEPSEEK)
_ROUTED_NAMES = (*_ROUTED, NEMOTRON_H)
_COUNTED = ("afmoe", *_BAILING)
_GRANITE_EXPERTS = ("granitemoe", "granitemoeshared")
_MIXTURES = (
    *("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", *_GRANITE_EXPERTS, GRANITE_HYBRID, "gpt_oss"),
    JAMBA,
    *LLAMA_4,
    *GEMMA_4,
    *(*_DELTA_MIXTURES, *_ROUTED, "lfm2_moe", *_MINIMAX, *_COUNTED, *HUNYUAN_MOE),
    *SMALLTHINKER,
)


_GRANITE = ("granite", *_GRANITE_EXPERTS, GRANITE_HYBRID)


def _multiplier(note: str, *harmless: float, others: tuple[str, ...] = ()) -> Field:
    return Field(Treatment.OBEYED, note, refused("", *harmless).harmless, (*_GRANITE, *others))


def _grouped(note: str) -> Field:
    return Field(Treatment.OBEYED, note, refused("", 1).harmless, _GROUPED)


def _minicpm(note: str) -> Field:
    return Field(Treatment.OBEYED, note, only=("minicpm", "minicpm3"))


#: Fields of the model, by their names in transformers.
CONFIG_FIELDS: dict[str, Field] = {
    "model_type": obeyed(),
    "architectures": obeyed("null: by model_type"),
    "vocab_size": obeyed(),
    "hidden_size": obeyed(),
    "intermediate_size": obeyed("a list is read if all layers have the same"),
    "num_hidden_layers": obeyed(),
    "num_layers": obeyed("another name of num_hidden_layers", only=("exaone",)),
    "num_attention_heads": obeyed(),
    "num_key_value_heads": obeyed(),
    "head_dim": obeyed(),
    "rms_norm_eps": obeyed(),
    "norm_eps": obeyed(
        "another name of rms_norm_eps; of nemotron_h layer_norm_epsilon is read",
        only=(*LFM2, NEMOTRON_H, "nemotron"),
    ),
    "norm_epsilon": obeyed("ε of the norms", only=("starcoder2",)),
    **POSITION_FIELDS,
    "multi_query": obeyed("one head of keys and values", only=_FALCON),
    "num_kv_heads": obeyed("heads of keys and values, where they are more", only=_FALCON),
    "new_decoder_architecture": obeyed("num_kv_heads, and two norms", only=_FALCON),
    "num_ln_in_parallel_attn": obeyed("1: one norm with new_decoder_architecture", only=_FALCON),
    "ffn_hidden_size": obeyed("width of the feed-forward block", only=_FALCON),
    "activation": obeyed("of the feed-forward block", only=_FALCON),
    "parallel_attn": required("attention before feed-forward"),
    "alibi": refused("a bias by distance (ALiBi), rounded to bfloat16"),
    "layer_norm_eps": obeyed(
        "ε of the norms", only=(*_COHERE, *_NEOX, "jais2", "opt", "phi", "stablelm")
    ),
    "logit_scale": obeyed("factor on logits", only=_COHERE),
    "use_parallel_block": required("attention before feed-forward"),
    "use_gated_activation": required("feed-forward blocks without a gate"),
    "rotary_pct": obeyed("part of a head that rotates", only=(*_NEOX, "cohere2")),
    "rotary_emb_base": obeyed("another name of rope_theta", only=_NEOX),
    "attention_out_bias": refused("a bias of the output of attention"),
    "use_parallel_residual": obeyed("attention and feed-forward side by side", only=_NEOX),
    "qk_layernorm": refused("norms of queries and keys"),
    "full_attention_interval": obeyed(
        "of so many layers the last attends, where layer_types does not say it", only=_DELTA
    ),
    "linear_num_key_heads": obeyed("of a gated delta net", only=_DELTA),
    "linear_num_value_heads": obeyed("of a gated delta net", only=_DELTA),
    "linear_key_head_dim": obeyed("of a gated delta net", only=_DELTA),
    "linear_value_head_dim": obeyed("of a gated delta net", only=_DELTA),
    "linear_conv_kernel_dim": obeyed("tokens that a convolution mixes", only=_DELTA),
    "attn_output_gate": required("a gate on the output of attention"),
    **no_effect("the state of a gated delta net is float32", "mamba_ssm_dtype"),
    **no_effect(
        "layers that predict tokens further ahead are left out",
        "mtp_num_hidden_layers",
        "mtp_transformer_layers",
        "num_mtp_modules",
        "use_mtp",
        "mtp_use_dedicated_embeddings",
    ),
    "hidden_act": obeyed("gelu of gemma is GELU by tanh, as transformers reads its first files"),
    "hidden_activation": obeyed("before hidden_act"),
    "max_position_embeddings": obeyed("limit of a sequence; YaRN stretches it"),
    "rope_theta": obeyed(),
    "rope_scaling": obeyed(_ROTARY),
    "rope_parameters": obeyed(_ROTARY),
    "rope_local_base_freq": obeyed_by(["gemma3_text", *STREAMS], "of layers with a window"),
    "partial_rotary_factor": obeyed(),
    "original_max_position_embeddings": obeyed("of Phi 3's longrope"),
    "tie_word_embeddings": obeyed(),
    "attention_bias": obeyed_by(_BIASED, "false beside a bias is refused"),
    "mlp_bias": obeyed_by(
        [
            *("llama", "arcee", "granite", "smollm3", "seed_oss", "jais2", "nemotron", FALCON_H1),
            NEMOTRON_H,
        ],
        "false beside a bias is refused",
    ),
    "sliding_window": obeyed_by(_WINDOWED, "where it is missing, 4096 but for Phi 3 and SmolLM3"),
    "use_sliding_window": obeyed_by(_CHOSEN),
    "max_window_layers": obeyed_by(_CHOSEN, "with use_sliding_window"),
    "layer_types": obeyed_by(
        _BY_KIND,
        "full_attention, sliding_attention; conv in LFM2; linear_attention in Qwen 3.5; mamba",
    ),
    "sliding_window_pattern": obeyed_by((*_GEMMA, "cohere2", "exaone4", "afmoe")),
    "_sliding_window_pattern": obeyed_by((*_GEMMA, "cohere2")),
    "no_rope_layers": obeyed_by(["smollm3", *LLAMA_4]),
    "no_rope_layer_interval": obeyed_by(["smollm3", *LLAMA_4]),
    "query_pre_attn_scalar": obeyed_by(_GEMMA),
    "attn_logit_softcapping": obeyed(only=("gemma2",)),
    "final_logit_softcapping": obeyed(only=(*_GEMMA, *LAYER_INPUTS)),
    "eos_token_id": obeyed("one of the ends"),
    "bos_token_id": obeyed("where generation_config.json is missing"),
    "pad_token_id": obeyed("where generation_config.json is missing"),
    "quantization_config": obeyed(
        "quant_method mxfp4 of gpt_oss, bitnet of the others", only=("gpt_oss", "bitnet", "llama")
    ),
    "compression_config": refused("quantised weights of another library"),
    "use_bidirectional_attention": obeyed(
        "in embedders; vision: between parts of a picture, which text has none of",
        only=["gemma3_text", *GEMMA_4],
    ),
    "is_encoder_decoder": refused("an encoder beside the decoder"),
    "add_cross_attention": refused("an encoder beside the decoder"),
    "pruned_heads": refused("layers that lack heads"),
    "use_mrope": refused("positions in several dimensions"),
    "use_qk_norm": obeyed(
        "another value than what the file has is refused",
        only=(*_ROUTED, *_MINIMAX, *_BAILING, *HUNYUAN, *LLAMA_4, "qwen3", "qwen3_moe"),
    ),
    "embedding_multiplier": _multiplier("factor on the embedding", 1.0, others=(FALCON_H1,)),
    "residual_multiplier": _multiplier("factor on what layers add", 1.0),
    "attention_multiplier": _multiplier("factor on scores"),
    "logits_scaling": _multiplier("what logits are divided by", 1.0),
    "num_experts": obeyed(only=_MIXTURES, harmless=(1,)),
    "num_local_experts": obeyed("another name of num_experts", only=_MIXTURES),
    "num_experts_per_tok": obeyed(only=(*_MIXTURES, NEMOTRON_H)),
    "moe_intermediate_size": obeyed(
        only=(
            *("qwen2_moe", "qwen3_moe", *_DELTA_MIXTURES, *_ERNIE, *_ROUTED, NEMOTRON_H),
            *("lfm2_moe", *GEMMA_4, *_COUNTED, *HUNYUAN_MOE, *SMALLTHINKER),
        )
    ),
    "num_shared_experts": obeyed("each as wide as moe_intermediate_size", only=_COUNTED),
    "n_routed_experts": obeyed(only=_ROUTED_NAMES),
    "n_shared_experts": obeyed("each as wide as moe_intermediate_size", only=_ROUTED_NAMES),
    "first_k_dense_replace": obeyed(
        "layers before the first with experts", only=(*_ROUTED, *_BAILING)
    ),
    "routed_scaling_factor": obeyed(
        "factor on the weights of the chosen", only=(*_ROUTED_NAMES, "lfm2_moe", *_COUNTED)
    ),
    "n_group": _grouped("groups of experts"),
    "topk_group": _grouped("groups of which a token takes experts"),
    "topk_method": Field(
        Treatment.REFUSED,
        "groups of experts that are judged by their best one alone",
        ("greedy", "noaux_tc", None),
    ),
    "scoring_func": obeyed(
        "softmax, or sigmoid from DeepSeek-V3 on; dots1 has the latter and may call it noaux_tc",
        only=(*_DEEPSEEK, *_MINIMAX, *_COUNTED),
        harmless=("noaux_tc",),
    ),
    "num_dense_layers": obeyed("layers before the first with experts", only=("lfm2_moe", "afmoe")),
    "global_attn_every_n_layers": obeyed("another name of sliding_window_pattern", only=("afmoe",)),
    "route_scale": obeyed("another name of routed_scaling_factor", only=("afmoe",)),
    "score_func": obeyed("another name of scoring_func", only=("afmoe",)),
    "score_function": obeyed("another name of scoring_func", only=_BAILING),
    "mup_enabled": obeyed("the embedding times the root of its width", only=("afmoe",)),
    "route_norm": required("weights of the chosen that are not divided by their sum"),
    "moe_router_enable_expert_bias": required("routers without biases"),
    "use_rmsnorm": required("norms that take the mean off"),
    "norm_head": refused("a head whose rows are divided by their length"),
    "use_expert_bias": required("routers without biases"),
    "use_routing_bias": required("routers without biases"),
    "qk_norm_type": refused("other norms of queries and keys", "per_layer"),
    "rotary_dim": obeyed("elements of a head that rotate", only=_MINIMAX),
    "moe_layer_freq": refused("experts in some layers", 1),
    "mlp_layer_types": obeyed("dense or sparse, by layer", only=("glm4_moe_lite",)),
    **no_effect("training only", "aux_loss_alpha", "seq_aux", "mup_denominator", "output_dropout"),
    **no_effect("how the model is run", "ep_size", "router_dtype", "use_grouped_mm"),
    **no_effect("n_group and topk_group are read", "num_expert_groups", "num_limited_groups"),
    "kv_lora_rank": obeyed("elements of the latent of keys and values", only=_LATENT),
    "q_lora_rank": obeyed("elements of the latent of queries; null: none", only=_LATENT),
    "qk_nope_head_dim": obeyed("elements of a key that do not rotate", only=_LATENT),
    "qk_rope_head_dim": obeyed("elements of a key that rotate", only=_LATENT),
    "v_head_dim": obeyed("elements of a value", only=_LATENT),
    **no_effect("the two other sizes of a key are read", "qk_head_dim"),
    "rope_interleave": Field(Treatment.REFUSED, "rotary pairs in two halves", (True, None)),
    "scale_emb": _minicpm("factor on the embedding; 12 where minicpm3 does not say it"),
    "scale_depth": _minicpm(
        "of residuals, over the root of the layers; 1.4 where minicpm3 does not say it"
    ),
    "dim_model_base": _minicpm(
        "logits are divided by the width over it; 256 where minicpm3 does not say it"
    ),
    "num_nextn_predict_layers": obeyed(
        "layers that predict tokens further ahead, which are left out",
        only=(*_ROUTED_NAMES, *_BAILING, *_ERNIE),
    ),
    **no_effect("num_nextn_predict_layers is read", "num_mtp_layers"),
    "moe_num_experts": obeyed(only=_ERNIE),
    "moe_k": obeyed("experts that a token takes", only=_ERNIE),
    "moe_num_shared_experts": obeyed("each as wide as moe_intermediate_size", only=_ERNIE),
    "moe_layer_start_index": obeyed(only=_ERNIE),
    "moe_layer_end_index": obeyed("-1: the last layer", only=_ERNIE),
    "moe_layer_interval": obeyed("of so many layers the last has experts", only=_ERNIE),
    "moe_gate": refused("other routers", "topk"),
    **no_effect("the bias that routers have is read", "moe_use_aux_free"),
    **no_effect("training only", "moe_capacity"),
    "moe_norm_min": refused("a least sum of weights that could be reached", 1e-12, 1e-9, 1e-6),
    "use_bias": obeyed_by(
        ["ernie4_5", "ernie4_5_moe", "starcoder2", *_BAILING], "false beside a bias is refused"
    ),
    "shared_expert_intermediate_size": obeyed(only=("qwen2_moe", *_DELTA_MIXTURES)),
    "norm_topk_prob": obeyed(
        "true where it is missing for qwen3_next, glm4_moe, Hunyuan and from DeepSeek-V3 on",
        only=(
            *("qwen2_moe", "qwen3_moe", "olmoe", "qwen3_next", "lfm2_moe", *_GROUPED),
            *(*SMALLTHINKER, *HUNYUAN_MOE),
        ),
    ),
    "mlp_only_layers": obeyed(only=("qwen2_moe", "qwen3_moe", "qwen3_next")),
    "decoder_sparse_step": obeyed(only=("qwen2_moe", "qwen3_moe", "qwen3_next")),
    "swiglu_limit": refused("another clamp than that of gpt-oss", 7.0),
    "swiglu_alpha": refused("another activation than that of gpt-oss", 1.702),
    **no_effect("num_experts_per_tok is read", "experts_per_token"),
    **no_effect("rope_scaling has it", "initial_context_length"),
    "use_qkv_bias": obeyed_by(["stablelm", *_BAILING], "the biases that the file has are added"),
    "qkv_bias": obeyed_by(["qwen2_moe", "internlm3"], "the biases that the file has are added"),
    "bias": obeyed_by(
        ["internlm2", "internlm3", *_FALCON], "the biases that the file has are added"
    ),
    "sparse_config": refused("attention to blocks of keys"),
    "clip_qkv": refused("clamped q, k and v"),
    **no_effect(
        "of the parts that read pictures, which are left out",
        "vision_config",
        "image_token_id",
        "video_token_id",
        "vision_start_token_id",
        "vision_end_token_id",
        "vision_token_id",
        "image_start_token_id",
        "image_end_token_id",
        "is_composition",
    ),
    **WITHOUT_EFFECT,
    **GEMMA_FIELDS,
    **ALIBI_FIELDS,
    **HUNYUAN_FIELDS,
    **LFM2_FIELDS,
    **LLAMA_4_FIELDS,
    **MAMBA_FIELDS,
    **SMALLTHINKER_FIELDS,
}
