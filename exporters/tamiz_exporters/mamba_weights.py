"""The weights of selective state spaces (Mamba-2) in a source.

A graph has one projection of z, x, B, C and dt, the convolution as ``[taps, channels]``, and the
rate −exp(A) of each head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tamiz_exporters.decoder_config import Mamba2
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.recurrent_weights import convolution_weights, linear_weights, rate_of_log
from tamiz_exporters.stored_tensor import Source, StoredTensor, find_tensor


@dataclass(frozen=True)
class MambaNames:
    """How a source names the weights of a selective state space, within a layer.

    Attributes:
        projection: The first projection.
        taps: The convolution, which may have a bias.
        rate: A of each head, with the end of its name.
        bias: Of dt, with the end of its name.
        skip: D of each head, with the end of its name.
        norm: The norm of the output, where it has one.
        out: The last projection.
        is_log: Whether the rate is −exp of the stored A; otherwise it is stored itself.
    """

    projection: str = "ssm_in"
    taps: str = "ssm_conv1d"
    rate: str = "ssm_a"
    bias: str = "ssm_dt.bias"
    skip: str = "ssm_d"
    norm: str = "ssm_norm"
    out: str = "ssm_out"
    is_log: bool = False


GGUF_MAMBA = MambaNames()


def hf_mamba_names(module: str) -> MambaNames:
    """The names in transformers, where the module of a layer is called like this."""
    return MambaNames(
        projection=f"{module}.in_proj",
        taps=f"{module}.conv1d",
        rate=f"{module}.A_log",
        bias=f"{module}.dt_bias",
        skip=f"{module}.D",
        norm=f"{module}.norm",
        out=f"{module}.out_proj",
        is_log=True,
    )


def mamba_weights(
    source: Source, names: MambaNames, mamba: Mamba2, hidden: int, layer: str, target: str
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
    sizes, heads = mamba.sizes, (mamba.sizes.heads,)
    projection, convolution = f"{layer}.{names.projection}", f"{layer}.{names.taps}"
    yield from linear_weights(source, projection, hidden, {"in_proj": sizes.width}, target)
    yield from convolution_weights(source, convolution, sizes.channels, sizes.taps, target)
    change = rate_of_log if names.is_log else None
    rate = _vector(source, f"{layer}.{names.rate}", heads[0])
    yield Weight(f"{target}.rate.weight", rate, change=change)
    bias = find_tensor(source, f"{layer}.{names.bias}", heads)
    yield Weight(f"{target}.dt_bias.weight", bias)
    yield Weight(f"{target}.skip.weight", _vector(source, f"{layer}.{names.skip}", heads[0]))
    if mamba.normed:
        norm = _vector(source, f"{layer}.{names.norm}.weight", sizes.inner)
        yield Weight(f"{target}.norm.weight", norm)
    out = f"{layer}.{names.out}"
    yield from linear_weights(source, out, sizes.inner, {"out_proj": hidden}, target)


def _vector(source: Source, name: str, count: int) -> StoredTensor:
    """Numbers that GGUF stores as ``[count, 1]`` or ``[groups, …]``."""
    tensor = source.tensors.get(name)
    if tensor is None or int(np.prod(tensor.shape)) != count:
        return find_tensor(source, name, (count,))
    return find_tensor(source, name, tensor.shape).as_vector()
