"""Weights of which some entries are stored and the rest comes from a hash.

`src/kernels/deltas.h` shows every byte: a tile of 16 outputs is a sequence of records, one for
every group of 32 inputs that exists, each in the smallest of three forms: all of its weights, a bit
for each and the stored values, or a place and value for each.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import GROUP, TILE
from tamiz_ops.pack import dequantize, pack_int4, pack_int8

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]

FULL, BITS, PLACES = range(3)
#: Bytes after the last record.
DELTA_PADDING = 64

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_HALF_MAX = float(np.finfo(np.float16).max)
_PLACES = TILE * GROUP


def splitmix64(seed: int, counters: Array) -> npt.NDArray[np.uint64]:
    """Outputs of the generator splitmix64 (Steele et al. 2014), by number.

    Args:
        seed: the generator's first state.
        counters: which outputs, from 0 on; any shape.

    Returns:
        uint64, the shape of `counters`.
    """
    with np.errstate(over="ignore"):
        z: npt.NDArray[np.uint64] = (
            np.uint64(seed % 2**64) + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
        )
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        return z


def hash_weights(n: int, k: int, seed: int = 0) -> npt.NDArray[np.int8]:
    """hash(row, column), odd numbers -15 to 15, the same on every machine.

    It is 2 * nibble - 15 of splitmix64's output number row / 2 * 2^32 + column / 8. The even row
    has the low four bytes; columns 8v to 8v + 3 have the low nibbles, the other four the high ones.

    Args:
        n: rows.
        k: columns.
        seed: of the generator.

    Returns:
        int8 [n, k].
    """
    pairs = np.arange(-(-n // 2), dtype=np.uint64)[:, None] << np.uint64(32)
    z = splitmix64(seed, pairs | np.arange(-(-k // 8), dtype=np.uint64))
    both = z.astype("<u8").view(np.uint8).reshape(*z.shape, 2, 1, 4)
    nibbles = np.concatenate([both & 15, both >> 4], axis=3)  # [pairs, words, 2 rows, 2, 4]
    rows = nibbles.transpose(0, 2, 1, 3, 4).reshape(2 * len(z), -1)[:n, :k]
    weights: npt.NDArray[np.int8] = (2 * rows.astype(np.int8) - 15).astype(np.int8)
    return weights


def quantize_groups(weight: Array, bits: int) -> tuple[Array, Halves, Halves | None]:
    """Rounds a weight to int4 or int8 levels of groups of 32 inputs.

    4 bits: scale = (max - min) / 15 and minimum = min, 8 bits: scale = max |w| / 127, in fp16. What
    lies on the levels of ggml's Q4_1 or Q8_0 comes back exactly.

    Args:
        weight: float32 [N, K].
        bits: 4 or 8.

    Returns:
        quants uint8 or int8 [N, K], scales float16 [N, ceil(K / 32)], minima likewise or None.

    Raises:
        ValueError: a weight is not finite, or a scale or minimum is too large for fp16.
    """
    n, k = weight.shape
    groups = np.pad(weight, ((0, 0), (0, -k % GROUP)), mode="edge").reshape(n, -1, GROUP)
    low, high = groups.min(axis=2), groups.max(axis=2)
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise ValueError("it holds weights that are not finite")
    scales = (
        (high - low) / np.float32(15) if bits == 4 else np.maximum(high, -low) / np.float32(127)
    )
    if max(scales.max(initial=0), np.abs(low).max(initial=0) if bits == 4 else 0) > _HALF_MAX:
        raise ValueError(f"a group needs a scale or minimum above {_HALF_MAX:.0f}, fp16's largest")
    halves = scales.astype(np.float16)
    minima = low.astype(np.float16) if bits == 4 else None
    levels = groups if minima is None else groups - minima[..., None].astype(np.float32)
    s = halves.astype(np.float32)
    inverse = np.divide(np.float32(1), s, out=np.zeros_like(s), where=s != 0)
    quants = np.rint(levels * inverse[..., None]).reshape(n, -1)[:, :k]
    if minima is None:
        return np.clip(quants, -127, 127).astype(np.int8), halves, None
    return np.clip(quants, 0, 15).astype(np.uint8), halves, minima


def pack_deltas(
    stored: npt.NDArray[np.bool_],
    exists: npt.NDArray[np.bool_],
    quants: Array,
    scales: Halves | None = None,
    minima: Halves | None = None,
) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Packs the stored weights: scale * quant, with minima scale * quant + minimum, or fp16.

    A record whose smallest form holds all weights stores those that `stored` leaves out as well.

    Args:
        stored: [N, K], which weights are stored.
        exists: [ceil(N / 16), ceil(K / 32)], which groups of a tile exist.
        quants: uint8 [N, K], 0 to 15, with minima (4 bits); int8 [N, K], -127 to 127, with scales
            alone (8 bits); else float16 [N, K], the weights themselves.
        scales: float16 [N, ceil(K / 32)], or None.
        minima: float16 [N, ceil(K / 32)], or None.

    Returns:
        The records, uint8, and where those of each tile begin, int64 [ceil(N / 16) + 1].

    Raises:
        ValueError: an argument has another type or shape, or a quant is out of its range.
    """
    n, k = quants.shape
    bits = 16 if scales is None else 8 if minima is None else 4
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    if stored.shape != (n, k) or exists.shape != (tiles, groups):
        raise ValueError(
            f"stored is {list(stored.shape)} and exists {list(exists.shape)}, "
            f"expected {[n, k]} and {[tiles, groups]}"
        )
    values, where = in_places(quants), in_places(stored)
    full, factor_bytes = _whole(quants, values, scales, minima)
    parts: list[bytes] = []
    starts = np.zeros(tiles + 1, np.int64)
    for tile in range(tiles):
        size = 0
        for group in np.flatnonzero(exists[tile]):
            there = where[tile, group]
            form, payload = _smallest(
                values[tile, group], there, bits, factor_bytes[tile, group], full[tile, group]
            )
            parts += [np.array([group, form << 14 | len(payload)], "<u2").tobytes(), payload]
            size += 4 + len(payload)
        starts[tile + 1] = starts[tile] + size
    parts.append(bytes(DELTA_PADDING))
    return np.frombuffer(b"".join(parts), np.uint8), starts


