"""Losses of a model: gradients at its output, and the backward pass from there to its sites.

A decoder loses log p of a token that is drawn from its own distribution, so that the mean of the
squared gradients is the Fisher information:

    KL ≈ ½ E[(∂ log p / ∂y · δy)²]

An encoder's embedding is e = s / ‖s‖, where s is what its pooling and the modules behind it make of
the hidden states:

    1 - cos(e, e + δe) ≈ ½ ‖δs - ⟨e, δs⟩ e‖² / ‖s‖² = ½ E[(g · δs)²]        g = (z - ⟨e, z⟩ e) / ‖s‖

with z of independent normal numbers. So one backward pass serves both losses.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tamiz.runtime.embedding.modules import Modules, read_modules
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

    def __init__(self, output: str, modules: Modules) -> None:
        """The loss of a graph.

        Args:
            output: Name of the hidden states.
            modules: What makes an embedding of them.
        """
        self.output, self._modules = output, modules.directions()

    def gradient(self, output: Float, random: np.random.Generator) -> Float:
        """See `OutputLoss`."""
        mask = np.ones(output.shape[:2], np.int64)
        gradients = self._modules.back(
            output.astype(np.float64),
            mask,
            lambda embedding: random.standard_normal(embedding.shape),
        )
        return gradients.astype(np.float32)


def output_loss(survey: Survey) -> OutputLoss:
    """The loss of a model.

    Args:
        survey: A dense model.

    Raises:
        UnknownOpError: It gives neither logits nor hidden states.
    """
    output = survey.model.graph.outputs[0]
    if survey.decodes:
        return TokenDivergence()
    shape = () if output.shape is None else tuple(output.shape)
    if output.name is None or len(shape) != 3 or not isinstance(shape[-1], int):
        raise UnknownOpError(f"{output.name}, expected logits, or hidden states of an encoder")
    return CosineDistance(output.name, read_modules(survey.bundle, shape[-1]))
