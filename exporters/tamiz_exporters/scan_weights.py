"""The weights of a selective state space of Mamba's first version in a source.

Sources keep x and its gate z in one projection, and the inputs of dt, B and C in another one; a
graph has a projection for each. It has the convolution as ``[taps, channels]`` and the rate
−exp(A) as ``[d_state, channels]``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tamiz_exporters.decoder_config import Mamba
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.recurrent_weights import convolution_weights, linear_weights, rate_of_log
from tamiz_exporters.stored_tensor import Source, find_tensor


@dataclass(frozen=True)
class ScanNames:
    """How a source names the weights of a selective state space, within a layer.

    Attributes:
        projection: Of x and z.
        taps: The convolution, which may have a bias.
        selection: What dt is made of, B and C.
        step: The projection to dt.
        rate: A, with the end of its name.
        skip: D, with the end of its name.
        norms: Of what dt is made of, of B and of C; empty: they have no weights.
        out: The last projection.
        is_log: Whether the rate is −exp of the stored A; otherwise it is stored itself.
    """

    projection: str = "ssm_in"
    taps: str = "ssm_conv1d"
    selection: str = "ssm_x"
    step: str = "ssm_dt"
    rate: str = "ssm_a"
    skip: str = "ssm_d"
    norms: tuple[str, ...] = ("ssm_dt_norm", "ssm_b_norm", "ssm_c_norm")
    out: str = "ssm_out"
    is_log: bool = False


GGUF_SCAN = ScanNames()


def hf_scan_names(module: str) -> ScanNames:
    """The names in transformers, where the module of a layer is called like this."""
    return ScanNames(
        projection=f"{module}.in_proj",
        taps=f"{module}.conv1d",
        selection=f"{module}.x_proj",
        step=f"{module}.dt_proj",
        rate=f"{module}.A_log",
        skip=f"{module}.D",
        norms=tuple(f"{module}.{part}_layernorm" for part in ("dt", "b", "c")),
        out=f"{module}.out_proj",
        is_log=True,
    )


def scan_weights(
    source: Source, names: ScanNames, mamba: Mamba, hidden: int, layer: str, target: str
) -> Iterator[Weight]:
    """Yields the weights of one layer.

    Args:
        source: The checked source.
        names: How it names them.
        mamba: The layer.
        hidden: H, width of the residual stream.
        layer: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    channels, states, rank = mamba.sizes.channels, mamba.sizes.d_state, mamba.rank
    both = {"in_proj": channels, "gate_proj": channels}
    selected = {"dt_in_proj": rank, "b_proj": states, "c_proj": states}
    yield from linear_weights(source, f"{layer}.{names.projection}", hidden, both, target)
    yield from linear_weights(source, f"{layer}.{names.selection}", channels, selected, target)
    yield from linear_weights(source, f"{layer}.{names.step}", rank, {"dt_proj": channels}, target)
    yield from linear_weights(
        source, f"{layer}.{names.out}", channels, {"out_proj": hidden}, target
    )
    convolution = f"{layer}.{names.taps}"
    yield from convolution_weights(source, convolution, channels, mamba.taps, target)
    rate = find_tensor(source, f"{layer}.{names.rate}", (channels, states))
    change = rate_of_log if names.is_log else None
    yield Weight(f"{target}.rate.weight", rate, change=change, packable=False)
    skip = find_tensor(source, f"{layer}.{names.skip}", (channels,))
    yield Weight(f"{target}.skip.weight", skip)
    if mamba.weighed:
        for name, (part, size) in zip(names.norms, selected.items(), strict=True):
            norm = find_tensor(source, f"{layer}.{name}.weight", (size,))
            yield Weight(f"{target}.{part.removesuffix('_proj')}_norm.weight", norm)
