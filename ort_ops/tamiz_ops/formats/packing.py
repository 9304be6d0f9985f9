"""Tiles: weights in the layout of the kernels, from `Parts` and back.

A tile is 16 outputs; its blocks follow each other. A block of 32 inputs is the planes of its group,
then 16 scales and 16 minima. A super-block is its scales, 16 d, 16 dmin (fp16, or fp32 in
nvfp4), then the planes of its 8 groups. `src/kernels/products/packing.h` shows every byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.affine import pack_affine, unpack_affine
from tamiz_ops.formats.declared import GROUP, SUPER_BLOCK, TILE, Affine, Format, Grid, Scales
from tamiz_ops.formats.gguf_blocks import read_blocks
from tamiz_ops.formats.grids import gather_vectors, spread_vectors
from tamiz_ops.formats.parts import Array, Floats, Parts, pad_columns
from tamiz_ops.formats.planes import gather_quants, pad_rows, spread_planes

Bytes = npt.NDArray[np.uint8]

_CHUNK = 1 << 20  # weights that are taken apart at a time


def pack_blocks(format: Format, data: Bytes, k: int, factors: Floats | None = None) -> Bytes:
    """Packs the rows of a GGUF tensor, some tiles at a time.

    Args:
        format: The format of the tensor's type, `gguf_format`.
        data: uint8 ``[N, row bytes]``, the blocks as the file stores them; may be mapped.
        k: Inputs.
        factors: float32 ``[N]``, what the values of each row are multiplied by; None for 1.

    Returns:
        uint8 ``[ceil(N / 16), tile bytes]``.

    Raises:
        ValueError: A size does not fit, a scale is infinite or NaN, or the format holds no factors.
    """
    packed = np.empty(format.packed_shape(len(data), k), np.uint8)
    for tile, rows in _chunks(len(data), k):
        of_rows = None if factors is None else factors[rows]
        part = pack_parts(format, read_blocks(format, data[rows], k, of_rows))
        packed[tile : tile + len(part)] = part
    return packed


def dequantize(format: Format, packed: Bytes, n: int, k: int, rows: slice | None = None) -> Floats:
    """The values of a packed weight.

    Args:
        format: Its format.
        packed: uint8 ``[ceil(n / 16), tile bytes]``.
        n: Outputs.
        k: Inputs.
        rows: Outputs wanted, consecutive ones; all by default.

    Returns:
        float32 ``[rows, k]``, bit for bit what `gguf.dequantize` returns, or onnxruntime for an
        affine format.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    _check_packed(format, packed, n, k)
    first, last, step = (rows or slice(None)).indices(n)
    if step != 1:
        raise ValueError(f"rows has the step {step}, expected 1")
    weight = np.empty((max(last - first, 0), k), np.float32)
    for row in range(first // TILE * TILE, last, TILE * _tiles_together(k)):
        end = min(row + TILE * _tiles_together(k), -(-last // TILE) * TILE)
        part = unpack_parts(format, packed[row // TILE : end // TILE], end - row, k).values(format)
        begin, stop = max(row, first), min(end, last)
        weight[begin - first : stop - first] = part[begin - row : stop - row]
    return weight


def pack_parts(format: Format, parts: Parts) -> Bytes:
    """Packs a weight given as separate arrays.

    Args:
        format: Its format.
        parts: The arrays. Inputs are padded to whole blocks, outputs to whole tiles.

    Raises:
        ValueError: An array has another shape, or a scale is infinite or NaN.
    """
    if isinstance(format, Affine):
        return pack_affine(format, parts)
    _check_parts(format, parts)
    parts.check_finite(format)
    n, k = len(parts.quants), parts.quants.shape[1] * format.step
    tiles = -(-n // TILE)
    if format.is_float:
        quants = pad_rows(pad_columns(parts.quants.astype("<u2"), format.block))
        columns = quants.reshape(tiles, TILE, -1)
        return np.ascontiguousarray(columns.transpose(0, 2, 1)).view(np.uint8).reshape(tiles, -1)
    whole = format.block // format.step
    quants = pad_rows(pad_columns(parts.quants, whole, format.offset), format.offset)
    blocks = np.empty((tiles, format.blocks(k)), _block(format))
    groups = format.blocks(k) * format.block // GROUP
    if isinstance(format, Grid):
        planes = spread_vectors(format, quants, groups)
    else:
        planes = spread_planes(format, quants, groups)
    blocks["planes"] = planes.reshape(*blocks.shape, format.block // GROUP, -1)
    for name, array in _stored(format, parts).items():
        padded = pad_rows(array).reshape(tiles, TILE, blocks.shape[1], -1)
        blocks[name] = padded.transpose(0, 2, 3, 1)
    packed = blocks.view(np.uint8).reshape(tiles, -1)
    if format.scales is Scales.UNITS:
        assert parts.d is not None
        packed = np.hstack([packed, pad_rows(parts.d).reshape(tiles, TILE).view(np.uint8)])
    return packed


def unpack_parts(format: Format, packed: Bytes, n: int, k: int) -> Parts:
    """Undoes `pack_parts`.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    _check_packed(format, packed, n, k)
    if isinstance(format, Affine):
        return unpack_affine(format, packed, n, k)
    tiles = len(packed)
    packed = np.ascontiguousarray(packed)
    if format.is_float:
        columns = packed.view("<u2").reshape(tiles, -1, TILE).transpose(0, 2, 1)
        return Parts(np.ascontiguousarray(columns.reshape(tiles * TILE, -1)[:n, :k]))
    units = None
    if format.scales is Scales.UNITS:
        units = np.ascontiguousarray(packed[:, -2 * TILE :]).view(np.float16).reshape(-1, 1)[:n]
        packed = np.ascontiguousarray(packed[:, : -2 * TILE])
    blocks = packed.view(_block(format)).reshape(tiles, -1)
    padded = blocks.shape[1] * format.block
    planes = np.ascontiguousarray(blocks["planes"])
    if isinstance(format, Grid):
        quants = gather_vectors(format, planes, padded)[:n, : -(-k // format.step)]
    else:
        quants = gather_quants(format, planes, padded)[:n, :k]
    stored = {
        name: blocks[name].transpose(0, 3, 1, 2).reshape(tiles * TILE, -1)[:n]
        for name in _block(format).names or ()
        if name != "planes"
    }
    scales, minima = _restored(format, stored, n)
    return Parts(quants, scales, minima, stored.get("d", units), stored.get("dmin"))


def _tiles_together(k: int) -> int:
    return max(1, _CHUNK // (TILE * k))


def _chunks(n: int, k: int) -> list[tuple[int, slice]]:
    """First tile and rows of each chunk."""
    tiles = _tiles_together(k)
    return [
        (tile, slice(tile * TILE, min(n, (tile + tiles) * TILE)))
        for tile in range(0, -(-n // TILE), tiles)
    ]


def _block(format: Format) -> np.dtype[Any]:
    """One block of a tile, as the kernels read it."""
    groups = format.block // GROUP
    group = (groups, TILE * format.quant_bytes // groups)
    planes = [("planes", "u1", group)]
    if format.block == GROUP:
        kind = "<f2" if format.scales is Scales.HALF else "u1"
        names = ["scales"] + ["minima"] * format.minimum
        return np.dtype(planes + [(name, kind, (1, TILE)) for name in names])
    names = ["d"] + ["dmin"] * format.minimum
    factors = [(name, f"<f{format.factor_bytes}", (1, TILE)) for name in names]
    count = format.block_bytes - format.factor_bytes * len(factors) - format.quant_bytes
    scales = [("scales", "u1", (count, TILE))] if count else []
    return np.dtype(scales + factors + planes)


def _stored(format: Format, parts: Parts) -> dict[str, Array]:
    """The fields of a block beside its planes, each [N, blocks * values]."""
    fields = {"scales": parts.scales, "minima": parts.minima, "d": parts.d, "dmin": parts.dmin}
    if format.scales is Scales.UNITS:
        fields["d"] = None
    if format.block == SUPER_BLOCK:
        fields["scales"] = _small_scales(format, parts)
        fields["minima"] = None
    return {name: array for name, array in fields.items() if array is not None}


def _small_scales(format: Format, parts: Parts) -> Array | None:
    """Scales and minima of super-blocks as the bytes that are stored."""
    if parts.scales is None:
        return None
    scales = parts.scales.view(np.uint8)
    if format.scales is Scales.FOUR:
        assert parts.minima is not None
        return scales | parts.minima << 4
    if format.scales in (Scales.SIGNED_BYTE, Scales.SMALL_FLOAT):
        return scales
    if format.scales is Scales.ODD:
        return scales[:, ::2] | scales[:, 1::2] << 4
    n, per_block = len(scales), SUPER_BLOCK // format.group
    values = scales.reshape(n, -1, per_block)
    if parts.minima is not None:
        values = np.concatenate([values, parts.minima.reshape(n, -1, per_block)], axis=2)
    fours = values.reshape(n, -1, 4)
    spread = fours[..., 3:] >> np.array([0, 2, 4], np.uint8) & 3
    return (fours[..., :3] | spread << 6).reshape(n, -1)


def _restored(
    format: Format, stored: dict[str, Array], n: int
) -> tuple[Array | None, Array | None]:
    """Undoes `_stored` for scales and minima."""
    scales = stored.get("scales")
    if scales is None or format.block == GROUP:
        return scales, stored.get("minima")
    if format.scales is Scales.FOUR:
        return scales & 15, scales >> 4
    if format.scales is Scales.SIGNED_BYTE:
        return scales.view(np.int8), None
    if format.scales is Scales.SMALL_FLOAT:
        return scales, None
    if format.scales is Scales.ODD:
        return np.stack([scales & 15, scales >> 4], axis=2).reshape(n, -1), None
    threes = scales.reshape(n, -1, 3)
    last = np.bitwise_or.reduce(threes >> 6 << np.array([0, 2, 4], np.uint8), axis=2)
    values = np.concatenate([threes & 63, last[..., None]], axis=2)
    if not format.minimum:
        return values.reshape(n, -1), None
    both = values.reshape(n, -1, 2, SUPER_BLOCK // format.group)
    return both[:, :, 0].reshape(n, -1), both[:, :, 1].reshape(n, -1)


def _check_packed(format: Format, packed: Bytes, n: int, k: int) -> None:
    if k < 1 or n < 1:
        raise ValueError(f"n is {n} and k is {k}, expected positive numbers")
    expected = format.packed_shape(n, k)
    if packed.dtype != np.uint8 or packed.shape != expected:
        raise ValueError(
            f"packed is {packed.dtype} {list(packed.shape)}, expected uint8 {list(expected)} "
            f"for {format.name}"
        )


def _check_parts(format: Format, parts: Parts) -> None:
    n, columns = parts.quants.shape
    if n == 0 or columns == 0:
        raise ValueError(f"quants is [{n}, {columns}], expected [N, K] with positive N and K")
    k = columns * format.step
    if not format.is_float and parts.quants.size and int(parts.quants.max()) >> format.bits:
        raise ValueError(f"quants holds {parts.quants.max()}, expected {format.bits} bits")
    grouped = format.scales not in (Scales.NONE, Scales.FLOAT)
    blocks = format.blocks(k) if format.block == SUPER_BLOCK else 0
    groups = format.blocks(k) * format.block // format.group
    if format.scales is Scales.UNITS:
        blocks = 1
    expected = {
        "scales": groups if grouped else 0,
        "minima": groups if format.minimum else 0,
        "d": blocks,
        "dmin": blocks if format.minimum and format.scales is not Scales.UNITS else 0,
    }
    for name, columns in expected.items():
        array = getattr(parts, name)
        shape = None if array is None else array.shape
        if shape != ((n, columns) if columns else None):
            raise ValueError(
                f"{name} has shape {shape}, expected {(n, columns) if columns else None}"
            )
