r"""The sketch: an estimate of the logits W x from few bits of W, made for inputs x of the head.

    P = the first principal axes of the centred x, [dims, K]
    Q = an orthogonal basis of the rest, rotated at random, [K − dims, K]
    S = W Pᵀ in 4 or 8 bits, [N, dims]
    R = γ · levels of (W − S P) Qᵀ in 1 or 2 bits, γ one number a row, [N, K − dims]
    e = S P x + R Q x + offset

    E = W − S P − R Q,    offset = E μ + σ²/2,    σ²_n = E_n Cov(x) E_nᵀ

S, R, P and Q stand for what they are after quantisation, so that the mean error is 0 whatever they
lost. The principal axes hold most of x's variance; but x also points at single rows of W (the
model copies a name, ends a word), and few axes know nothing of those. One bit of everything that is
left does, and the rotation makes all of these bits worth the same (as in RaBitQ, arXiv 2405.12497).

σ²_n is the variance of the error of logit n. With a normal error the expected exp(logit) is exp(e)
only with σ²/2 in the estimate (the mean of a log-normal variable): a softmax over estimates then
has the right mass, and tokens that the sketch knows badly are looked at sooner.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz_head_shortlist.quantise import levels, pack

Float = NDArray[np.float32]

_SEED = 0
#: Rows of errors in memory at a time.
_ROWS = 1024


@dataclass(frozen=True)
class Sketch:
    """The estimate, packed.

    Attributes:
        tensors: ``project`` (P above Q), ``sketch`` (S), ``signs`` (R; not without planes) and
            ``offset``, as the op HeadShortlist takes them.
        project: P above Q as the op multiplies with them.
        weight: S beside R as the op multiplies with them, ``[N, rows of project]``.
    """

    tensors: dict[str, NDArray[np.generic]]
    project: Float
    weight: Float

    def estimate(self, x: Float) -> Float:
        """e ``[S, N]`` of inputs ``[S, K]``."""
        e: Float = (x @ self.project.T) @ self.weight.T
        e += self.tensors["offset"]
        return e


def make_sketch(weight: Float, x: Float, dims: int, bits: int, planes: int) -> Sketch:
    """The sketch of ``[N, K]`` that the inputs ``[S, K]`` call for.

    Args:
        weight: W.
        x: Inputs.
        dims: Rows of P.
        bits: Of a number of S, 4 or 8.
        planes: Bits of a number of R, 0 for none, 1 or 2.
    """
    n, k = weight.shape
    mean = x.mean(axis=0, dtype=np.float64)
    centred = x - mean
    covariance = centred.T @ centred / len(x)
    variances, axes = np.linalg.eigh(covariance)
    basis = axes[:, ::-1].T
    rest = k - dims if planes else 0
    rotation, _ = np.linalg.qr(np.random.default_rng(_SEED).standard_normal((rest, rest)))
    rows = np.concatenate([basis[:dims], rotation @ basis[k - rest :]])
    project = pack(np.ascontiguousarray(rows, np.float32), 8)
    p = tamiz_ops.dequantize(project, 8, dims + rest, k)
    sketch = pack(weight @ p[:dims].T, bits)
    s = tamiz_ops.dequantize(sketch, bits, n, dims)
    tensors = {"project": project, "sketch": sketch}
    if rest:
        left = (weight - s @ p[:dims]) @ p[dims:].T
        tensors["signs"] = tamiz_ops.pack_signs(*levels(left, planes), planes)
        r = tamiz_ops.dequantize_signs(tensors["signs"], planes, n, rest)
        s = np.concatenate([s, r], axis=1)
    root = (axes * np.sqrt(np.maximum(variances, 0))).astype(np.float32)
    offset = np.empty(n, np.float32)
    for start in range(0, n, _ROWS):
        part = slice(start, start + _ROWS)
        error = weight[part] - s[part] @ p
        offset[part] = error @ mean + np.square(error @ root).sum(axis=1) / 2
    return Sketch({**tensors, "offset": offset}, p, s)
