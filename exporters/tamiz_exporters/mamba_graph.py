"""The nodes of a selective state space in a decoder's graph (Mamba-2, Granite 4, Falcon-H1).

With x the normed residual stream:

    z, x, B, C, dt = x·W_in           one product
    y              = Mamba2(…)        the op says how
    output         = y·W_out

The recurrence is one op of tamiz, as ONNX's own operators would loop over tokens. Its past and
present have one size, however long a sequence is.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_config import Mamba2
from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_SIZE = ("batch_size", "sequence_length")


def mamba_state(name: str, mamba: Mamba2) -> ir.Value:
    """A past or a present of a layer, ``[B, parts, size]``.

    Args:
        name: Its name.
        mamba: The layer.
    """
    sizes = mamba.sizes
    return typed_value(name, ir.DataType.FLOAT, "batch_size", sizes.parts, sizes.layout.size)


def add_mamba(
    of: GraphBuilder,
    name: str,
    mamba: Mamba2,
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
            ``in_proj.weight``, ``taps.weight`` ``[L, channels]``, ``rate.weight``,
            ``dt_bias.weight``, ``skip.weight``, ``out_proj.weight``; optional are
            ``conv_bias.weight`` and ``norm.weight``.
        mamba: The layer.
        epsilon: ε of the norm.
        x: ``[B, S, H]``.
        attention_mask: ``[B, past + S]``.
        past: See `mamba_state`.
        present: Likewise.
    """
    sizes = mamba.sizes
    x = of.times(f"{name}/scale_in", x, mamba.input_scale)
    projected = of.linear(f"{name}/in_proj", x)
    if any(scale != 1 for scale in mamba.part_scales):
        state = sizes.groups * sizes.d_state
        widths = [sizes.inner, sizes.inner, state, state, sizes.heads]
        scales = np.repeat(np.asarray(mamba.part_scales, np.float32), widths)
        factors = of.initialize(f"{name[1:].replace('/', '.')}.scales", ir.tensor(scales))
        projected = of.op("Mul", f"{name}/in_proj/scales/Mul", projected, factors)
    inputs: list[ir.Value | None] = [projected]
    inputs += [of.weight(f"{name}/{part}") for part in ("taps", "rate", "dt_bias", "skip")]
    for part in ("conv_bias", "norm"):
        inputs.append(of.weight(f"{name}/{part}") if of.has(f"{name}/{part}") else None)
    y = typed_value(f"{name}/mamba2_output_0", ir.DataType.FLOAT, *_SIZE, sizes.inner)
    least, most = mamba.limits
    attributes: dict[str, float] = {"groups": sizes.groups, "epsilon": float(epsilon)}
    attributes |= {"norm_first": int(mamba.norm_first)} if mamba.norm_first else {}
    attributes |= {"dt_min": float(least)} if least else {}
    attributes |= {"dt_max": float(most)} if math.isfinite(most) else {}
    inputs += [past, attention_mask]
    of.own_op("Mamba2", f"{name}/mamba2", inputs, attributes, [y, present])
    y = of.linear(f"{name}/out_proj", y)
    return of.times(f"{name}/scale_out", y, mamba.output_scale)
