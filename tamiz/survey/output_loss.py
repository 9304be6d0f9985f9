"""Losses of a model: gradients at its output, and the backward pass from there to its sites.

A decoder loses log p of a token that is drawn from its own distribution, so that the mean of the
squared gradients is the Fisher information:

    KL ≈ ½ E[(∂ log p / ∂y · δy)²]

An encoder's embedding is e = s / ‖s‖, s = Σ_t h_t over positions, or h_0 alone:

    1 - cos(e, e + δe) ≈ ½ ‖δs - ⟨e, δs⟩ e‖² / ‖s‖² = ½ E[(g · δs)²]        g = (z - ⟨e, z⟩ e) / ‖s‖

with z of independent normal numbers. So one backward pass serves both losses.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tamiz.runtime.encoder import takes_first_token
from tamiz.survey.backward.node import UnknownOpError
from tamiz.survey.gradients import surprise
from tamiz.survey.survey import Survey

Float = NDArray[np.float32]

#: First positions of a text that a decoder continues, which are left out: their activations differ
#: from all others.
_FIRST = 4


class OutputLoss(Protocol):
    """The loss of one kind of model.

    Attributes:
        output: The value that it depends on.
        first: Positions at the start of a window that are left out.
        of_texts: Whether there is one loss a text, else one a token.
    """

    output: str
    first: int
    of_texts: bool

    def gradient(self, output: Float, random: np.random.Generator) -> Float:
        """The gradient at the output, for one draw."""


class TokenDivergence(OutputLoss):
    """The KL divergence of a decoder, in nats a token."""

    output, first, of_texts = "logits", _FIRST, False

    def gradient(self, output: Float, random: np.random.Generator) -> Float:
        """See `OutputLoss`."""
        return surprise(output, random)


class CosineDistance(OutputLoss):
    """1 - cosine of an encoder's embedding of a text."""

    first, of_texts = 0, True

    def __init__(self, output: str, only_first: bool) -> None:
        """The loss of a graph.

        Args:
            output: Name of the hidden states.
            only_first: Whether the first token stands for a text.
        """
        self.output, self._only_first = output, only_first

    def gradient(self, output: Float, random: np.random.Generator) -> Float:
        """See `OutputLoss`."""
        pooled = output[:, :1] if self._only_first else output
        total = pooled.sum(axis=(0, 1), dtype=np.float64)
        length = np.linalg.norm(total)
        drawn = random.standard_normal(len(total))
        apart = (drawn - total * (total @ drawn) / length**2) / length
        found = np.zeros_like(output)
        found[:, : pooled.shape[1]] = apart
        return found


def output_loss(survey: Survey) -> OutputLoss:
    """The loss of a model.

    Args:
        survey: A dense model.

    Raises:
        UnknownOpError: It gives neither logits nor hidden states.
    """
    output = survey.model.graph.outputs[0]
    if survey.gives_logits:
        return TokenDivergence()
    if output.name is None or output.shape is None or len(output.shape) != 3:
        raise UnknownOpError(f"{output.name}, expected logits, or hidden states of an encoder")
    first = takes_first_token(survey.bundle)
    return CosineDistance(output.name, first)
