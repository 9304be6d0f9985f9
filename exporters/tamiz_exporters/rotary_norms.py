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

from tamiz_exporters.decoder_config import Mixer, attention_of
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


def weighted(of: GraphBuilder, name: str, queries: ir.Value) -> ir.Value:
    """Rotated queries times their weight, where the attention `name` has one."""
    weight = of.initializers.get(f"{name[1:].replace('/', '.')}.{_WEIGHT}")
    return queries if weight is None else of.op("Mul", f"{name}/{_WEIGHT}/Mul", queries, weight)


def check_rotations(
    layers: tuple[Mixer, ...], key: str, reject: Callable[[str, Any, str], NoReturn]
) -> None:
    """Refuses rotations that change the length of a head.

    Args:
        layers: How they mix tokens.
        key: What the source calls a factor on cosine and sine.
        reject: Raises the error about a key, what is found and what is expected.

    Raises:
        TamizError: There is one.
    """
    for attention in map(attention_of, layers):
        rotary = None if attention is None else attention.rotary
        if rotary is not None and rotary.factor != 1:
            found = f"a factor of {rotary.factor:g} on cosine and sine"
            reject(key, found, "none, as norms of queries and keys stand behind the rotation")


def _numbers(value: ir.Value) -> np.ndarray:
    assert value.const_value is not None
    return value.const_value.numpy()
