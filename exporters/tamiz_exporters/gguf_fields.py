"""What becomes of each key of a GGUF file. Keys of the architecture stand without it."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, Treatment, no_effect, obeyed, obeyed_by, refused

_EXPERTS = "a mixture of experts"
_OTHER_LAYERS = "layers of a kind that tamiz lacks"
_ENCODER = "not part of a decoder"
_PER_LAYER = "a list is read if all layers have the same"
_STREAMS = ("gemma3n",)
_GEMMA_4 = ("gemma4",)
_LAYER_INPUTS = (*_STREAMS, *_GEMMA_4)
_WINDOWED = (
    *("llama", "phi3", "gemma2", "gemma3", *_LAYER_INPUTS, "gpt-oss", "olmo2", "cohere2"),
    *("exaone4", "afmoe", "smallthinker"),
)
_ERNIE = ("ernie4_5-moe",)
_DELTA = ("qwen35", "qwen35moe", "qwen3next")
_NEMOTRON_EXPERTS = ("nemotron_h_moe",)
_FIRST_MAMBA = ("mamba", "jamba")
_MAMBA = ("granitehybrid", "falcon-h1", "nemotron_h", "mamba2", *_NEMOTRON_EXPERTS)
_GROUPED = (*_DELTA, *_MAMBA)
_RECURRENT_KINDS = (*_GROUPED, *_FIRST_MAMBA)
_DELTA_MIXTURES = ("qwen35moe", "qwen3next")
_ROUTED = ("glm4moe", "deepseek2", "dots1", "bailingmoe2")
_ROUTED_NAMES = (
    *(*_ROUTED, *_NEMOTRON_EXPERTS, "lfm2moe", "minimax-m2", "afmoe"),
    "smallthinker",
)
_HUNYUAN = ("hunyuan-moe",)
_QWEN_3_VL = ("qwen3vl", "qwen3vlmoe")
_LATENT = ("deepseek2", "minicpm3", "plm")
_MIXTURES = (
    *("llama", "qwen2moe", "qwen3moe", "qwen3vlmoe", "olmoe", "granitemoe", "granitehybrid"),
    "gpt-oss",
    *("jamba", "llama4"),
    *(*_DELTA_MIXTURES, *_ERNIE, *_ROUTED_NAMES, *_GEMMA_4, *_HUNYUAN),
)
_GRANITE_EXPERTS = ("granitemoe", "granitehybrid")
_GRANITE = ("granite", *_GRANITE_EXPERTS)
_MULTIPLIED = (*_GRANITE, "minicpm")
_GEMMA = ("gemma2", "gemma3")
_PATTERNED = (*_GEMMA, *_LAYER_INPUTS, "olmo2", "exaone4")
#: With norms that take the mean off.
_MEANS = (
    *(
        "bloom",
        "mpt",
        "command-r",
        "cohere2",
        "falcon",
        "gpt2",
        "gptneox",
        "jais2",
        "nemotron",
        "orion",
    ),
    *("phi2", "stablelm", "starcoder2"),
)
_SAMPLING = ("sequence", "temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n")


def _multiplier(note: str) -> Field:
    return Field(Treatment.OBEYED, note, (*refused("", 1.0).harmless,), _MULTIPLIED)


def _router(note: str, *harmless: float) -> Field:
    return Field(Treatment.OBEYED, note, refused("", *harmless).harmless, _ROUTED_NAMES)


#: Keys that begin with the architecture.
ARCHITECTURE_KEYS: dict[str, Field] = {
    "context_length": obeyed("limit of a sequence"),
    "embedding_length": obeyed(),
    "block_count": obeyed(),
    "feed_forward_length": obeyed(
        f"{_PER_LAYER}; in nemotron_h, 0 where a layer is no feed-forward block; in gemma4 by layer"
    ),
    "attention.head_count": obeyed(_PER_LAYER),
    "attention.head_count_kv": obeyed(
        f"{_PER_LAYER}; in lfm2, granitehybrid, nemotron_h and jamba, 0 where a layer does not "
        "attend; in gemma4 by layer"
    ),
    "attention.key_length": obeyed(),
    "attention.value_length": obeyed("equal to key_length, but where a latent makes both"),
    "attention.kv_lora_rank": obeyed("elements of the latent of keys and values", only=_LATENT),
    "attention.q_lora_rank": obeyed(
        "elements of the latent of queries, where there is one", only=_LATENT
    ),
    "attention.key_length_mla": obeyed(
        "of a head; attention.key_length is that of a latent then", only=("deepseek2",)
    ),
    "attention.value_length_mla": obeyed("likewise", only=("deepseek2",)),
    "attention.layer_norm_rms_epsilon": obeyed(),
    "attention.sliding_window": obeyed("llama.cpp ignores it for llama and phi3", only=_WINDOWED),
    "attention.sliding_window_pattern": obeyed("a number, or a list by layer", only=_PATTERNED),
    "attn_logit_softcapping": obeyed(only=("gemma2",)),
    "final_logit_softcapping": obeyed(only=(*_GEMMA, *_GEMMA_4)),
    "expert_count": obeyed(only=_MIXTURES),
    "expert_used_count": obeyed(only=_MIXTURES),
    "expert_feed_forward_length": obeyed(
        only=(
            *(
                "qwen2moe",
                "qwen3moe",
                "qwen3vlmoe",
                "gpt-oss",
                *_DELTA_MIXTURES,
                *_ERNIE,
                *_ROUTED_NAMES,
            ),
            *(*_GEMMA_4, *_HUNYUAN, "llama4"),
        )
    ),
    "expert_shared_feed_forward_length": obeyed(
        "of bailingmoe2 expert_shared_count is read",
        only=(
            *("qwen2moe", *_DELTA_MIXTURES, *_ERNIE, *_GRANITE_EXPERTS, *_NEMOTRON_EXPERTS),
            *("bailingmoe2", *_HUNYUAN),
        ),
    ),
    "expert_shared_count": Field(
        Treatment.OBEYED,
        "each as wide as the others; of ernie4_5-moe and hunyuan-moe "
        "expert_shared_feed_forward_length is read",
        only=(*_ERNIE, *_ROUTED_NAMES, *_HUNYUAN),
    ),
    "leading_dense_block_count": obeyed(
        "layers before the first with experts", only=(*_ERNIE, *_ROUTED, "lfm2moe", "afmoe")
    ),
    "interleave_moe_layer_step": obeyed(
        "of so many layers the last has experts",
        only=(*_ERNIE, "llama4"),
    ),
    "expert_gating_func": _router("1: softmax, 2: sigmoid, 3: softmax of the chosen", 1),
    "expert_weights_scale": _router("factor on the weights of the chosen", 1.0),
    "expert_weights_norm": _router("whether these are divided by their sum"),
    "expert_group_count": _router("groups of experts", 1),
    "expert_group_used_count": _router("groups of which a token takes experts", 1),
    "ssm.conv_kernel": obeyed("tokens that a convolution mixes", only=_RECURRENT_KINDS),
    "ssm.state_size": obeyed("length of a key head, or of B and C", only=_RECURRENT_KINDS),
    "ssm.group_count": obeyed("key heads, or groups of heads that share B and C", only=_GROUPED),
    "ssm.time_step_rank": obeyed(
        "value heads, or heads of a state space; of mamba and jamba the length of what dt is made "
        "of",
        only=_RECURRENT_KINDS,
    ),
    "ssm.inner_size": obeyed(
        "length of all of them, or channels of mamba and jamba", only=_RECURRENT_KINDS
    ),
    "ssm.dt_b_c_rms": obeyed("whether dt, B and C are normed", only=("mamba",)),
    "attention.recurrent_layers": obeyed("layers with a gated delta net", only=_DELTA),
    "full_attention_interval": obeyed(
        "of so many layers the last attends, where no list says it", only=_DELTA
    ),
    "shortconv.l_cache": obeyed("tokens that a convolution mixes", only=("lfm2", "lfm2moe")),
    "hidden_activation": obeyed("`gelu` is GELU by tanh, as in llama.cpp"),
    "rope.dimension_count": obeyed(),
    "rope.freq_base": obeyed(),
    "rope.freq_base_swa": obeyed("of layers with a window", only=_PATTERNED),
    "rope.scaling.type": obeyed("none, linear, yarn, longrope; linear where absent"),
    "rope.scaling.factor": obeyed(),
    "rope.scale_linear": obeyed("old name of rope.scaling.factor, read where that is absent"),
    "rope.scaling.attn_factor": obeyed("factor on cosine and sine"),
    "rope.scaling.original_context_length": obeyed(),
    "rope.scaling.yarn_beta_fast": obeyed("as in transformers; llama.cpp ignores it here"),
    "rope.scaling.yarn_beta_slow": obeyed("as in transformers; llama.cpp ignores it here"),
    "rope.scaling.yarn_ext_factor": refused("only the full ramp of YaRN is known", 1.0, -1.0),
    "rope.scaling.yarn_attn_factor": obeyed(
        "1, or what yarn multiplies cosine and sine by where nothing else is said"
    ),
    "rope.scaling.yarn_log_multiplier": obeyed(
        "mscale_all_dim; of deepseek2 a tenth of it, which scales scores, too",
        only=("deepseek2", "mistral3"),
    ),
    "rope.scaling.alpha": refused("NTK-aware scaling of the base"),
    "rope.dimension_sections": Field(
        Treatment.NO_EFFECT,
        "a token of text has one position in all dimensions",
        only=(*_DELTA, "qwen2vl", *_QWEN_3_VL, "glm4moe"),
    ),
    "rope.dimension_count_swa": obeyed("of layers with a window", only=_GEMMA_4),
    "rope.scaling.finetuned": obeyed_by(
        ["granitehybrid"], "whether heads rotate; of others how the model was trained"
    ),
    "attention.scale": obeyed("factor on scores", only=_GRANITE),
    "attention.output_scale": refused("a factor on attention's output"),
    "attention.max_alibi_bias": obeyed("largest exponent of slopes by distance", only=("mpt",)),
    "attention.clamp_kqv": refused("clamped q, k and v"),
    "attention.causal": Field(Treatment.REFUSED, "attention to later tokens", (True,)),
    "attention.temperature_length": refused("scores that depend on the position"),
    "attention.temperature_scale": obeyed("how queries grow with their position", ("mistral3",)),
    "attention.shared_kv_layers": obeyed(
        "the last layers, which read keys and values of others; all after the 20th where it is "
        "missing in gemma3n",
        only=_LAYER_INPUTS,
    ),
    "attention.key_length_swa": obeyed("of a head in layers with a window", only=_GEMMA_4),
    "attention.value_length_swa": obeyed("equal to key_length_swa", only=_GEMMA_4),
    "attention.layer_norm_epsilon": obeyed(
        "where attention.layer_norm_rms_epsilon is missing; of others layer norms with a mean",
        only=("nemotron_h", *_NEMOTRON_EXPERTS, *_MEANS),
    ),
    "logit_scale": Field(
        Treatment.OBEYED,
        "what logits are divided by; of command-r and cohere2 what they are multiplied by",
        refused("", 1.0).harmless,
        (*_MULTIPLIED, "command-r", "cohere2"),
    ),
    "residual_scale": _multiplier("factor on what layers add"),
    "embedding_scale": _multiplier("factor on the embedding"),
    "use_parallel_residual": obeyed("attention and feed-forward side by side", ["gptneox"]),
    "nextn_predict_layers": obeyed(
        "layers that predict tokens further ahead, which are left out",
        only=(*_ROUTED_NAMES, *_DELTA),
    ),
    "embedding_length_out": refused("an output of another width"),
    "embedding_length_per_layer_input": obeyed("width of the input of a layer", only=_LAYER_INPUTS),
    "activation_sparsity_scale": obeyed(
        "by layer, how many standard deviations above their mean gates count; llama.cpp has 1.645 "
        "in the first 10 layers, and deviations of samples",
        only=_STREAMS,
    ),
    "altup.num_inputs": obeyed("residual streams", only=_STREAMS),
    "altup.active_idx": obeyed("the stream that layers run on: the first", only=_STREAMS),
    "swiglu_clamp_exp": refused("clamped SwiGLU"),
    "swiglu_clamp_shexp": refused("clamped SwiGLU"),
    "swin_norm": refused("norms of another place"),
    "rescale_every_n_layers": refused("a scale by layer"),
    "n_deepstack_layers": Field(
        Treatment.NO_EFFECT, "pictures as inputs of layers, which are left out", only=_QWEN_3_VL
    ),
    **dict.fromkeys(
        [
            "expert_chunk_feed_forward_length",
            "expert_group_scale",
            "experts_per_group",
            "moe_every_n_layers",
            "moe_latent_size",
            "router_logit_softcapping",
        ],
        refused(_EXPERTS),
    ),
    **dict.fromkeys(
        [
            "ssm.{name}",
            "wkv.{name}",
            "kda.{name}",
            "convnext.{name}",
            "posnet.{name}",
            "altup.{name}",
            "time_mix_extra_dim",
            "time_decay_extra_dim",
            "token_shift_count",
            "attention.decay_lora_rank",
            "attention.gate_lora_rank",
            "attention.iclr_lora_rank",
            "attention.value_residual_mix_lora_rank",
        ],
        refused(_OTHER_LAYERS),
    ),
    **dict.fromkeys(
        [
            "attention.indexer.{name}",
        ],
        refused("attention to keys that an indexer chooses"),
    ),
    **dict.fromkeys(
        [
            "attention.relative_buckets_count",
            "attention.group_norm_epsilon",
            "attention.group_norm_groups",
            "decoder_block_count",
            "decoder_start_token_id",
            "features_length",
            "{name}_feat_in",
            "{name}_feat_out",
        ],
        refused(_ENCODER),
    ),
    **no_effect(
        "llama.cpp's outputs of other kinds",
        "pooling_type",
        "classifier.output_labels",
    ),
    **no_effect("the weights have the number of tokens", "vocab_size"),
    **no_effect("the layout is known by the architecture", "tensor_data_layout"),
}

#: Keys that begin with ``tokenizer.``
TOKENIZER_KEYS: dict[str, Field] = {
    "ggml.model": obeyed("gpt2 (byte-level BPE), llama (SentencePiece)"),
    "ggml.pre": obeyed("see the list below; llama.cpp's default where absent"),
    "ggml.tokens": obeyed(),
    "ggml.token_type": obeyed(),
    "ggml.scores": obeyed("of SentencePiece"),
    "ggml.merges": obeyed("of byte-level BPE"),
    "ggml.bos_token_id": obeyed(),
    "ggml.eos_token_id": obeyed(),
    "ggml.eot_token_id": obeyed("an end"),
    "ggml.eom_token_id": obeyed("an end"),
    "ggml.unknown_token_id": obeyed(),
    "ggml.padding_token_id": obeyed(),
    "ggml.fim_pad_token_id": obeyed("an end"),
    "ggml.fim_rep_token_id": obeyed("an end"),
    "ggml.fim_sep_token_id": obeyed("an end"),
    "ggml.add_bos_token": obeyed(),
    "ggml.add_eos_token": obeyed("in tokenizer.json; generation does not add it"),
    "ggml.add_space_prefix": obeyed("of SentencePiece"),
    "chat_template": obeyed(),
    "ggml.normalizer.lowercase": refused("text in small letters"),
    "ggml.normalizer.strip_accents": refused("text without accents"),
    "ggml.suppress_tokens": refused("tokens that are never drawn"),
    **no_effect(
        "of tokenizers of encoders",
        "ggml.add_sep_token",
        "ggml.seperator_token_id",
        "ggml.cls_token_id",
        "ggml.mask_token_id",
        "ggml.token_type_count",
        "ggml.remove_extra_whitespaces",
        "ggml.precompiled_charsmap",
        "rwkv.world",
    ),
    **no_effect(
        "names of control tokens of infilling",
        *(
            f"ggml.{name}_token_id"
            for name in ("fim_pre", "fim_suf", "fim_mid", "prefix", "suffix", "middle")
        ),
    ),
    **no_effect("the tokenizer is made of the other keys", "huggingface.json"),
    **no_effect("templates of other names", "chat_templates", "chat_template.{name}"),
}

#: Other keys.
GENERAL_KEYS: dict[str, Field] = {
    "general.architecture": obeyed(),
    "general.name": obeyed("Phi 3's control tokens take the white space after them"),
    "general.alignment": obeyed(),
    "xielu.{name}": obeyed("trained numbers of the activation of apertus"),
    "split.no": obeyed(),
    "split.count": obeyed(),
    "split.tensors.count": obeyed(),
    **dict.fromkeys(
        (f"general.sampling.{name}" for name in _SAMPLING),
        obeyed("with --sampling model; what is missing is llama.cpp's default"),
    ),
    **dict.fromkeys(
        (f"general.sampling.{name}" for name in ("mirostat", "xtc_probability")),
        refused("--sampling model draws in another way"),
    ),
    **no_effect(
        "of mirostat and XTC",
        *(f"general.sampling.{name}" for name in ("mirostat_eta", "mirostat_tau", "xtc_threshold")),
    ),
    **no_effect("descriptions, kept in gguf_metadata.json", "general.{name}", "quantize.{name}"),
    **no_effect(
        "of other kinds of files",
        "adapter.{name}",
        "imatrix.{name}",
        "clip.{name}",
        "diffusion.{name}",
    ),
}
