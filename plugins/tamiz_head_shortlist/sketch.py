r"""The sketch: an estimate of the logits W x from few bits of W, made for inputs x of the head.

    P = the first principal axes of the centred x, [dims, K], λ their variances
    Q = √(mean √λ) · (random rotation) · diag(λ^−¼) · the other axes, [K − dims, K]
    S = W Pᵀ in 4 or 8 bits, [N, dims]
    R = γ · signs of (W − S P) Q⁻¹, γ one number a row, [N, K − dims]
    R' = γ' · signs of (W − S P) Q⁻¹ − R
    e = S P x + R Q x + offset,     e' = e + R' Q x + offset'

    E = W − S P − R Q,    offset = E μ + σ²/2,    σ²_n = E_n Cov(x) E_nᵀ
    offset' = what makes the offset of e' the one of E − R' Q

S, R, R', P and Q stand for what they are after quantisation, so that the mean error is 0 whatever
they lost. The principal axes hold most of x's variance; but x also points at single rows of W (the
model copies a name, ends a word), and few axes know nothing of those. One bit of everything that is
left does, and the rotation makes all of these bits worth the same (as in RaBitQ, arXiv 2405.12497).
An error of a sign costs as much as x varies there, so Q stretches x and the weight comes squeezed:
λ^−¼ is halfway to white inputs, and loses less than these where a text is unlike the calibration.
R' halves what R leaves (the greedy binary expansion of network sketching, arXiv 1706.02021); it is
read for the tiles that e favours only.

σ²_n is the variance of the error of logit n. With a normal error the expected exp(logit) is exp(e)
only with σ²/2 in the estimate (the mean of a log-normal variable): a softmax over estimates then
has the right mass, and tokens that the sketch knows badly are looked at sooner.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz_head_shortlist.quantize import pack, signs
from tamiz_ops.formats import TILE

Float = NDArray[np.float32]

#: A sketch's tensors in the order of the op's inputs.
TENSORS = ("project", "sketch", "offset", "signs", "refinement", "refined_offset")
_SEED = 0
#: Of the variances that Q divides by, so that directions that hardly occur stay finite.
_LEAST_SHARE = 1e-4
#: Rows of the weight that are in memory in other forms at a time, whole tiles.
_ROWS = 4096


@dataclass(frozen=True)
class Sketch:
    """The estimates, packed.

    Attributes:
        tensors: ``project`` (P above Q), ``sketch`` (S), ``offset``, and where there are other
            directions than the axes ``signs`` (R), ``refinement`` (R') and ``refined_offset``, as
            the op HeadShortlist takes them.
        project: P above Q as the op multiplies with them, ``[K, K]``.
        dims: Rows of P.
        bits: Of a number of S.
    """

    tensors: dict[str, NDArray[Any]]
    project: Float
    dims: int
    bits: int

    def estimate(self, x: Float) -> tuple[Float, Float]:
        """e and e' ``[S, N]`` of inputs ``[S, K]``."""
        n, dims, directions = len(self.tensors["offset"]), self.dims, len(self.project) - self.dims
        z = x @ self.project.T
        coarse = np.empty((len(x), n), np.float32)
        fine = np.empty_like(coarse) if directions else coarse
        for part in _chunks(n):
            count, tiles = part.stop - part.start, slice(part.start // TILE, -(-part.stop // TILE))
            s = tamiz_ops.dequantize(self.tensors["sketch"][tiles], self.bits, count, dims)
            e = z[:, :dims] @ s.T + self.tensors["offset"][part]
            if directions:
                r, finer = (
                    tamiz_ops.dequantize_signs(self.tensors[name][tiles], count, directions)
                    for name in ("signs", "refinement")
                )
                e += z[:, dims:] @ r.T
                finer_e = e + z[:, dims:] @ finer.T
                fine[:, part] = finer_e + self.tensors["refined_offset"][part]
            coarse[:, part] = e
        return coarse, fine


@dataclass(frozen=True)
class _Inputs:
    """Mean, and a root of the covariance: Cov = root · rootᵀ."""

    mean: NDArray[np.float64]
    root: Float

    def offset(self, error: Float) -> Float:
        """E μ + σ²/2 of rows E ``[N, K]``."""
        expected_error = error @ self.mean + np.square(error @ self.root).sum(axis=1) / 2
        rounded: Float = expected_error.astype(np.float32)
        return rounded


def make_sketch(weight: Float, x: Float, dims: int, bits: int) -> Sketch:
    """The sketch of ``[N, K]`` that the inputs ``[S, K]`` call for.

    Args:
        weight: W.
        x: Inputs.
        dims: Rows of P.
        bits: Of a number of S, 4 or 8.
    """
    n, k = weight.shape
    mean = x.mean(axis=0, dtype=np.float64)
    centred = x - mean
    variances, axes = np.linalg.eigh(centred.T @ centred / len(x))
    variances, basis = np.maximum(variances[::-1], 0), axes[:, ::-1].T
    inputs = _Inputs(mean, (basis.T * np.sqrt(variances)).astype(np.float32))
    stretch, squeeze = _other_directions(variances[dims:], basis[dims:])
    project = pack(np.concatenate([basis[:dims], stretch]).astype(np.float32), 8)
    p = tamiz_ops.dequantize(project, 8, k, k)
    parts = [_of_rows(weight[part], p, squeeze, inputs, bits) for part in _chunks(n)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Sketch({"project": project, **joined}, p, dims, bits)


def _of_rows(
    weight: Float, p: Float, squeeze: Float, inputs: _Inputs, bits: int
) -> dict[str, NDArray[Any]]:
    """The tensors of some rows of the head; no row needs another one."""
    (n, k), directions = weight.shape, len(squeeze)
    dims = k - directions
    sketch = pack(weight @ p[:dims].T, bits)
    error = weight - tamiz_ops.dequantize(sketch, bits, n, dims) @ p[:dims]
    tensors: dict[str, NDArray[Any]] = {"sketch": sketch}
    if directions:
        planes = []
        left = error @ squeeze.T
        for name in ("signs", "refinement"):
            tensors[name] = tamiz_ops.pack_signs(*signs(left))
            planes.append(tamiz_ops.dequantize_signs(tensors[name], n, directions))
            left -= planes[-1]
        error -= planes[0] @ p[dims:]
        tensors["offset"] = inputs.offset(error)
        error -= planes[1] @ p[dims:]
        tensors["refined_offset"] = inputs.offset(error) - tensors["offset"]
    else:
        tensors["offset"] = inputs.offset(error)
    return tensors


def _chunks(n: int) -> Iterator[slice]:
    """Rows that are in memory as float32 at a time, whole tiles of them."""
    for start in range(0, n, _ROWS):
        yield slice(start, min(n, start + _ROWS))


def _other_directions(
    variances: NDArray[np.float64], basis: NDArray[np.float64]
) -> tuple[Float, Float]:
    """Q, and the transpose of its inverse on the span of the basis ``[K − dims, K]``."""
    count = len(basis)
    rotation, _ = np.linalg.qr(np.random.default_rng(_SEED).standard_normal((count, count)))
    floor = _LEAST_SHARE * variances.mean() if count else 0
    factors = np.maximum(variances, floor) ** 0.25
    factors /= np.sqrt(np.square(factors).mean()) if count else 1
    stretch = rotation @ (basis / factors[:, None])
    squeeze = rotation @ (basis * factors[:, None])
    return stretch.astype(np.float32), squeeze.astype(np.float32)
