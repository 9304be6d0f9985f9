"""What ``config.json`` of Hugging Face says of a decoder that a GGUF file holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamiz_exporters.activations import STATED
from tamiz_exporters.architectures import SOFT_CAPS
from tamiz_exporters.decoder_config import LayerAttention
from tamiz_exporters.delta_fields import hf_delta_fields
from tamiz_exporters.expert_fields import gguf_step
from tamiz_exporters.gemma_fields import hf_gemma_fields
from tamiz_exporters.latent_fields import hf_depth_fields, hf_latent_fields
from tamiz_exporters.mamba_fields import hf_mamba_fields
from tamiz_exporters.mixture_traits import ROUTER_KEYS
from tamiz_exporters.stream_fields import hf_stream_fields

if TYPE_CHECKING:
    from tamiz_exporters.gguf_model import GgufModel


def hf_config(model: GgufModel) -> dict[str, Any]:
    """Returns what ``config.json`` holds, in Hugging Face's terms.

    Args:
        model: The decoder.

    Returns:
        The fields. Frequencies scaled by ``rope_freqs.weight`` (llama 3) are in the graph, not in
        here.
    """
    config = model.config
    out: dict[str, Any] = {
        "architectures": [model.traits.model_class],
        "model_type": model.traits.model_type,
        "attention_bias": "blk.0.attn_q.bias" in model.file.tensors,
        "attention_dropout": 0.0,
        "head_dim": config.head_dim,
        model.traits.activation_key: STATED.get(config.activation, config.activation),
        "hidden_size": model.hidden,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn[0],
        model.traits.ffn_key: model.ffn[0],
        "max_position_embeddings": model.context,
        "mlp_bias": "blk.0.ffn_up.bias" in model.file.tensors,
        "num_attention_heads": config.heads,
        "num_hidden_layers": len(config.layers),
        "num_key_value_heads": config.kv_heads,
        model.traits.epsilon_key: config.epsilon,
        "rope_scaling": model.rope.scaling,
        "rope_theta": model.rope.base,
        "tie_word_embeddings": "output.weight" not in model.file.tensors,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": model.vocabulary,
    }
    out |= _experts(model) | _multipliers(model)
    if model.traits.logit_scale:
        out["logit_scale"] = 1 / config.logit_divisor
    out |= _gemma(model)
    if model.traits.unit_heads:
        out["use_qk_norm"] = config.unit_heads
    if config.latent is not None:
        out |= hf_latent_fields(config.latent, config.heads)
    elif model.rope.dimensions != config.head_dim and not model.traits.wide_heads:
        out["partial_rotary_factor"] = model.rope.dimensions / config.head_dim
    if model.traits.soft_caps or config.logit_cap:
        caps = config.score_cap or None, config.logit_cap or None
        out |= dict(zip(SOFT_CAPS, caps, strict=True))
        out["query_pre_attn_scalar"] = round(config.scale**-2 if config.scale else config.head_dim)
    if window := max((layer.window for layer in config.attentions), default=0):
        out["sliding_window"] = window
        out["layer_types"] = [
            "sliding_attention" if layer.window else "full_attention" for layer in config.attentions
        ]
    out |= (
        _convolutions(model)
        | hf_delta_fields(config.layers)
        | hf_mamba_fields(config, model.traits.mamba, model.hidden)
    )
    return out | {own: out[key] for key, own in model.traits.own_keys.items() if key in out}


def _gemma(model: GgufModel) -> dict[str, Any]:
    config = model.config
    if not config.normed_values:
        return {}
    table = model.file.tensors.get("per_layer_token_embd.weight")
    rows = model.vocabulary if table is None else table.shape[0]
    streams = {} if config.streams is None else hf_stream_fields(config.streams)
    return streams | hf_gemma_fields(config, model.ffn, rows)


def _convolutions(model: GgufModel) -> dict[str, Any]:
    if not model.traits.convolves:
        return {}
    attends = [isinstance(layer, LayerAttention) for layer in model.config.layers]
    return {
        "layer_types": ["full_attention" if each else "conv" for each in attends],
        "conv_L_cache": model.taps(),
        "conv_bias": False,
        "block_auto_adjust_ff_dim": False,
    }


def _experts(model: GgufModel) -> dict[str, Any]:
    traits, experts = model.traits.mixture, model.config.experts
    if traits is None or experts is None:
        return {}
    out: dict[str, Any] = {traits.count_key: experts.count, traits.top_key: experts.top}
    out[traits.width_key] = experts.width
    if traits.normalize_key:
        out[traits.normalize_key] = experts.normalize
    if experts.shared_width:
        each = experts.width if traits.shared_counts else 1
        out[traits.shared_key] = experts.shared_width // each
    if traits.span_keys is not None:
        first, last, every = traits.span_keys
        step = gguf_step(model.of, traits)
        out |= {first: min(experts.layers), last: max(experts.layers), every: step}
        out.pop("", None)
    if traits.routed:
        values = experts.scale, experts.groups, experts.top_groups
        out |= zip(ROUTER_KEYS, values, strict=True)
    return out


def _multipliers(model: GgufModel) -> dict[str, Any]:
    config = model.config
    if model.traits.depth_scaled:
        return hf_depth_fields(config, model.hidden)
    if not model.traits.multiplied:
        return {model.traits.scale_key: True} if model.traits.scale_key else {}
    return {
        "embedding_multiplier": config.embedding_scale,
        "attention_multiplier": config.scale or config.head_dim**-0.5,
        "residual_multiplier": config.residual_scale,
        "logits_scaling": config.logit_divisor,
    }
