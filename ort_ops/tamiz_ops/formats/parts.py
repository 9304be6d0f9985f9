"""A weight as separate arrays, between the blocks of a file and the tiles of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import SUPER_BLOCK, Affine, Format, Grid, Scales
from tamiz_ops.formats.grids import vector_values

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

_LARGEST_EXPONENT = 252  # 12 * 2^(252 - 128) is the largest MXFP4 value that fp32 holds
SIGN = 32  # what a signed scale of 6 bits is stored with


@dataclass(frozen=True)
class Parts:
    """A weight of N outputs and K inputs, in one format.

    Attributes:
        quants: uint8 ``[N, K]``, elements without offset; of floats uint16, their bits. Of a `Grid`
            uint32 ``[N, K / step]``.
        scales: ``[N, groups]``, groups of whole blocks: float16, uint8 or int8; None where the
            format has no scales of groups. Of an affine format float32 or float16.
        minima: Like `scales`; None where the format has no minimum. Of an affine format the zero
            points, uint8 or float32.
        d: float16 ``[N, ceil(K / 256)]``, of super-blocks, float32 of nvfp4; or ``[N, 1]``, the
            units of outputs.
        dmin: Like `d`, for the minima of super-blocks.
    """

    quants: Array
    scales: Array | None = None
    minima: Array | None = None
    d: Array | None = None
    dmin: Array | None = None

    def check_finite(self, format: Format) -> None:
        """Refuses a scale, minimum or float that is infinite or NaN.

        Raises:
            ValueError: One is; the message says which, and where.
        """
        names = ("scales", "minima", "d", "dmin")
        for name, array in ((name, getattr(self, name)) for name in names):
            if array is not None and array.dtype.kind == "f":
                _refuse(name, ~np.isfinite(array), array)
        if format.scales is Scales.EXPONENT and self.scales is not None:
            _refuse("exponents", self.scales > _LARGEST_EXPONENT, self.scales)
        if format.is_float:
            exponent = 0x7C00 if format.name == "f16" else 0x7F80
            _refuse("weights", self.quants & exponent == exponent, _floats(self.quants, format))

    def values(self, format: Format) -> Floats:
        """The weight, float32 ``[N, K]``, with the bits of `gguf.dequantize`."""
        if format.is_float:
            return _floats(self.quants, format)
        if isinstance(format, Affine):
            return self._affine_values(format)
        n, k = self.quants.shape
        scales, minima = self.factors(format)
        quants = pad_columns(self.quants, format.block // format.step)
        if isinstance(format, Grid):
            weight = vector_values(format, quants)
        elif format.codebook is not None:
            weight = np.array(format.codebook, np.float32)[quants]
        else:
            weight = quants.astype(np.float32)
            weight -= np.float32(format.offset)
        groups = weight.reshape(n, scales.shape[1], -1)
        groups *= scales[..., None]
        if minima is not None:
            groups += minima[..., None]
        if format.scales is Scales.UNITS:
            assert self.d is not None
            weight *= self.d.astype(np.float32) / np.float32(256)
        return weight[:, : k * format.step]

    def _affine_values(self, format: Affine) -> Floats:
        """scale (quant - zero point), rounded as other tools do: once, if zero points are whole."""
        assert self.scales is not None
        k = self.quants.shape[1]
        weight: Floats = self.quants.astype(np.float32)
        block = format.group or k
        for number, first in enumerate(range(0, k, block)):
            columns = weight[:, first : first + block]
            zero = np.float32(format.offset)
            if self.minima is None:
                columns -= zero
            else:
                columns -= self.minima[:, number, None].astype(np.float32)
            columns *= self.scales[:, number, None].astype(np.float32)
        return weight

    def factors(self, format: Format) -> tuple[Floats, Floats | None]:
        """Scale and minimum of every group ``[N, groups]``, without units."""
        scales, minima = (
            None if array is None else array.astype(np.float32)
            for array in (self.scales, self.minima)
        )
        if format.scales is Scales.EXPONENT:
            assert self.scales is not None
            return np.ldexp(np.float32(1), self.scales.astype(np.int32) - 128), None
        if format.block != SUPER_BLOCK:
            assert scales is not None
            if format.scales is Scales.UNITS:
                assert minima is not None
                minima *= np.float32(-8)
            return scales, minima
        assert self.d is not None
        if scales is None:
            return self.d.astype(np.float32), None
        if format.scales is Scales.SMALL_FLOAT:
            assert self.scales is not None
            scales = small_floats(self.scales)
        if format.scales is Scales.SIX_SIGNED:
            scales -= np.float32(SIGN)
        if isinstance(format, Grid):
            scales = (2 * scales + 1) * np.float32(format.unit)
        scales *= _spread(self.d, format)
        if minima is not None:
            assert self.dmin is not None
            minima *= -_spread(self.dmin, format)
        return scales, minima


def small_floats(bits: Array) -> Floats:
    """(1 + m / 8) 2^(e - 7) of bytes of 4 bits e and 3 bits m; of e = 0 m 2^-9."""
    exponent, mantissa = (bits >> 3 & 15).astype(np.int32), (bits & 7).astype(np.float32)
    normal = np.ldexp(8 + mantissa, exponent - 10)
    found: Floats = np.where(exponent > 0, normal, np.ldexp(mantissa, -9)).astype(np.float32)
    return found


def pad_columns(rows: Array, multiple: int, value: int = 0) -> Array:
    """With columns of `value` up to a multiple."""
    more = -rows.shape[1] % multiple
    return np.pad(rows, ((0, 0), (0, more)), constant_values=value) if more else rows


def _spread(factors: Array, format: Format) -> Floats:
    """The factor of every super-block as one of each of its groups."""
    return np.repeat(factors.astype(np.float32), SUPER_BLOCK // format.group, axis=1)


def _floats(bits: Array, format: Format) -> Floats:
    if format.name == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _refuse(what: str, wrong: npt.NDArray[np.bool_], found: Array) -> None:
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(
            f"{what} of output {row} hold {found[row, column]} at {column}, expected finite numbers"
        )
