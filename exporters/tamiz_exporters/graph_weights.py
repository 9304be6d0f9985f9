"""Weights of a source as tensors of a graph: packed as the source stores them, or float32.

Files store a weight as ``[N, K]``; the graph wants ``[K, N]``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api import TamizError
from tamiz_exporters.decoder_config import Packed
from tamiz_exporters.stored_tensor import AnyTensor, Source
from tamiz_ops.formats import Format, gguf_format, pack_blocks

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Weight:
    """Where a weight of the graph lies in the source.

    Attributes:
        target: Its name in the graph.
        tensor: The tensor.
        rows: The tensor's rows that it has, in their order; None for all as they are.
        embedding: Whether rows are looked up in it: then it is ``[V, H]`` in the graph.
        added: What is added to its values.
        change: What is made of each value; None: nothing.
        packable: Whether the graph can use it in the source's format.
        experts: Of how many experts it has the rows, one expert after the other; 0: it is of none.
    """

    target: str
    tensor: AnyTensor
    rows: np.ndarray | None = None
    embedding: bool = False
    added: float = 0.0
    change: Callable[[np.ndarray], np.ndarray] | None = None
    packable: bool = True
    experts: int = 0


def graph_tensors(
    source: Source, weights: Iterable[Weight], stored: bool
) -> dict[str, ir.TensorProtocol | Packed]:
    """The weights for the graph by name; each is read when it is written.

    Args:
        source: The checked source.
        weights: The weights.
        stored: Keep matrices in the source's formats; those without a format and vectors are
            float32. Otherwise all are.
    """
    tensors: dict[str, ir.TensorProtocol | Packed] = {}
    unknown = set()
    for weight in weights:
        tensor = weight.tensor
        format = gguf_format(tensor.type.name, tensor.shape[-1])
        if stored and format and len(tensor.shape) == 2 and weight.packable:
            tensors[weight.target] = _packed(source, weight, format)
        else:
            tensors[weight.target] = _lazy(source, weight)
            if stored and len(tensor.shape) == 2 and not format and tensor.type.name != "F32":
                unknown.add(tensor.type.name)
    if unknown:
        _log.warning(
            "%s: tensors of type %s become float32, as no weight format holds them",
            source.path,
            " and ".join(sorted(unknown)),
        )
    return tensors


def _packed(source: Source, weight: Weight, format: Format) -> Packed:
    """Wraps a matrix in the format that the source stores it in."""
    tensor, rows = weight.tensor, weight.rows
    n, k = tensor.shape[0] if rows is None else len(rows), tensor.shape[1]

    def read() -> ir.TensorProtocol:
        chosen = slice(None) if rows is None else rows
        factors = tensor.factors
        try:
            of_rows = None if factors is None else factors[chosen]
            return ir.Tensor(pack_blocks(format, tensor.stored()[chosen], k, of_rows))
        except ValueError as error:
            raise TamizError(f"{source.path}: tensor {tensor.name}: {error}") from error

    shape = ir.Shape(format.packed_shape(n, k))
    return Packed(ir.LazyTensor(read, ir.DataType.UINT8, shape), format.name, n, k, weight.experts)


def _lazy(source: Source, weight: Weight) -> ir.LazyTensor:
    """Wraps a weight; a linear layer's comes out as ``[K, N]``, experts' as ``[E, K, N / E]``."""
    tensor, rows = weight.tensor, weight.rows
    linear = len(tensor.shape) == 2 and not weight.embedding

    def read() -> ir.TensorProtocol:
        values = tensor.dequantize(rows)
        if weight.added:
            values = values + np.float32(weight.added)
        if weight.change is not None:
            values = weight.change(values)
        if not np.isfinite(values).all():
            source.fail(f"tensor {tensor.name}", "NaN or infinity", "finite values")
        if weight.experts:
            values = values.reshape(weight.experts, -1, values.shape[1]).swapaxes(1, 2)
            return ir.Tensor(np.ascontiguousarray(values))
        return ir.Tensor(np.ascontiguousarray(values.T) if linear else values)

    shape = tensor.shape if rows is None else (len(rows), *tensor.shape[1:])
    if weight.experts:
        dims = (weight.experts, shape[1], shape[0] // weight.experts)
        return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(dims))
    return ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(shape[::-1] if linear else shape))
