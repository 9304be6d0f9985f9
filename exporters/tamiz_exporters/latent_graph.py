"""The nodes of multi-head latent attention in a decoder's graph (DeepSeek-V2, 2024).

With x the normed residual stream, c the latent of a token, and t the one key of a token that
rotates, a head h has, as the models are trained,

    c    = norm(x·Wc),  t = x·Wt                       c [R], t [rope]
    k_h  = [rotary(t), c·Wk_h],  v_h = c·Wv_h          Wk_h [R, nope], Wv_h [R, value size]
    q_h  = [rotary(r_h), n_h]                          all r_h and n_h: x·Wq, or norm(x·Wa)·Wb
    y_h  = softmax(q_h·K_hᵀ · scale)·V_h

Both products with the latent move to the other side, n·(c·Wk)ᵀ = (n·Wkᵀ)·cᵀ and s·(C·Wv) =
(s·C)·Wv, so that all heads share one key and one value of each token, and what is kept of a token
is t and c instead of all heads' keys and values:

    q'_h = [rotary(r_h), n_h·Wk_hᵀ]
    k'   = [rotary(t), c],  v' = k'
    y_h  = (softmax(q'_h·K'ᵀ · scale)·K' without the first `rope` elements)·Wv_h

One row of `rope` + R elements is kept of a token, key and value at once.

A head's own matrices are packed as those of experts are: head h is the expert of its row.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_config import Latent
from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_SIZE = ("batch_size", "sequence_length")
_END = int(np.iinfo(np.int64).max)


def head_numbers(of: GraphBuilder, ids: ir.Value, heads: int) -> ir.Value:
    """The numbers of the heads for each token, int32 ``[B, S, heads]``.

    Args:
        of: The graph.
        ids: The tokens ``[B, S]``.
        heads: Number of query heads.
    """
    name = "model.heads"
    numbers = of.initialize(name, ir.tensor(np.arange(heads, dtype=np.int32), name=name))
    shape = of.op("Shape", "/model/heads/Shape", ids)
    shape = of.op("Concat", "/model/heads/Concat", shape, of.constant([heads]), axis=0)
    chosen = typed_value("/model/heads/chosen", ir.DataType.INT32, *_SIZE, heads)
    return of.op("Expand", "/model/heads/Expand", numbers, shape, output=chosen)


def latent_projections(
    of: GraphBuilder, name: str, latent: Latent, x: ir.Value, heads: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """The queries ``[B, S, heads·(rope + R)]``, and what is kept, ``[B, S, rope + R]``.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights: ``q_proj.weight``,
            or ``q_a_proj.weight``, ``q_a_layernorm.weight`` and ``q_b_proj.weight``, whose rows are
            all heads' r and then all heads' n; ``k_rope_proj.weight``, ``kv_a_proj.weight``,
            ``kv_a_layernorm.weight``, ``k_b_proj.weight``.
        latent: The sizes.
        x: ``[B, S, H]``.
        heads: See `head_numbers`.
    """
    count = _count(heads)
    if latent.query_rank:
        q = of.linear(f"{name}/q_a_proj", x)
        q = of.rms_norm(f"{name}/q_a_layernorm", q, latent.epsilon)
        q = of.linear(f"{name}/q_b_proj", q)
    else:
        q = of.linear(f"{name}/q_proj", x)

    def part(what: str, begin: int, end: int, size: int) -> ir.Value:
        y = _slice(of, f"{name}/{what}/Slice", q, begin, end, 2)
        return of.op("Reshape", f"{name}/{what}/Reshape", y, of.constant([0, 0, count, size]))

    turned = part("turned", 0, count * latent.rope, latent.rope)
    still = part("still", count * latent.rope, _END, latent.nope)
    still = _by_head(of, f"{name}/k_b_proj", still, heads)
    q = of.op("Concat", f"{name}/queries/Concat", turned, still, axis=3)
    width = of.constant([0, 0, count * latent.cached])
    q = of.op("Reshape", f"{name}/queries/Reshape", q, width)
    c = of.linear(f"{name}/kv_a_proj", x)
    c = of.rms_norm(f"{name}/kv_a_layernorm", c, latent.epsilon)
    t = of.linear(f"{name}/k_rope_proj", x)
    return q, of.op("Concat", f"{name}/latents/Concat", t, c, axis=2)


def values_of_latents(
    of: GraphBuilder, name: str, latent: Latent, y: ir.Value, heads: ir.Value
) -> ir.Value:
    """The heads' sums of values ``[B, S, heads·value size]``.

    Args:
        of: The graph.
        name: See `latent_projections`; the weight is ``v_b_proj.weight``.
        latent: The sizes.
        y: The heads' sums of what is kept, ``[B, S, heads·(rope + R)]``.
        heads: See `head_numbers`.
    """
    count = _count(heads)
    shape = of.constant([0, 0, count, latent.cached])
    y = of.op("Reshape", f"{name}/sums/Reshape", y, shape)
    y = _slice(of, f"{name}/sums/Slice", y, latent.rope, _END, 3)
    y = _by_head(of, f"{name}/v_b_proj", y, heads)
    width = of.constant([0, 0, count * latent.value_dim])
    return of.op("Reshape", f"{name}/sums/Reshape_1", y, width)


def _by_head(of: GraphBuilder, name: str, x: ir.Value, heads: ir.Value) -> ir.Value:
    """The product ``[B, S, heads, N]`` of ``[B, S, heads, K]`` with a matrix of each head."""
    module = f"{name[1:].replace('/', '.')}.weight"
    if module in of.packed:
        weight, count = of.packed[module], _count(heads)
        shape = *_SIZE, count, weight.n // count
        y = typed_value(f"{name}_output_0", ir.DataType.FLOAT, *shape)
        inputs = [x, of.initializers[module], heads]
        of.own_op("ExpertMatMul", name, inputs, weight.attributes(), [y])
        return y
    x = of.op("Transpose", f"{name}/Transpose", x, perm=[0, 2, 1, 3])
    y = of.op("MatMul", f"{name}/MatMul", x, of.weight(name))
    return of.op("Transpose", f"{name}/Transpose_1", y, perm=[0, 2, 1, 3])


def _count(heads: ir.Value) -> int:
    assert heads.shape is not None
    return int(heads.shape[2])  # type: ignore[arg-type]


def _slice(of: GraphBuilder, name: str, x: ir.Value, begin: int, end: int, axis: int) -> ir.Value:
    return of.op("Slice", name, x, of.constant([begin]), of.constant([end]), of.constant([axis]))
