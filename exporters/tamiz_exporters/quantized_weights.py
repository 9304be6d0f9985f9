"""Reads the weights of products and lookups that other tools stored in fewer bits.

Understood are MatMulNBits and GatherBlockQuantized of ONNX Runtime, and DequantizeLinear or floats
of 16 bits before MatMul, Gemm and Gather.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tamiz.api import is_constant
from tamiz_exporters.stored_matrix import (
    Array,
    HalfMatrix,
    NotStoredError,
    StoredMatrix,
    affine_matrix,
)
from tamiz_ops.formats import FORMATS

Bytes = npt.NDArray[np.uint8]

_HALVES = {ir.DataType.FLOAT16: "f16", ir.DataType.BFLOAT16: "bf16"}
#: Bits of a quant, and what makes it unsigned.
_KINDS = {
    ir.DataType.INT4: (4, 8),
    ir.DataType.UINT4: (4, 0),
    ir.DataType.INT8: (8, 128),
    ir.DataType.UINT8: (8, 0),
}
_FLOATS = (ir.DataType.FLOAT, *_HALVES)


@dataclass(frozen=True)
class Found:
    """A weight that was found.

    Attributes:
        matrix: The weight.
        key: What is equal where two weights are, such as a tied embedding and head.
        name: Name of the constant.
    """

    matrix: StoredMatrix
    key: tuple[object, ...]
    name: str


def nbits_weight(node: ir.Node) -> Found:
    """The weight of a MatMulNBits.

    Raises:
        NotStoredError: No format holds it.
    """
    n, k = _integer(node, "N"), _integer(node, "K")
    bits, block = _integer(node, "bits", 4), _integer(node, "block_size", 32)
    if bits not in (2, 4, 8):
        raise NotStoredError(f"has quants of {bits} bits, expected 2, 4 or 8")
    quants, scales = _constant(node, 1, "B"), _constant(node, 2, "scales")
    zeros = _optional(node, 3, "zero_points")
    _check_order(_optional(node, 4, "g_idx"), bits, block, zeros)
    blocks = -(-k // block)
    scale_values = _floats(scales).reshape(n, blocks)
    points = None if zeros is None else _packed_zeros(zeros, bits, n, blocks)

    def read() -> Bytes:
        return _fields(_array(quants).reshape(n, -1), bits)[:, :k]

    matrix = affine_matrix(bits, k, block, read, scale_values, points)
    return Found(matrix, _key(bits, quants, scales, zeros), _name(quants))


def block_quantized_table(node: ir.Node) -> Found:
    """The table of a GatherBlockQuantized.

    Raises:
        NotStoredError: No format holds it.
    """
    table, scales = _constant(node, 0, "data"), _constant(node, 2, "scales")
    zeros = _optional(node, 3, "zero_points")
    shape = _shape(node.inputs[0])
    if _integer(node, "gather_axis", 0) != 0 or shape is None or table.dtype not in _KINDS:
        raise NotStoredError("looks up something else than the rows of a matrix of 8 bits or fewer")
    if _integer(node, "quantize_axis", 1) not in (1, -1):
        raise NotStoredError("has a scale for several rows")
    assert table.dtype is not None
    in_bytes = table.dtype is ir.DataType.UINT8
    bits = _integer(node, "bits", 4) if in_bytes else 4
    shift = _KINDS[table.dtype][1]
    n, width = shape
    k = width * (8 // bits) if in_bytes else width
    block = _integer(node, "block_size", 128)
    scale_values = _floats(scales).reshape(n, -1)
    if zeros is not None:
        points: Array | None = (
            _packed_zeros(zeros, bits, n, -(-k // block))
            if in_bytes
            else _unsigned(_array(zeros), shift).reshape(n, -1)
        )
    elif in_bytes:
        points = None
    else:
        points = np.full(scale_values.shape, shift, np.uint8)

    def read() -> Bytes:
        array = _array(table).reshape(n, -1)
        return _fields(array, bits) if in_bytes else _unsigned(array, shift)

    matrix = affine_matrix(bits, k, block, read, scale_values, points)
    return Found(matrix, _key(bits, table, scales, zeros), _name(table))


def constant_matrix(value: ir.Value | None, *, by_rows: bool) -> Found | None:
    """The weight that a value is, dequantised or of 16 bits.

    Args:
        value: What a product or a lookup reads.
        by_rows: Whether a row of the value is an output; else a column.

    Returns:
        The weight; None where the value is none of these, such as a constant of float32.

    Raises:
        NotStoredError: No format holds it.
    """
    casts: set[ir.DataType] = set()
    while value is not None and (node := value.producer()) is not None and node.domain == "":
        if node.op_type == "DequantizeLinear":
            if casts:
                raise NotStoredError("is rounded after DequantizeLinear")
            return _dequantized(node, by_rows)
        if node.op_type == "Transpose" and _swaps(node):
            by_rows = not by_rows
        elif node.op_type == "Cast":
            casts.add(ir.DataType(_integer(node, "to")))
        elif node.op_type != "Identity":
            return None
        value = node.inputs[0]
    if value is None or not is_constant(value) or value.dtype not in _HALVES or _rank(value) != 2:
        return None
    if casts - {value.dtype, ir.DataType.FLOAT}:
        return None
    return _of_halves(value, by_rows)


def _of_halves(value: ir.Value, by_rows: bool) -> Found:
    assert value.dtype is not None
    name = _HALVES[value.dtype]
    n, k = _sizes(value, by_rows)

    def read() -> npt.NDArray[np.uint16]:
        bits = _array(value).view(np.uint16)
        return bits if by_rows else np.ascontiguousarray(bits.T)

    return Found(HalfMatrix(n, k, FORMATS[name], read), (value, by_rows), _name(value))


def _dequantized(node: ir.Node, by_rows: bool) -> Found:
    """The output of a DequantizeLinear."""
    quants, scales = _constant(node, 0, "x"), _constant(node, 1, "x_scale")
    zeros = _optional(node, 2, "x_zero_point")
    if quants.dtype not in _KINDS or _rank(quants) != 2:
        raise NotStoredError(
            f"is {quants.dtype} of shape {quants.shape}, expected a matrix of 4 or 8 bits"
        )
    if scales.dtype is not ir.DataType.FLOAT or _integer(node, "output_dtype", 1) not in (0, 1):
        raise NotStoredError("is dequantised to 16 bits, which rounds its values")
    assert quants.dtype is not None
    bits, shift = _KINDS[quants.dtype]
    n, k = _sizes(quants, by_rows)
    spread = _Spread(n, k, by_rows, _integer(node, "axis", 1) % 2, _integer(node, "block_size", 0))
    scale_values = spread.by_output(_floats(scales))
    if zeros is not None:
        points: Array = spread.by_output(_unsigned(_array(zeros), shift))
    else:
        points = np.full(scale_values.shape, shift, np.uint8)

    def read() -> Bytes:
        array = _unsigned(_array(quants), shift)
        return array if by_rows else np.ascontiguousarray(array.T)

    block = spread.inputs_of(scale_values.shape[1])
    matrix = affine_matrix(bits, k, block, read, scale_values, points)
    return Found(matrix, (*_key(bits, quants, scales, zeros), by_rows), _name(quants))


@dataclass(frozen=True)
class _Spread:
    """How the scales of a DequantizeLinear lie along the outputs and inputs of its matrix."""

    n: int
    k: int
    by_rows: bool
    axis: int
    block: int

    def by_output(self, array: Array) -> Array:
        """Numbers as ``[n, blocks of inputs]``.

        Raises:
            NotStoredError: Outputs share a number that inputs do not share.
        """
        if array.size == 1:
            return np.broadcast_to(array.reshape(1, 1), (self.n, 1))
        along_outputs = self.axis == (0 if self.by_rows else 1)
        if self.block == 0:
            if not along_outputs:
                raise NotStoredError("has a scale for every input")
            return array.reshape(self.n, 1)
        if along_outputs:
            raise NotStoredError("has scales that blocks of outputs share")
        return array if self.by_rows else np.ascontiguousarray(array.T)

    def inputs_of(self, blocks: int) -> int:
        """Inputs of a block."""
        return self.block if blocks > 1 else self.k


def _sizes(value: ir.Value, by_rows: bool) -> tuple[int, int]:
    """Outputs and inputs."""
    assert value.shape is not None
    rows, columns = (int(dim) for dim in value.shape.numpy())
    return (rows, columns) if by_rows else (columns, rows)


def _check_order(g_idx: ir.Value | None, bits: int, block: int, zeros: ir.Value | None) -> None:
    """Refuses inputs whose blocks do not follow each other, and what ONNX Runtime reads otherwise.

    With a g_idx ONNX Runtime 1.32 leaves out zero points of bytes, takes quants of 2 bits for
    others, and refuses 8 bits.
    """
    if g_idx is None:
        return
    if bits != 4 or (zeros is not None and zeros.dtype == ir.DataType.UINT8):
        raise NotStoredError(
            "has a g_idx beside quants of 2 or 8 bits or zero points of bytes, which ONNX Runtime"
            " does not read as its documentation says"
        )
    order = _array(g_idx).ravel()
    if not np.array_equal(order, np.arange(len(order)) // block):
        raise NotStoredError("has a g_idx: inputs of a block do not lie side by side")


def _packed_zeros(zeros: ir.Value, bits: int, n: int, blocks: int) -> Array:
    """Zero points of ``[n, blocks]``, packed as quants are or floats."""
    if zeros.dtype is ir.DataType.UINT8:
        return _fields(_array(zeros).reshape(n, -1), bits)[:, :blocks]
    return _floats(zeros).reshape(n, blocks)


def _fields(array: Bytes, bits: int) -> Bytes:
    """The fields of bytes ``[n, bytes]``, the lowest bits first."""
    if bits == 8:
        return array
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields: Bytes = array[:, :, None] >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(array), -1)


def _unsigned(array: Array, shift: int) -> Bytes:
    """Quants as unsigned numbers, `shift` larger."""
    shifted: Bytes = (array.astype(np.int16) + np.int16(shift)).astype(np.uint8)
    return shifted


def _floats(value: ir.Value) -> npt.NDArray[np.float32]:
    if value.dtype not in _FLOATS:
        raise NotStoredError(f"has {value.name} of {value.dtype}, expected floats")
    return _array(value).astype(np.float32)


def _array(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()


def _constant(node: ir.Node, index: int, port: str) -> ir.Value:
    value = _optional(node, index, port)
    if value is None:
        raise NotStoredError(f"has no {port}")
    return value


def _optional(node: ir.Node, index: int, port: str) -> ir.Value | None:
    """The constant at an input, behind Reshape and Identity; None where there is none.

    Raises:
        NotStoredError: It is computed.
    """
    value = node.inputs[index] if len(node.inputs) > index else None
    if value is None:
        return None
    while (before := value.producer()) is not None and before.op_type in ("Reshape", "Identity"):
        if before.domain != "" or before.inputs[0] is None:
            break
        value = before.inputs[0]
    if not is_constant(value):
        raise NotStoredError(f"has a computed {port}")
    return value


def _shape(value: ir.Value | None) -> tuple[int, int] | None:
    """The shape of a constant matrix, perhaps behind a Reshape."""
    before = value.producer() if value is not None else None
    if before is None or before.op_type != "Reshape":
        fixed = None if value is None or value.shape is None else value.shape.dims
        if fixed is None or len(fixed) != 2 or not all(isinstance(dim, int) for dim in fixed):
            return None
        return int(fixed[0]), int(fixed[1])  # type: ignore[arg-type]
    wanted, source = before.inputs[1], before.inputs[0]
    if wanted is None or wanted.const_value is None or source is None or source.const_value is None:
        return None
    dims = [int(dim) for dim in wanted.const_value.numpy()]
    if len(dims) != 2 or min(dims) < -1 or 0 in dims:
        return None
    known = max(dims[0], 1) * max(dims[1], 1)
    rows, columns = (source.const_value.size // known if dim == -1 else dim for dim in dims)
    return rows, columns


def _swaps(node: ir.Node) -> bool:
    perm = node.attributes.get("perm")
    return perm is None or list(perm.as_ints()) == [1, 0]


def _integer(node: ir.Node, name: str, default: int | None = None) -> int:
    attribute = node.attributes.get(name)
    if attribute is None:
        if default is None:
            raise NotStoredError(f"has no attribute {name}")
        return default
    return attribute.as_int()


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _name(value: ir.Value) -> str:
    return value.name or "weight"


def _key(bits: int, *values: ir.Value | None) -> tuple[object, ...]:
    return (bits, *values)
