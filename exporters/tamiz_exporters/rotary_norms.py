"""Norms of single queries and keys behind the rotation, in terms of what stands before it.

With |x| = sqrt(mean(x²) + ε), which no rotation changes, and ∘ the product of elements:

    (w ∘ R q / |R q|) · (v ∘ R k / |R k|) = (w ∘ v ∘ R (q / |q|)) · R (k / |k|)

So q and k have a norm without a weight before the rotation R, and queries a weight behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import onnx_ir as ir

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.decoder_config import DecoderConfig, Mixer, attention_of
from tamiz_exporters.graph_builder import GraphBuilder

_WEIGHT = "query_weight"


def take_weights_behind(of: GraphBuilder, layers: int) -> None:
    """Puts a weight of queries in place of those of the norms of queries and keys."""
    for layer in range(layers):
        name = f"model.layers.{layer}.self_attn"
        norms = [f"{name}.{part}_norm.weight" for part in "qk"]
        weights = {
            norm: _numbers(of.initializers[norm]) for norm in norms if norm in of.initializers
        }
        if not weights:
            continue
        behind = f"{name}.{_WEIGHT}"
        product = np.prod(list(weights.values()), axis=0, dtype=np.float32)
        of.initialize(behind, ir.tensor(product, name=behind))
        for norm, weight in weights.items():
            of.initialize(norm, ir.tensor(np.ones_like(weight), name=norm))


def add_unit_norms(of: GraphBuilder, config: DecoderConfig) -> None:
    """Gives queries and keys that rotate norms before the rotation, with weights of ones."""
    for layer, attention in enumerate(map(attention_of, config.layers)):
        if attention is not None and attention.rotary is not None:
            ones = np.ones(config.heads_of(attention).size, np.float32)
            for part in "qk":
                name = f"model.layers.{layer}.self_attn.{part}_norm.weight"
                of.initialize(name, ir.tensor(ones, name=name))


def weighted(of: GraphBuilder, name: str, queries: ir.Value) -> ir.Value:
    """Rotated queries times their weight, where the attention `name` has one."""
    weight = of.initializers.get(f"{name[1:].replace('/', '.')}.{_WEIGHT}")
    return queries if weight is None else of.op("Mul", f"{name}/{_WEIGHT}/Mul", queries, weight)


def norms_of_heads(
    traits: Architecture,
    layers: tuple[Mixer, ...],
    unit: bool,
    key: str,
    reject: Callable[[str, Any, str], NoReturn],
) -> dict[str, Any]:
    """Which norms of single queries and keys behind the rotation a decoder has.

    Args:
        traits: The architecture.
        layers: How they mix tokens.
        unit: Whether the source denies none without weights.
        key: What the source calls a factor on cosine and sine.
        reject: Raises the error about a key, what is found and what is expected.

    Returns:
        Arguments of `DecoderConfig`.

    Raises:
        TamizError: There are such norms beside a rotation that changes the length of a head.
    """
    unit = unit and traits.unit_heads
    for attention in map(attention_of, layers) if traits.norms_behind or unit else ():
        rotary = None if attention is None else attention.rotary
        if rotary is not None and rotary.factor != 1:
            found = f"a factor of {rotary.factor:g} on cosine and sine"
            reject(key, found, "none, as norms of queries and keys stand behind the rotation")
    return {"unit_heads": unit, "norms_behind": traits.norms_behind}


def _numbers(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()
