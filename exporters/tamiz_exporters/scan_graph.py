"""The nodes of a selective state space of Mamba's first version in a decoder's graph.

With x the normed residual stream:

    u       = ShortConv(x·W_in)                     with silu, no gates
    r, B, C = u·W_r, u·W_b, u·W_c                   each normed in Falcon-Mamba and Jamba
    y       = SelectiveScan(u, r·W_dt + bias, B, C, z)      z = x·W_z; the op says how
    output  = y·W_out

Convolution and recurrence are ops of tamiz, as each keeps a state of one size, however long a
sequence is.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import SPARE
from tamiz_exporters.decoder_config import Mamba
from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_SIZE = ("batch_size", "sequence_length")


def scan_states(part: str, number: int, mamba: Mamba) -> list[ir.Value]:
    """What a layer keeps: inputs of its convolution ``[B, rows, channels]``, ``[B, parts, size]``.

    Args:
        part: ``past`` or ``present``.
        number: The layer.
        mamba: Likewise.
    """
    sizes, rows = mamba.sizes, SPARE + mamba.taps - 1
    shapes = {"recent": (rows, sizes.channels), "mamba": (sizes.parts, sizes.layout.size)}
    return [
        typed_value(f"{part}_{kind}.{number}", ir.DataType.FLOAT, "batch_size", *shape)
        for kind, shape in shapes.items()
    ]


def add_scan(
    of: GraphBuilder,
    name: str,
    mamba: Mamba,
    x: ir.Value,
    attention_mask: ir.Value,
    past: list[ir.Value],
    present: list[ir.Value],
) -> ir.Value:
    """Adds the nodes of one layer; returns what it adds to the residual stream.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights:
            ``in_proj.weight``, ``gate_proj.weight``, ``taps.weight`` ``[L, channels]``,
            ``dt_in_proj.weight``, ``b_proj.weight``, ``c_proj.weight``, ``dt_proj.weight``,
            ``rate.weight`` ``[d_state, channels]``, ``skip.weight``, ``out_proj.weight``; optional
            are ``conv_bias.weight``, weights of norms such as ``b_norm.weight``, and biases of
            projections.
        mamba: The layer.
        x: ``[B, S, H]``.
        attention_mask: ``[B, past + S]``.
        past: See `scan_states`.
        present: Likewise.
    """
    floats, sizes = ir.DataType.FLOAT, mamba.sizes
    taps = of.weight(f"{name}/taps")
    bias = of.weight(f"{name}/conv_bias") if of.has(f"{name}/conv_bias") else None
    projected = of.linear(f"{name}/in_proj", x)
    inputs = [None, None, projected, taps, past[0], attention_mask, None, bias]
    u = typed_value(f"{name}/conv_output_0", floats, *_SIZE, sizes.channels)
    of.own_op("ShortConv", f"{name}/conv", inputs, {"silu": 1}, [u, present[0]])
    r, b, c = (
        _selected(of, name, part, mamba.epsilon, u, size)
        for part, size in (("dt_in", mamba.rank), ("b", sizes.d_state), ("c", sizes.d_state))
    )
    scanned: list[ir.Value | None] = [u, of.linear(f"{name}/dt_proj", r), b, c]
    scanned += [of.linear(f"{name}/gate_proj", x)]
    scanned += [of.weight(f"{name}/rate"), of.weight(f"{name}/skip"), past[1], attention_mask]
    y = typed_value(f"{name}/scan_output_0", floats, *_SIZE, sizes.channels)
    of.own_op("SelectiveScan", f"{name}/scan", scanned, {}, [y, present[1]])
    return of.linear(f"{name}/out_proj", y)


def _selected(
    of: GraphBuilder, name: str, part: str, epsilon: float, u: ir.Value, size: int
) -> ir.Value:
    """A projection of u, normed where ε is not 0; a norm without a weight has ones."""
    y = of.linear(f"{name}/{part}_proj", u)
    if not epsilon:
        return y
    norm = f"{name}/{part}_norm"
    if not of.has(norm):
        of.initialize(f"{norm[1:].replace('/', '.')}.weight", ir.tensor(np.ones(size, np.float32)))
    return of.rms_norm(norm, y, epsilon)
