"""Packed weights as constants of standard ONNX, and of ONNX Runtime's MatMulNBits.

MatMulNBits and GatherBlockQuantized hold w = scale (quant - zero point) of 2, 4 or 8 bits, so they
hold affine formats, q4_0 and q8_0 bit for bit. Every format is also float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from tamiz.api.ports import attribute_of, input_of
from tamiz.survey.standard.nodes import Nodes
from tamiz_ops import formats

Array = npt.NDArray[Any]
#: Most inputs that share a scale in the ops of ONNX Runtime, and those of a weight that has one
#: scale for an output.
_MOST, _OF_ROWS = 256, 128
#: Formats besides the affine ones that are scale (quant - middle).
_PLAIN = ("q4_0", "q8_0")


@dataclass(frozen=True)
class Packed:
    """The packed weight ``[n, k]`` of a node.

    Attributes:
        name: Of the constant.
        tiles: What it holds, as it lies in the model's file.
        n, k: Outputs and inputs.
        format: Its format.
    """

    name: str
    tiles: ir.TensorProtocol
    n: int
    k: int
    format: formats.Format

    @classmethod
    def of(cls, node: ir.Node) -> Packed:
        """The weight of a BlockMatMul or BlockGather."""
        weight = input_of(node, "weight")
        assert weight is not None
        assert weight.const_value is not None
        named = attribute_of(node, "format")
        fitted = attribute_of(node, "bits"), attribute_of(node, "scale_bits")
        return cls(
            weight.name or "weight",
            weight.const_value,
            attribute_of(node, "n"),
            attribute_of(node, "k"),
            formats.find_format(named) if named else formats.int_format(*fitted),
        )

    def values(self) -> Array:
        """Float32 ``[n, k]``."""
        return formats.dequantize(self.format, self.tiles.numpy(), self.n, self.k)


def dense(nodes: Nodes, packed: Packed, *, rows: bool) -> ir.Value:
    """The weight as float32, ``[n, k]`` or else ``[k, n]``."""
    name = f"{packed.name}.{'rows' if rows else 'columns'}"
    shape = (packed.n, packed.k) if rows else (packed.k, packed.n)

    def read() -> Array:
        values = packed.values()
        return values if rows else np.ascontiguousarray(values.T)

    return nodes.constant(name, shape, ir.DataType.FLOAT, read)


@dataclass(frozen=True)
class Quantized:
    """The same weight in the layout of MatMulNBits and GatherBlockQuantized.

    Attributes:
        bits: Of a quant.
        block: Inputs that share a scale: 16 to 256, a power of two.
        blocks: Of an output.
        zeros: How zero points are held: "" (the middle of the range), "bytes" or "floats".
    """

    packed: Packed
    bits: int
    block: int
    zeros: str

    @classmethod
    def of(cls, packed: Packed) -> Quantized | None:
        """The layout of a weight; None where it does not hold it without loss."""
        format = packed.format
        if isinstance(format, formats.Affine):
            group = format.group or _OF_ROWS
            zeros = ("floats" if format.float_zeros else "bytes") if format.minimum else ""
        elif format.name in _PLAIN:
            group, zeros = format.group, ""
        else:
            return None
        return cls(packed, format.bits, min(group, _MOST), zeros)

    @property
    def blocks(self) -> int:
        """Blocks of an output."""
        return -(-self.packed.k // self.block)

    def constants(
        self, nodes: Nodes, shape: tuple[int, ...]
    ) -> tuple[ir.Value, ir.Value, ir.Value | None]:
        """Quants in bytes, of a shape, scales and zero points."""
        name, n = self.packed.name, self.packed.n
        quants = nodes.constant(f"{name}.quants", shape, ir.DataType.UINT8, self._quants(shape))
        if quants.shape != ir.Shape(shape):  # a lookup and a product share them
            quants = nodes.op("Reshape", quants, nodes.integers(*shape))
        scales = nodes.constant(f"{name}.scales", (n, self.blocks), ir.DataType.FLOAT, self._scales)
        if not self.zeros:
            return quants, scales, None
        of_bytes = self.zeros == "bytes"
        columns = -(-self.blocks * self.bits // 8) if of_bytes else self.blocks
        kind = ir.DataType.UINT8 if of_bytes else ir.DataType.FLOAT
        return quants, scales, nodes.constant(f"{name}.zeros", (n, columns), kind, self._zeros)

    def _parts(self) -> formats.Parts:
        packed = self.packed
        return formats.unpack_parts(packed.format, packed.tiles.numpy(), packed.n, packed.k)

    def _quants(self, shape: tuple[int, ...]) -> Callable[[], Array]:
        def read() -> Array:
            quants = _padded(self._parts().quants, self.blocks * self.block)
            return _together(quants, self.bits).reshape(shape)

        return read

    def _scales(self) -> Array:
        scales = self._parts().scales
        assert scales is not None
        return self._spread(scales.astype(np.float32))

    def _zeros(self) -> Array:
        minima = self._parts().minima
        assert minima is not None
        zeros = self._spread(minima)
        if self.zeros == "floats":
            return zeros.astype(np.float32)
        count = 8 // self.bits
        return _together(_padded(zeros, -(-self.blocks // count) * count), self.bits)

    def _spread(self, array: Array) -> Array:
        """Numbers of the blocks of the format as numbers of these."""
        times = -(-self.blocks // array.shape[1])
        return np.ascontiguousarray(np.repeat(array, times, axis=1)[:, : self.blocks])


def _padded(array: Array, columns: int) -> Array:
    return np.pad(array, ((0, 0), (0, columns - array.shape[1])))


def _together(array: Array, bits: int) -> Array:
    """Numbers of some bits in bytes, the first in the lowest bits."""
    count = 8 // bits
    fields = array.astype(np.uint8).reshape(len(array), -1, count)
    joined = np.zeros(fields.shape[:2], np.uint8)
    for number in range(count):
        joined |= fields[:, :, number] << np.uint8(bits * number)
    return joined
