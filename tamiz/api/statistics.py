"""What calibration knows of the input of one site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

#: Inputs whose length is this many times the median's are those of first tokens.
_OUTLIER = 8.0


@dataclass(frozen=True)
class Sensitivity:
    """What errors at the input x of a site cost the model, from a backward pass.

    Attributes:
        inputs: Cost of an error of each input, in nats per token and squared error, float32
            ``[K]`` (`tamiz.survey.gradients`).
        tokens: Predicts from x how much an error costs this token relative to others:
            c = exp(x·tokens[:K] + tokens[K]), 1 on average, float32 ``[K + 1]``
            (`tamiz.survey.token_costs`); None where x does not predict it.
    """

    inputs: NDArray[np.float32]
    tokens: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class ExpertInputs:
    """What the inputs of the experts of a site were: each has those of the tokens that took it.

    Attributes:
        counts: Tokens that took each expert, float64 ``[E]``.
        imatrix: Mean of x² over these tokens, float32 ``[E, K]``; of an expert that none took, the
            mean over all.
    """

    counts: NDArray[np.float64]
    imatrix: NDArray[np.float32]

    @classmethod
    def of(cls, counts: NDArray[np.float64], sums: NDArray[np.float64]) -> ExpertInputs:
        """From counts ``[E]`` and Σ x² ``[E, K]`` over the tokens that took each."""
        taken = counts[:, None]
        means = np.divide(sums, taken, out=np.zeros_like(sums), where=taken > 0)
        means[counts == 0] = sums.sum(axis=0) / max(1.0, counts.sum())
        return cls(counts, means.astype(np.float32))


@dataclass(frozen=True)
class Statistics:
    """What a site's input x was on the calibration text.

    Attributes:
        count: Tokens that were seen.
        imatrix: Mean of x² over these tokens, float32 ``[K]``.
        samples: Some of the inputs, drawn uniformly, float32 ``[S, K]``; windows in the order of
            the text.
        origins: Name of the text that each sample is of, ``[S]``; None if they are of one text.
        run: Inputs of tokens that follow each other, float32 ``[R, K]``; None if unknown.
        sensitivity: What errors of x cost the model; None if unknown.
        weight_share: Weights of the site over weights of all linear sites of the model.
        experts: Of a site of experts, what the inputs of each were; `imatrix` is then the mean over
            all of them, and there are no samples.
    """

    count: int
    imatrix: NDArray[np.float32]
    samples: NDArray[np.float32]
    origins: NDArray[np.str_] | None = None
    run: NDArray[np.float32] | None = None
    sensitivity: Sensitivity | None = None
    weight_share: float = 1.0
    experts: ExpertInputs | None = None


@dataclass(frozen=True)
class Imatrix:
    """How large the inputs of a model's sites were on a text, measured by another tool.

    Attributes:
        count: Tokens or calls that were seen.
        means: Mean of x² by site id, float32 ``[K]``, finite and at least 0.
        experts: The same of each expert, by id of a site of experts.
    """

    count: int
    means: Mapping[str, NDArray[np.float32]]
    experts: Mapping[str, ExpertInputs] = field(default_factory=dict)


def usual_samples(samples: NDArray[np.float32]) -> NDArray[np.intp]:
    """Which of the inputs ``[S, K]`` are not those of first tokens, which are far longer."""
    lengths = np.linalg.norm(samples, axis=1)
    return np.flatnonzero(lengths <= _OUTLIER * np.median(lengths))
