r"""How close Ŵ is to W, as numbers that a gate can judge. Definitions for the docs too:

rel_l2       = ‖W − Ŵ‖ / ‖W‖
cos_*_w      : over outputs n,   cos(W_n, Ŵ_n)                              W_n: row n
cos_*_x      : over samples x,   cos(W x, Ŵ x)
cos_*_x_w    : over samples x,   Σ_k x_k² ⟨W_k, Ŵ_k⟩ / √(Σ_k x_k² ‖W_k‖² · Σ_k x_k² ‖Ŵ_k‖²)

with W_k column k. The last one weights every input channel with the sample's own energy and leaves
out what is common to all samples (their mean makes cos(W x, Ŵ x) look good); it is exact for errors
that do not depend on each other between channels. Without samples the imatrix replaces them.
``mean`` is the mean, ``p05`` the 5 % quantile (the tail predicts collapse better than the mean).
Two vectors of zeros are alike (1), one vector of zeros is not (0).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import Statistics

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_ELEMENTS = 1 << 20
#: Largest number of samples that are compared. A head has thousands, for its own fit: with all of
#: them its metrics would take longer than all other fits together.
_SAMPLES = 512
#: Digits that are kept: the rest may depend on the order of additions.
_DIGITS = 6

#: What an exact fit has.
PERFECT = {
    "rel_l2": 0.0,
    **{f"cos_{q}_{k}": 1.0 for k in ("w", "x", "x_w") for q in ("mean", "p05")},
}


def measure(weight: Float32, fitted: Float32, statistics: Statistics | None) -> dict[str, float]:
    """Compares a weight with its fit.

    Args:
        weight: W, ``[N, K]``.
        fitted: Ŵ, ``[N, K]``.
        statistics: Of the site's input; without them the metrics on x are left out.

    Returns:
        The metrics by name, six digits.

    Raises:
        ValueError: The shapes differ.
    """
    if weight.shape != fitted.shape:
        raise ValueError(f"the fit has shape {fitted.shape}, the weight {weight.shape}")
    n, k = weight.shape
    samples = None
    if statistics is not None and len(statistics.samples):
        samples = statistics.samples[:: -(-len(statistics.samples) // _SAMPLES)]
    rows = np.empty((3, n))  # ⟨W_n, Ŵ_n⟩, ‖W_n‖², ‖Ŵ_n‖²
    columns = np.zeros((3, k))
    error = 0.0
    products = np.zeros((3, 0 if samples is None else len(samples)))
    step = max(1, _ELEMENTS // k)
    for start in range(0, n, step):
        part = slice(start, start + step)
        w, f = np.asarray(weight[part]), np.asarray(fitted[part])
        error += float(np.square(w - f).sum(dtype=np.float64))
        for i, (a, b) in enumerate(((w, f), (w, w), (f, f))):
            product = a * b
            rows[i, part] = product.sum(axis=1, dtype=np.float64)
            columns[i] += product.sum(axis=0, dtype=np.float64)
        if samples is not None:
            y, z = samples @ w.T, samples @ f.T
            for i, (a, b) in enumerate(((y, z), (y, y), (z, z))):
                products[i] += np.einsum("sn,sn->s", a, b, dtype=np.float64)
    norm = float(rows[1].sum())
    metrics = {"rel_l2": float(np.sqrt(error / norm)) if norm else float(error > 0)}
    metrics |= _summary("w", _cosines(rows))
    if statistics is not None:
        energy = statistics.imatrix[None] if samples is None else np.square(samples)
        metrics |= _summary("x_w", _cosines((energy.astype(np.float64) @ columns.T).T))
    if samples is not None:
        metrics |= _summary("x", _cosines(products))
    return {key: float(f"{value:.{_DIGITS}g}") for key, value in metrics.items()}


def _cosines(sums: Float64) -> Float64:
    """From ⟨a, b⟩, ‖a‖² and ‖b‖², ``[3, …]``."""
    dot, a, b = sums
    lengths = np.sqrt(a * b)
    alike = np.where((a == 0) & (b == 0), 1.0, 0.0)
    result: Float64 = np.divide(dot, lengths, out=alike, where=lengths > 0)
    return np.minimum(result, 1.0)


def _summary(name: str, cosines: Float64) -> dict[str, float]:
    return {
        f"cos_mean_{name}": float(cosines.mean()),
        f"cos_p05_{name}": float(np.quantile(cosines, 0.05)),
    }