def unpack_deltas(
    deltas: Array, starts: Array, *, bits: int, n: int, k: int, base: float = 0.0, seed: int = 0
) -> Array:
    """The weight that the records of `pack_deltas` stand for.

    Args:
        deltas: uint8, the records.
        starts: int64 [tiles + 1], where those of a tile begin.
        bits: of a stored weight: 4, 8 or 16.
        n: outputs.
        k: inputs.
        base: factor of the hash.
        seed: of the hash.

    Returns:
        float64 [n, k].
    """
    groups = -(-k // GROUP)
    factor_bytes = {4: 4, 8: 2, 16: 0}[bits] * TILE
    places = np.zeros((len(starts) - 1, groups, _PLACES))
    hashed = hash_weights((len(starts) - 1) * TILE, groups * GROUP, seed)
    noise = in_places(float(np.float32(base)) * hashed)
    for tile, (at, end) in enumerate(pairwise(starts)):
        while at < end:
            group, tail = np.frombuffer(deltas[at : at + 4].tobytes(), "<u2")
            form, size = divmod(int(tail), 1 << 14)
            payload = deltas[at + 4 : at + 4 + size]
            at += 4 + size
            if form == FULL and bits == 16:
                places[tile, group] = payload.view("<f2")
                continue
            if form == FULL:
                weight = dequantize(payload[np.newaxis], bits, TILE, GROUP)
                places[tile, group] = in_places(weight)[0, 0]
                continue
            stored, quants = _stored(payload[factor_bytes:], form, bits)
            factors = np.frombuffer(payload[:factor_bytes].tobytes(), "<f2").reshape(-1, TILE)
            output = np.flatnonzero(stored) // 4 % TILE
            values = quants.astype(np.float64)
            if bits < 16:
                values *= factors[0, output]
            places[tile, group] = noise[tile, group]
            places[tile, group, stored] = values + (factors[1, output] if bits == 4 else 0)
    return from_places(places, n, k)


def _whole(
    quants: Array, values: Array, scales: Halves | None, minima: Halves | None
) -> tuple[Bytes, Bytes]:
    """Records that hold everything, and the scales and minima of others: [tiles, groups, bytes]."""
    if scales is None:
        full: Bytes = values.astype("<f2").view(np.uint8)
        return full, full[:, :, :0]
    factors = 1 if minima is None else 2
    packed = pack_int8(quants, scales) if minima is None else pack_int4(quants, scales, minima)
    full = packed.reshape(*values.shape[:2], -1)
    return full, full[:, :, -factors * TILE * 2 :]


def _stored(payload: Array, form: int, bits: int) -> tuple[Array, Array]:
    """Where a record stores values, bool [512], and their quants."""
    count = _PLACES
    if form == PLACES:
        number = len(payload) * 2 // 5 if bits == 4 else len(payload) // (2 + bits // 8)
        stored = np.zeros(count, bool)
        stored[np.frombuffer(payload[: 2 * number].tobytes(), "<u2")] = True
        return stored, _quants(payload[2 * number :], bits)[:number]
    stored = np.unpackbits(payload[: count // 8], bitorder="little").astype(bool)
    quants, at = [], count // 8
    for here in np.count_nonzero(stored.reshape(8, 64), axis=1):
        size = (here + 1) // 2 if bits == 4 else here * bits // 8
        quants.append(_quants(payload[at : at + size], bits)[:here])
        at += size
    return stored, np.concatenate(quants)


def _quants(packed: Array, bits: int) -> Array:
    if bits > 4:
        return packed.view(np.int8 if bits == 8 else "<f2")
    return np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)


def in_places(matrix: Array) -> Array:
    """`matrix` [N, K] as [tiles, groups, 512]: input i of output o at 64 (i/4) + 4 o + i % 4."""
    n, k = matrix.shape
    padded = np.zeros((-(-n // TILE) * TILE, -(-k // GROUP) * GROUP), matrix.dtype)
    padded[:n, :k] = matrix
    split = padded.reshape(-1, TILE, padded.shape[1] // GROUP, GROUP // 4, 4)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).reshape(
        len(split), split.shape[2], _PLACES
    )


def from_places(places: Array, n: int, k: int) -> Array:
    """Undoes `in_places`."""
    tiles, groups, _ = places.shape
    split: Array = places.reshape(tiles, groups, GROUP // 4, TILE, 4).transpose(0, 3, 1, 2, 4)
    return split.reshape(tiles * TILE, groups * GROUP)[:n, :k]


def _smallest(
    values: Array, stored: Array, bits: int, factors: Bytes, full: Bytes
) -> tuple[int, bytes]:
    """The form that takes the fewest bytes, and the payload."""
    count = int(np.count_nonzero(stored))
    by_vector = np.count_nonzero(stored.reshape(8, 64), axis=1)
    value_bytes = int(((by_vector + 1) // 2).sum()) if bits == 4 else count * bits // 8
    flat_bytes = (count * bits + 7) // 8
    sizes = (full.size, factors.size + _PLACES // 8 + value_bytes)
    if factors.size + 2 * count + flat_bytes < min(sizes):
        places = np.flatnonzero(stored)
        chosen = [factors, places.astype("<u2").view(np.uint8), _join(values[places], bits)]
        form = PLACES
    elif sizes[1] < sizes[0]:
        bitmap = np.packbits(stored, bitorder="little")
        chosen = [factors, bitmap]
        for v in range(8) if bits == 4 else ():
            chosen.append(_join(values[64 * v : 64 * v + 64][stored[64 * v : 64 * v + 64]], bits))
        if bits > 4:
            chosen.append(_join(values[stored], bits))
        form = BITS
    else:
        return FULL, full.tobytes()
    return form, b"".join(part.tobytes() for part in chosen)


def _join(values: Array, bits: int) -> Bytes:
    """Values as bytes; of 4 bits two a byte, the low nibble first."""
    if bits > 4:
        return values.view(np.uint8)
    padded = np.zeros(len(values) + len(values) % 2, np.uint8)
    padded[: len(values)] = values
    pairs: Bytes = padded[::2] | padded[1::2] << np.uint8(4)
    return pairs
