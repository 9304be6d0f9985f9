r"""Factors of the second moments of inputs: R Rᵀ = H = Xᵀ X + diag(d), R upper triangular.

X are S samples ``[S, K]``. Where these are few, the part of R above its diagonal is that of U Vᵀ,
which takes 8 S bytes an input instead of 4 K, and 4 S² instead of K² / 3 multiplications. U = Xᵀ; V
and the diagonal follow from the last input j to the first, with M = I at first:

    R_jj² = d_j + u_jᵀ M u_j,    v_j = M u_j / R_jj,    M ← M − v_j v_jᵀ

so that R_ij = u_i · v_j for i < j (Cholesky's method for a diagonal and a low-rank update; Goldfarb
and Scheinberg, "A product-form Cholesky factorization method", 2004).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.parts import Floats

Doubles = npt.NDArray[np.float64]

#: Share of the mean second moment that is added to every input's: what is not measured well.
_DAMPING = 0.01
#: Inputs for each sample from which on products with U and V are fewer than those with R.
_FEW = 4
#: Inputs of a step from the last to the first.
_STEP = 128


class Factor(ABC):
    """R, in units of the root of the mean second moment."""

    @property
    @abstractmethod
    def inputs(self) -> int:
        """K."""

    @abstractmethod
    def padded(self, width: int) -> Factor:
        """The factor for more inputs, which are 0."""

    @abstractmethod
    def own(self, block: slice) -> Floats:
        """The rows and columns of R of some inputs, float32 ``[b, b]``."""

    @abstractmethod
    def carry(self, rows: int) -> Carry:
        """What is carried of `rows` outputs, which have no errors yet."""


class Carry(ABC):
    """E R of the errors E of the inputs so far, zero for all others."""

    @abstractmethod
    def to(self, block: slice) -> Floats:
        """The columns of E R of a block whose errors are not known, float32 ``[rows, b]``."""

    @abstractmethod
    def add(self, block: slice, errors: Floats) -> None:
        """Takes the errors ``[rows, b]`` of the block that follows."""


def feedback_factor(samples: Floats, diagonal: Floats, damping: float = _DAMPING) -> Factor:
    """R of the top of this file.

    Args:
        samples: X, float32 ``[S, K]``.
        diagonal: d, float32 ``[K]``.
        damping: Share of the mean of H's diagonal that is added to it.

    Raises:
        ValueError: H is not positive definite.
    """
    squares = np.square(samples, dtype=np.float64).sum(axis=0)
    mean = float((squares + diagonal).mean())
    if not 0 < mean < np.inf:
        raise ValueError(f"the mean second moment is {mean}, expected a positive number")
    scaled = samples / np.float32(np.sqrt(mean))
    added = diagonal.astype(np.float64) / mean + damping
    try:
        if _FEW * len(samples) <= samples.shape[1]:
            return _low_rank(scaled, added)
        moments = scaled.T @ scaled
        moments[np.diag_indices(len(moments))] += added.astype(np.float32)
        lower = np.linalg.cholesky(moments[::-1, ::-1])
    except np.linalg.LinAlgError as error:
        raise ValueError("the second moments are not positive definite") from error
    return _Dense(np.ascontiguousarray(lower[::-1, ::-1], np.float32))


def _low_rank(samples: Floats, added: Doubles) -> Factor:
    """R by the recursion of the top of this file, some inputs at a time."""
    count, inputs = samples.shape
    u, m = samples.T.astype(np.float64), np.eye(count)
    v, diagonal = np.empty((inputs, count), np.float32), np.empty(inputs, np.float32)
    for stop in range(inputs, 0, -_STEP):
        # The last input of the step comes first.
        order = np.arange(stop - 1, max(0, stop - _STEP) - 1, -1)
        products = u[order] @ m
        lower = np.linalg.cholesky(products @ u[order].T + np.diag(added[order]))
        solution = np.linalg.solve(lower, products)
        m -= solution.T @ solution
        v[order], diagonal[order] = solution, np.diagonal(lower)
    return _LowRank(np.ascontiguousarray(samples.T), v, diagonal)


@dataclass(frozen=True)
class _Dense(Factor):
    """All of R, ``[K, K]``."""

    r: Floats

    @property
    def inputs(self) -> int:
        return len(self.r)

    def padded(self, width: int) -> Factor:
        if width == self.inputs:
            return self
        r = np.eye(width, dtype=np.float32)
        r[: self.inputs, : self.inputs] = self.r
        return _Dense(r)

    def own(self, block: slice) -> Floats:
        return np.ascontiguousarray(self.r[block, block])

    def carry(self, rows: int) -> Carry:
        return _DenseCarry(self.r, np.zeros((rows, self.inputs), np.float32))


@dataclass(frozen=True)
class _DenseCarry(Carry):
    r: Floats
    errors: Floats

    def to(self, block: slice) -> Floats:
        carried: Floats = self.errors[:, : block.start] @ self.r[: block.start, block]
        return carried

    def add(self, block: slice, errors: Floats) -> None:
        self.errors[:, block] = errors


@dataclass(frozen=True)
class _LowRank(Factor):
    """U and V ``[K, S]``, and the diagonal of R ``[K]``."""

    u: Floats
    v: Floats
    diagonal: Floats

    @property
    def inputs(self) -> int:
        return len(self.diagonal)

    def padded(self, width: int) -> Factor:
        if width == self.inputs:
            return self
        more = width - self.inputs
        u, v = (np.pad(part, ((0, more), (0, 0))) for part in (self.u, self.v))
        return _LowRank(u, v, np.pad(self.diagonal, (0, more), constant_values=1))

    def own(self, block: slice) -> Floats:
        r: Floats = np.triu(self.u[block] @ self.v[block].T, 1)
        r[np.diag_indices(len(r))] = self.diagonal[block]
        return r

    def carry(self, rows: int) -> Carry:
        return _LowRankCarry(self, np.zeros((rows, self.u.shape[1]), np.float32))


@dataclass(frozen=True)
class _LowRankCarry(Carry):
    factor: _LowRank
    #: E U of the errors so far, ``[rows, S]``.
    sums: Floats

    def to(self, block: slice) -> Floats:
        carried: Floats = self.sums @ self.factor.v[block].T
        return carried

    def add(self, block: slice, errors: Floats) -> None:
        np.add(self.sums, errors @ self.factor.u[block], out=self.sums)  # the field is frozen
