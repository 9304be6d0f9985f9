"""The nodes of a gated delta net in a decoder's graph (Qwen3-Next, Qwen 3.5).

With x the normed residual stream:

    qkv, z, b, a = x·W_qkv, x·W_z, x·W_b, x·W_a
    y            = GatedDeltaNet(qkv, z, b, a)      the op says how
    output       = y·W_out

The recurrence is one op of tamiz, as ONNX's own operators would loop over tokens. Its past and
present have one size, however long a sequence is.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz_exporters.decoder_config import DeltaNet
from tamiz_exporters.graph_builder import GraphBuilder, typed_value


def delta_state(name: str, net: DeltaNet) -> ir.Value:
    """A past or a present of a layer, ``[B, key heads, size]``.

    Args:
        name: Its name.
        net: The layer.
    """
    sizes = net.sizes
    return typed_value(name, ir.DataType.FLOAT, "batch_size", sizes.key_heads, sizes.size)


def add_delta_net(
    of: GraphBuilder,
    name: str,
    net: DeltaNet,
    epsilon: float,
    x: ir.Value,
    attention_mask: ir.Value,
    past: ir.Value,
    present: ir.Value,
) -> ir.Value:
    """Adds the nodes of one layer; returns what it adds to the residual stream.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights:
            ``in_proj_qkv.weight``, ``in_proj_z.weight``, ``in_proj_b.weight``,
            ``in_proj_a.weight``, ``taps.weight`` ``[L, width]``, ``rate.weight``,
            ``dt_bias.weight``, ``norm.weight``, ``out_proj.weight``.
        net: The layer.
        epsilon: ε of the norm.
        x: ``[B, S, H]``.
        attention_mask: ``[B, past + S]``.
        past: See `delta_state`.
        present: Likewise.
    """
    inputs: list[ir.Value | None] = [
        of.linear(f"{name}/in_proj_{part}", x) for part in ("qkv", "z", "b", "a")
    ]
    inputs += [of.weight(f"{name}/{part}") for part in ("taps", "rate", "dt_bias", "norm")]
    inputs += [past, attention_mask]
    sizes = net.sizes
    y = typed_value(
        f"{name}/delta_net_output_0",
        ir.DataType.FLOAT,
        "batch_size",
        "sequence_length",
        sizes.value_heads * sizes.d_v,
    )
    attributes = {"key_heads": sizes.key_heads, "epsilon": float(epsilon), "tiled": int(net.tiled)}
    of.own_op("GatedDeltaNet", f"{name}/delta_net", inputs, attributes, [y, present])
    return of.linear(f"{name}/out_proj", y)
