"""The weights of gated delta nets in a source.

A graph has the projections of q, k and v of all heads in one matrix, one after the other, those of
z, b and a alone, the convolution as ``[taps, width]``, and the rate −exp(A) of each value head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tamiz_exporters.decoder_config import DeltaNet
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.recurrent_weights import find_taps, rate_of_log
from tamiz_exporters.stored_tensor import Source, find_tensor


@dataclass(frozen=True)
class DeltaNames:
    """How a source names the weights of a gated delta net, within a layer.

    Attributes:
        qkv: The projection of q, k and v; empty where `qkvz` has it.
        z: That of the output's gate.
        b: That of β.
        a: That of the decay.
        qkvz: Projections of all four by key heads: q, k, and v and z of its value heads.
        ba: Those of b and a by key heads.
        taps: The convolution.
        rate: A of each value head, with the end of its name.
        bias: Of the decay, with the end of its name.
        norm: The norm of a head's output.
        out: The last projection.
        is_log: Whether the rate is −exp of the stored A; otherwise it is stored itself.
    """

    qkv: str = ""
    z: str = ""
    b: str = ""
    a: str = ""
    qkvz: str = ""
    ba: str = ""
    taps: str = "linear_attn.conv1d"
    rate: str = "linear_attn.A_log"
    bias: str = "linear_attn.dt_bias"
    norm: str = "linear_attn.norm"
    out: str = "linear_attn.out_proj"
    is_log: bool = True


@dataclass(frozen=True)
class DeltaTraits:
    """What tells the gated delta nets of architectures apart.

    Attributes:
        transformers: How transformers names their weights.
        gguf: How GGUF does.
        tiled: Whether GGUF has value head h of key head h mod key heads.
    """

    transformers: DeltaNames
    gguf: DeltaNames
    tiled: bool


_GGUF = DeltaNames(
    qkv="attn_qkv",
    z="attn_gate",
    b="ssm_beta",
    a="ssm_alpha",
    taps="ssm_conv1d",
    rate="ssm_a",
    bias="ssm_dt.bias",
    norm="ssm_norm",
    out="ssm_out",
    is_log=False,
)
_IN = "linear_attn.in_proj"
QWEN35 = DeltaTraits(
    DeltaNames(qkv=f"{_IN}_qkv", z=f"{_IN}_z", b=f"{_IN}_b", a=f"{_IN}_a"), _GGUF, tiled=True
)
QWEN3_NEXT = DeltaTraits(
    DeltaNames(qkvz=f"{_IN}_qkvz", ba=f"{_IN}_ba"),
    replace(_GGUF, b="", a="", ba="ssm_ba"),
    tiled=False,
)


def delta_net_weights(
    source: Source, names: DeltaNames, net: DeltaNet, hidden: int, layer: str, target: str
) -> Iterator[Weight]:
    """Yields the weights of one layer.

    Args:
        source: The checked source.
        names: How it names them.
        net: The layer.
        hidden: H, width of the residual stream.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    sizes = net.sizes
    heads, values = sizes.value_heads, sizes.value_heads * sizes.d_v
    parts = {"qkv": sizes.width, "z": values, "b": heads, "a": heads}
    for part, rows in parts.items():
        stored, count, order = getattr(names, part), rows, None
        if not stored:
            stored, count, order = _together(names, net, part)
        tensor = find_tensor(source, f"{layer}.{stored}.weight", (count, hidden))
        yield Weight(f"{target}.in_proj_{part}.weight", tensor, order)
    taps = find_taps(source, f"{layer}.{names.taps}.weight", sizes.width, sizes.taps)
    yield Weight(f"{target}.taps.weight", taps, packable=False)
    rate = find_tensor(source, f"{layer}.{names.rate}", (heads,))
    change = rate_of_log if names.is_log else None
    yield Weight(f"{target}.rate.weight", rate, change=change)
    bias = find_tensor(source, f"{layer}.{names.bias}", (heads,))
    yield Weight(f"{target}.dt_bias.weight", bias)
    norm = find_tensor(source, f"{layer}.{names.norm}.weight", (sizes.d_v,))
    yield Weight(f"{target}.norm.weight", norm)
    out = find_tensor(source, f"{layer}.{names.out}.weight", (hidden, values))
    yield Weight(f"{target}.out_proj.weight", out)


def _together(names: DeltaNames, net: DeltaNet, part: str) -> tuple[str, int, np.ndarray]:
    """The tensor that holds a projection with others, its rows, and which are the projection's."""
    sizes, group = net.sizes, net.sizes.group
    stored, widths = names.ba, [group, group]
    if part in ("qkv", "z"):
        stored, widths = names.qkvz, [sizes.d_k, sizes.d_k, group * sizes.d_v, group * sizes.d_v]
    rows = np.arange(sizes.key_heads * sum(widths)).reshape(sizes.key_heads, -1)
    pieces = np.split(rows, np.cumsum(widths)[:-1], axis=1)
    wanted = {"qkv": pieces[:3], "z": pieces[3:], "b": pieces[:1], "a": pieces[1:]}[part]
    return stored, rows.size, np.concatenate([piece.ravel() for piece in wanted])
