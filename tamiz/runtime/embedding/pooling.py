"""Pooling: one vector for a text from the hidden states of its tokens, in the modes of
sentence-transformers.

    cls                    the first token
    lasttoken              the last token
    max                    the largest number of each column
    mean                   Σ_t h_t / n
    mean_sqrt_len_tokens   Σ_t h_t / √n
    weightedmean           Σ_t t h_t / Σ_t t       t = 1, 2, …

Only tokens that are not padding count. Several modes give vectors one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Mask = NDArray[np.int64]

#: By the key that says so in older files, in the order in which vectors are joined there.
MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
#: Modes that take each number from one token; the others sum over tokens.
_PICKING = {"cls", "lasttoken", "max"}


@dataclass(frozen=True)
class Pooling:
    """Pools hidden states.

    Attributes:
        modes: Of `MODES`, in the order in which their vectors are joined.
        include_prompt: Whether the tokens of a prompt count.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True

    def __call__(self, hidden: Floats, mask: Mask, prompt: int = 0) -> Floats:
        """Pools some texts.

        Args:
            hidden: Hidden states ``[texts, tokens, width]``.
            mask: ``[texts, tokens]``: 1 for a token, 0 for padding, which is on the right.
            prompt: Tokens of the prompt that each text begins with.

        Returns:
            ``[texts, width · modes]``.
        """
        counted = self._counted(mask, prompt)
        parts = [_pool(mode, hidden, counted) for mode in self.modes]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def back(self, hidden: Floats, mask: Mask, gradient: Floats) -> Floats:
        """The gradient at the hidden states, of texts without a prompt.

        Args:
            hidden: See `__call__`.
            mask: See `__call__`.
            gradient: The gradient at the result.
        """
        found = np.zeros_like(hidden)
        for mode, part in zip(self.modes, np.split(gradient, len(self.modes), axis=1), strict=True):
            if mode in _PICKING:
                place = _place(mode, hidden, mask)
                sums = np.take_along_axis(found, place, 1) + part[:, None]
                np.put_along_axis(found, place, sums, 1)
            else:
                found += (_weights(mode, mask) / _divisor(mode, mask))[..., None] * part[:, None]
        return found

    def _counted(self, mask: Mask, prompt: int) -> Mask:
        if self.include_prompt or not prompt:
            return mask
        return np.where(np.arange(mask.shape[1]) < prompt, 0, mask)


def _pool(mode: str, hidden: Floats, mask: Mask) -> Floats:
    if mode in _PICKING:
        picked: Floats = np.take_along_axis(hidden, _place(mode, hidden, mask), 1)[:, 0]
        return picked
    weights = _weights(mode, mask).astype(hidden.dtype)
    summed: Floats = (hidden * weights[..., None]).sum(axis=1)
    return summed / _divisor(mode, mask).astype(hidden.dtype)


def _place(mode: str, hidden: Floats, mask: Mask) -> NDArray[np.intp]:
    """The token that each number is taken from, ``[texts, 1, width or 1]``."""
    scores: Floats | Mask
    if mode == "max":
        scores = np.where(mask[..., None] != 0, hidden, -np.inf)
    else:
        order = mask if mode == "cls" else mask * np.arange(1, mask.shape[1] + 1)
        scores = order[..., None]
    place: NDArray[np.intp] = scores.argmax(axis=1)
    return place[:, None]


def _weights(mode: str, mask: Mask) -> Mask:
    """How much each token counts in a sum, ``[texts, tokens]``."""
    return mask * np.arange(1, mask.shape[1] + 1) if mode == "weightedmean" else mask


def _divisor(mode: str, mask: Mask) -> Floats:
    """What a sum is divided by, ``[texts, 1]``."""
    total: Floats = np.maximum(_weights(mode, mask).sum(axis=1, keepdims=True), 1e-9)
    return np.sqrt(total) if mode == "mean_sqrt_len_tokens" else total
