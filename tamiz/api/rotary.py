"""The frequencies that a table of cosines and sines was made of.

    cos[p, i] = a · cos(p · f[i]),   sin[p, i] = a · sin(p · f[i])

A table says f only within its rounding: f[i] is unwrapped at positions 1, 2, 4, … and then chosen
among the neighbouring numbers of float32 so that float32 angles give the table best.
"""

from __future__ import annotations

import numpy as np

#: Neighbours of the unwrapped frequency that are tried, on each side.
_NEIGHBOURS = 6
#: Rows of a table that are compared.
_ROWS = 256
#: What a table of a type may differ by, besides the rounding of the angle.
_TOLERANCE = {2: 2e-3, 4: 2e-6, 8: 2e-6}
#: A float32 angle is rounded by this part of it.
_ANGLE_ROUNDING = 2.0**-23


def rotary_frequencies(cos: np.ndarray, sin: np.ndarray) -> tuple[np.ndarray, float]:
    """Frequencies ``[R/2]`` in float32, and the factor a.

    Args:
        cos: ``[positions, R/2]``.
        sin: The same shape.

    Raises:
        ValueError: The tables are not those of constant frequencies.
    """
    if cos.dtype.kind != "f":  # bfloat16
        cos, sin = cos.astype(np.float32), sin.astype(np.float32)
    if cos.shape != sin.shape or cos.ndim != 2 or len(cos) < 2:
        raise ValueError(
            f"the rotary tables are {list(cos.shape)} and {list(sin.shape)}, expected two of "
            "[positions, rotated / 2]"
        )
    tolerance = _TOLERANCE[cos.dtype.itemsize]
    wide = cos.astype(np.float64), sin.astype(np.float64)
    factor = float(wide[0][0, 0])
    if not factor > 0:
        raise ValueError(f"the rotary tables begin with cosine {factor:g}, expected more than 0")
    unit = np.stack(wide) / factor
    chosen = _nearest(unit, _unwrapped(unit))
    rows = _rows(len(cos))
    angles = _angles(rows, chosen)
    error = np.abs(_unit(angles) - unit[:, rows]).max(axis=0)
    if not (error <= tolerance + _ANGLE_ROUNDING * angles).all():
        raise ValueError(
            "the rotary tables are not cos and sin of positions × constant frequencies"
        )
    return chosen, factor


def rotary_tables(frequency: np.ndarray, positions: int, factor: float = 1.0) -> list[np.ndarray]:
    """Cosines and sines ``[positions, R/2]``, float32, of float32 angles.

    Args:
        frequency: Float32 ``[R/2]``.
        positions: Number of rows.
        factor: Of both.
    """
    unit = _unit(_angles(np.arange(positions), frequency))
    return [(factor * table).astype(np.float32) for table in unit]


def _unwrapped(unit: np.ndarray) -> np.ndarray:
    """Frequencies in float64, from angles at positions that double."""
    position = 1
    frequency = np.arctan2(unit[1, 1], unit[0, 1])
    while 2 * position < unit.shape[1]:
        position *= 2
        angle = np.arctan2(unit[1, position], unit[0, position])
        turns = np.round((frequency * position - angle) / (2 * np.pi))
        frequency = (angle + 2 * np.pi * turns) / position
    return np.asarray(frequency)


def _nearest(unit: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """The numbers of float32 near `frequency` whose angles give the table best."""
    rows = _rows(unit.shape[1])
    start = frequency.astype(np.float32)
    best, least = start, np.full(start.shape, np.inf)
    for step in sorted(range(-_NEIGHBOURS, _NEIGHBOURS + 1), key=abs):
        tried = start + np.float32(step) * np.spacing(start)
        error = np.abs(_unit(_angles(rows, tried)) - unit[:, rows]).sum(axis=(0, 1))
        best, least = np.where(error < least, tried, best), np.minimum(error, least)
    return best.astype(np.float32)


def _rows(count: int) -> np.ndarray:
    """The first positions, and others over the whole table."""
    spread = np.linspace(0, count - 1, min(count, _ROWS)).astype(np.int64)
    return np.unique(np.concatenate([np.arange(min(count, _ROWS)), spread]))


def _angles(rows: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Float32 products, as models compute them."""
    return (rows[:, None].astype(np.float32) * frequency.astype(np.float32)).astype(np.float64)


def _unit(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angles), np.sin(angles)])
