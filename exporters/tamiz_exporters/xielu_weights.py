"""The numbers of an activation that each layer has trained, xIELU (Huang and Schlag 2024).

A source has what a softplus makes positive: α_p = softplus(a_p) and α_n = β + softplus(a_n).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from gguf.constants import GGMLQuantizationType

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.graph_weights import Weight
from tamiz_exporters.stored_tensor import OtherSource, Source, StoredTensor

_PARTS = ("alpha_p", "alpha_n", "beta", "eps")


def xielu_weights(source: Source, at: str, target: str) -> Iterator[Weight]:
    """Yields the numbers of one layer.

    Args:
        source: The checked source.
        at: What their names begin with in the source.
        target: What their names begin with in the graph.

    Raises:
        TamizError: One is missing, or there are more.
    """
    found = {part: _number(source, f"{at}.{part}") for part in _PARTS}
    beta = found["beta"].dequantize()
    yield Weight(f"{target}.alpha_p", found["alpha_p"], change=_softplus)
    yield Weight(f"{target}.alpha_n", found["alpha_n"], change=lambda a: beta + _softplus(a))
    yield Weight(f"{target}.beta", found["beta"])
    yield Weight(f"{target}.eps", found["eps"])


def with_xielu(file: GgufFile, layers: int) -> Source:
    """A GGUF with its metadata of activations as tensors ``blk.N.xielu.alpha_p`` and so on.

    Args:
        file: The checked file.
        layers: How many numbers a list has.

    Raises:
        TamizError: A key is missing, or is no number and no such list.
    """
    tensors = dict(file.tensors)
    for part in _PARTS:
        key = f"xielu.{part}"
        given = file.metadata.get(key)
        values = np.asarray(np.nan if given is None else given)
        if values.size not in (1, layers) or values.dtype.kind != "f" or np.isnan(values).any():
            file.fail(key, given, f"a number, or {layers} numbers")
        for layer, value in enumerate(np.broadcast_to(values.ravel(), layers)):
            name = f"blk.{layer}.{key}"
            data = np.array([[value]], np.float32).view(np.uint8)
            tensors[name] = StoredTensor(name, (1,), GGMLQuantizationType.F32, data)
    return OtherSource(file, tensors)


def _number(source: Source, name: str) -> StoredTensor:
    """A tensor of one number, as a vector."""
    if (tensor := source.tensors.get(name)) is None:
        source.fail(f"tensor {name}", "no such tensor", "one number")
    if (vector := tensor.as_vector()).shape != (1,):
        source.fail(f"tensor {name}", " x ".join(map(str, tensor.shape)), "one number")
    return vector


def _softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x))."""
    y: np.ndarray = np.logaddexp(np.float32(0), x, dtype=np.float32)
    return y
