"""What sources say of keys and values that are made of a latent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamiz_exporters.decoder_config import DecoderConfig, Latent
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.latent_weights import GGUF_LATENTS, HF_LATENTS
from tamiz_exporters.stored_tensor import Source, find_tensor

#: What MiniCPM3 multiplies by, in ``config.json``; llama.cpp knows these alone.
MINICPM = {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 256.0}
#: ε of the norms of latents in transformers, whatever that of the other norms is.
_EPSILON = 1e-6


def gguf_latent(of: Hyperparameters, heads: int, hidden: int) -> Latent:
    """The latent of a GGUF.

    Files of DeepSeek that have the matrices of keys and values apart name the sizes of a head
    ``key_length_mla`` and ``value_length_mla``.

    Args:
        of: The hyperparameters.
        heads: Number of query heads.
        hidden: Width of the residual stream.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    rank, rope = of.positive("attention.kv_lora_rank"), of.positive("rope.dimension_count")
    apart = "_mla" if of.given("attention.key_length_mla") is not None else ""
    key = of.positive(f"attention.key_length{apart}")
    if key <= rope:
        of.reject(f"attention.key_length{apart}", key, f"more than {rope}, which rotate")
    value_dim = of.positive(f"attention.value_length{apart}", max(1, hidden // heads))
    names, query_rank = GGUF_LATENTS, 0
    if f"blk.0.{names.query_a}.weight" in of.file.tensors:
        query_rank = of.positive("attention.q_lora_rank")
    epsilon = of.number("attention.layer_norm_rms_epsilon")
    latent = Latent(rank, rope, key - rope, value_dim, query_rank, epsilon)
    query = names.query_b if query_rank else names.query
    _check(of.file, latent, heads, hidden, f"blk.0.{query}", f"blk.0.{names.latent}")
    return latent


def hf_latent(of: Fields, source: Source, heads: int, hidden: int, prefix: str) -> Latent:
    """The latent of a ``config.json``.

    Args:
        of: The fields.
        source: The weights.
        heads: Number of query heads.
        hidden: Width of the residual stream.
        prefix: What begins the names of weights.

    Raises:
        TamizError: A value is missing, absurd or not supported.
    """
    if (count := of.positive("num_key_value_heads", heads)) != heads:
        of.reject("num_key_value_heads", count, f"{heads}, as num_attention_heads")
    names, layer, query_rank = HF_LATENTS, f"{prefix}layers.0", 0
    if of.given("q_lora_rank") is not None:
        query_rank = of.positive("q_lora_rank")
    latent = Latent(
        of.positive("kv_lora_rank"),
        of.positive("qk_rope_head_dim"),
        of.positive("qk_nope_head_dim"),
        of.positive("v_head_dim", max(1, hidden // heads)),
        query_rank,
        _EPSILON,
    )
    query = names.query_b if query_rank else names.query
    _check(source, latent, heads, hidden, f"{layer}.{query}", f"{layer}.{names.latent}")
    return latent


def hf_latent_fields(latent: Latent, heads: int) -> dict[str, Any]:
    """What ``config.json`` says of a latent."""
    return {
        "num_key_value_heads": heads,
        "head_dim": latent.rope,
        "kv_lora_rank": latent.rank,
        "q_lora_rank": latent.query_rank or None,
        "qk_nope_head_dim": latent.nope,
        "qk_rope_head_dim": latent.rope,
        "v_head_dim": latent.value_dim,
    }


def depth_scales(hidden: int, layers: int, given: Mapping[str, float]) -> dict[str, float]:
    """Factors on embedding and residuals and the divisor of logits of MiniCPM.

    Args:
        hidden: Width of the residual stream.
        layers: Number of layers.
        given: The fields of `MINICPM`.
    """
    return {
        "embedding_scale": given["scale_emb"],
        "residual_scale": given["scale_depth"] / layers**0.5,
        "logit_divisor": hidden / given["dim_model_base"],
    }


def hf_depth_fields(config: DecoderConfig, hidden: int) -> dict[str, float]:
    """The fields of `MINICPM` that give a decoder's factors."""
    depth = config.residual_scale * len(config.layers) ** 0.5
    values = config.embedding_scale, depth, hidden / config.logit_divisor
    return {key: float(f"{value:.7g}") for key, value in zip(MINICPM, values, strict=True)}


def _check(source: Source, latent: Latent, heads: int, hidden: int, query: str, made: str) -> None:
    """Before anything of that size is made: a damaged size must not cost memory."""
    rows = heads * (latent.nope + latent.rope)
    find_tensor(source, f"{query}.weight", (rows, latent.query_rank or hidden))
    find_tensor(source, f"{made}.weight", (latent.cached, hidden))
