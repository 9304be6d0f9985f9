"""Fits a weight to a format with feedback: errors of later inputs make up for those of earlier.

    minimise    ‖(W − Ŵ) R‖²,    R Rᵀ = the second moment of the inputs, `tamiz_ops.formats.factor`

The inputs are rounded in order (LDLQ; GPTQ computes the same): with the errors e of the inputs
before j, input j is rounded to the level nearest to w_j + Σ_i e_i R_ij / R_jj. Scales and minima of
a block are searched when its turn comes, for the weights that the feedback gives, with the costs
R_jj² that errors have when later inputs make up for them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tamiz_ops import _native
from tamiz_ops.formats.declared import SUPER_BLOCK, TILE, Format, Scales
from tamiz_ops.formats.factor import Factor
from tamiz_ops.formats.fitting import check_weight, costs, description, fit_parts
from tamiz_ops.formats.packing import pack_parts
from tamiz_ops.formats.parts import Array, Floats, Parts, pad_columns

_ROWS = 4096  # outputs that are fitted at a time


def quantize_with_feedback(format: Format, values: Floats, factor: Factor) -> npt.NDArray[np.uint8]:
    """Packs float weights in a format, fitted with feedback.

    Args:
        format: One of `FITTED`.
        values: float32 ``[N, K]``, finite.
        factor: R; see `tamiz_ops.formats.factor.feedback_factor`.

    Returns:
        uint8 ``[ceil(N / 16), tile bytes]``.

    Raises:
        ValueError: A shape does not fit, or a scale is too large for fp16.
    """
    check_weight(format, values)
    n, k = values.shape
    if factor.inputs != k:
        raise ValueError(f"factor is of {factor.inputs} inputs, expected {k}")
    r = factor.padded(format.blocks(k) * format.block)
    packed = np.empty(format.packed_shape(n, k), np.uint8)
    for start in range(0, n, _ROWS):
        stop = min(n, start + _ROWS)
        parts = _fit(format, np.ascontiguousarray(values[start:stop], np.float32), r)
        packed[start // TILE : -(-stop // TILE)] = pack_parts(format, parts)
    return packed


def _fit(format: Format, values: Floats, r: Factor) -> Parts:
    """Fits some outputs."""
    weight = pad_columns(values, format.block)
    whole = format.scales is Scales.UNITS  # one factor of each output
    width = weight.shape[1] if whole else max(format.block, SUPER_BLOCK)
    carry, fitted = r.carry(len(weight)), []
    for begin in range(0, weight.shape[1], width):
        block = slice(begin, min(begin + width, weight.shape[1]))
        carried, own = carry.to(block), r.own(block)
        diagonal = np.diagonal(own)
        target = weight[:, block] + carried / diagonal
        parts = fit_parts(format, target, costs(np.square(diagonal), len(diagonal)))
        scale, minimum = _factors(format, parts)
        quants, errors = _native.round_with_feedback(
            description(format), weight[:, block], carried, own, scale, minimum
        )
        carry.add(block, errors)
        fitted.append((parts, quants + np.uint8(format.name == "q8_0")))
    return _joined(fitted, values.shape[1])


def _factors(format: Format, parts: Parts) -> tuple[Floats, Floats]:
    """Scale and minimum of every group, float32 ``[N, groups]``."""
    scale, minimum = parts.factors(format)
    if minimum is None:
        minimum = np.zeros_like(scale)
    if format.scales is Scales.UNITS:
        assert parts.d is not None
        unit = parts.d.astype(np.float32) / np.float32(256)
        scale, minimum = scale * unit, minimum * unit
    return scale, minimum


def _joined(fitted: list[tuple[Parts, npt.NDArray[np.uint8]]], k: int) -> Parts:
    """Blocks side by side."""

    def beside(name: str) -> Array | None:
        arrays = [getattr(parts, name) for parts, _ in fitted]
        return None if arrays[0] is None else np.hstack(arrays)

    quants = np.hstack([quants for _, quants in fitted])[:, :k]
    return Parts(quants, beside("scales"), beside("minima"), beside("d"), beside("dmin"))
