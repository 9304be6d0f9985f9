"""Refuses files whose weights are others than their ``config.json`` says."""

from __future__ import annotations

from collections.abc import Container

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.hf_fields import Fields

#: Flags of biases, and a projection that has one then.
_BIASES = (
    ("attention_bias", "self_attn.q_proj"),
    ("mlp_bias", "mlp.up_proj"),
    ("use_bias", "self_attn.q_proj"),
)


def check_biases(of: Fields, traits: Architecture, tensors: Container[str], layer: str) -> None:
    """Refuses biases and norms of heads that the configuration denies: transformers ignores them.

    Args:
        of: The configuration.
        traits: The architecture.
        tensors: Names of the weights.
        layer: What begins those of the first layer.

    Raises:
        TamizError: There is one.
    """
    for key, part in _BIASES:
        if of.flag(key) is False and f"{layer}{part}.bias" in tensors:
            of.reject(key, False, f"true, as {layer}{part} has a bias")
    norm = traits.own_names.get("self_attn.q_norm", "self_attn.q_norm")
    has_norm, key = f"{layer}{norm}.weight" in tensors, "use_qk_norm"
    asked = key in of.values and not traits.unit_heads
    if asked and of.flag(key) is not has_norm:
        of.reject(key, not has_norm, f"{str(has_norm).lower()}, as {layer}self_attn")
