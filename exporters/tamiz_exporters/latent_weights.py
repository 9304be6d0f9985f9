"""The weights of multi-head latent attention in a source, see `latent_graph`.

Sources store the matrix of all heads' keys and values as one, whose rows are by head ``[nope, R]``
and ``[value size, R]``, or apart, the keys' turned: ``[heads, R, nope]``. The graph needs them
turned. Turned blocks would be others, so the keys' part of a quantised matrix becomes float16.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tamiz_exporters.decoder_config import Latent
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.stored_tensor import (
    AnyTensor,
    Source,
    StackedTensor,
    StoredTensor,
    TurnedKeys,
    find_tensor,
)
from tamiz_ops.formats import TILE


@dataclass(frozen=True)
class LatentNames:
    """How a source names the weights, within a layer.

    Attributes:
        query: The queries' matrix.
        query_a: What makes the queries' latent.
        query_norm: Its norm.
        query_b: What makes queries of it.
        latent: What makes the latent, and after it the key that rotates.
        latent_norm: Its norm.
        both: What makes keys and values of it.
        keys: What makes keys of it, turned; empty: `both` alone is known.
        values: What makes values of it.
    """

    query: str
    query_a: str
    query_norm: str
    query_b: str
    latent: str
    latent_norm: str
    both: str
    keys: str = ""
    values: str = ""


HF_LATENTS = LatentNames(
    "self_attn.q_proj",
    "self_attn.q_a_proj",
    "self_attn.q_a_layernorm",
    "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa",
    "self_attn.kv_a_layernorm",
    "self_attn.kv_b_proj",
)
GGUF_LATENTS = LatentNames(
    "attn_q",
    "attn_q_a",
    "attn_q_a_norm",
    "attn_q_b",
    "attn_kv_a_mqa",
    "attn_kv_a_norm",
    "attn_kv_b",
    "attn_k_b",
    "attn_v_b",
)


def latent_weights(
    source: Source,
    names: LatentNames,
    latent: Latent,
    heads: int,
    hidden: int,
    layer: str,
    target: str,
    pairs: bool,
) -> Iterator[Weight]:
    """Yields the weights of one layer, but that of its output.

    Args:
        source: The checked source.
        names: How it names them.
        latent: The sizes.
        heads: Number of query heads.
        hidden: H, width of the residual stream.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.
        pairs: Whether rows that rotate lie as rotary pairs side by side.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    rank, rope, nope = latent.rank, latent.rope, latent.nope

    def find(name: str, *shape: int) -> StoredTensor:
        return find_tensor(source, f"{layer}.{name}.weight", shape)

    name, width = "q_proj", hidden
    if latent.query_rank:
        name, width = "q_b_proj", latent.query_rank
        yield Weight(f"{target}.q_a_proj.weight", find(names.query_a, width, hidden))
        yield Weight(f"{target}.q_a_layernorm.weight", find(names.query_norm, width))
    stored = names.query_b if latent.query_rank else names.query
    queries = find(stored, heads * (nope + rope), width)
    order = np.arange(rope)
    order = order.reshape(-1, 2).T.ravel() if pairs else order
    first = np.arange(heads)[:, None] * (nope + rope)
    rows = np.concatenate([(first + nope + order).ravel(), (first + np.arange(nope)).ravel()])
    yield Weight(f"{target}.{name}.weight", queries, rows)
    made = find(names.latent, rank + rope, hidden)
    yield Weight(f"{target}.kv_a_proj.weight", made, np.arange(rank))
    yield Weight(f"{target}.k_rope_proj.weight", made, rank + order)
    yield Weight(f"{target}.kv_a_layernorm.weight", find(names.latent_norm, rank))
    yield from _of_heads(source, names, latent, heads, layer, target)


def _of_heads(
    source: Source, names: LatentNames, latent: Latent, heads: int, layer: str, target: str
) -> Iterator[Weight]:
    """What makes keys and values of latents."""
    rank, nope, value_dim = latent.rank, latent.nope, latent.value_dim
    keys: AnyTensor
    if names.keys and f"{layer}.{names.keys}.weight" in source.tensors:
        split = find_tensor(source, f"{layer}.{names.keys}.weight", (heads, rank, nope))
        rest = find_tensor(source, f"{layer}.{names.values}.weight", (heads, value_dim, rank))
        keys, values, rows = StackedTensor((split,)), StackedTensor((rest,)), None
    else:
        shape = heads * (nope + value_dim), rank
        both = find_tensor(source, f"{layer}.{names.both}.weight", shape)
        keys, values = TurnedKeys(both, heads, nope), StackedTensor((both,))
        first = np.arange(heads)[:, None] * (nope + value_dim)
        rows = (first + nope + np.arange(value_dim)).ravel()
    of_keys, of_values = f"{target}.k_b_proj.weight", f"{target}.v_b_proj.weight"
    yield Weight(of_keys, keys, packable=rank % TILE == 0, experts=heads)
    yield Weight(of_values, values, rows, packable=value_dim % TILE == 0, experts=heads)
