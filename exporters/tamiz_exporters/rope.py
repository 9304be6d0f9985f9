"""Rotary embeddings and how they are scaled, in Hugging Face's terms.

    f_i = base^(-2i/R),  i < R/2

- linear: f_i / factor.
- llama3: f_i / weight_i; the weight rises from 1 to the factor between two wave lengths.
- yarn (Peng et al. 2023): f_i · (1 - r_i + r_i / factor), where r rises from 0 to 1 between the
  pairs that turn 32 times and once in the original context; cosine and sine · (1 + 0.1 ln factor).
- proportional (Gemma 4): f_i of the first part of the pairs, 0 of the others; f_i / factor.
- longrope (Ding et al. 2024): f_i / weight_i. A run that reaches beyond the original context takes
  other weights, as in transformers; cosine and sine · sqrt(1 + ln factor / ln original context).
- dynamic: f_i up to the context that the model was made for, which is then its limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from tamiz_exporters.decoder_config import Rotary

#: Turns of a rotary pair in the original context between which yarn's ramp rises.
YARN_TURNS = 32.0, 1.0


def frequencies(base: float, dimensions: int) -> np.ndarray:
    """Unscaled frequencies ``float64 [R/2]`` of R dimensions that rotate, radians per position."""
    exponent = np.arange(0, dimensions, 2) / dimensions
    return np.asarray(base**-exponent)


def rotary(
    base: float,
    dimensions: int,
    scaling: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
    long_weights: np.ndarray | None = None,
) -> Rotary:
    """The scaled rotary embedding.

    Args:
        base: Rotary base.
        dimensions: R, even.
        scaling: ``rope_scaling`` of a ``config.json`` with its ``rope_type`` and all that it needs;
            None for none.
        weights: ``[R/2]``, what frequencies are divided by; None for nothing.
        long_weights: The same beyond the original context; None where it is the same.
    """
    frequency = frequencies(base, dimensions)
    scaling = scaling or {}
    kind = scaling.get("rope_type")
    if kind == "linear":
        frequency = frequency / scaling["factor"]
    elif kind == "proportional":
        turning = int(scaling["part"] * dimensions // 2)
        frequency = np.where(np.arange(len(frequency)) < turning, frequency, 0) / scaling["factor"]
    elif kind == "llama3":
        frequency = frequency / _llama3_weights(frequency, scaling)
    elif kind == "yarn":
        ramp = _yarn_ramp(base, dimensions, scaling)
        frequency = frequency * (1 - ramp + ramp / scaling["factor"])
    factor = float(scaling.get("attention_factor", 1.0))
    with np.errstate(over="ignore"):
        short, long = (
            np.asarray(frequency if divisors is None else frequency / divisors, np.float32)
            for divisors in (weights, long_weights)
        )
    if long_weights is None or np.array_equal(short, long):
        return Rotary(short, factor)
    return Rotary(short, factor, long, scaling["original_max_position_embeddings"])


def yarn_length(factor: float, scale: float = 1.0) -> float:
    """What yarn multiplies cosine and sine by where nothing else is said.

    Args:
        factor: By which the context grew.
        scale: Of the logarithm.
    """
    return 1 + 0.1 * scale * math.log(max(factor, 1))


def yarn_context(context: int, original: int, factor: float) -> int:
    """The longest sequence of a yarn, in tokens: what the source says, or the stretched original.

    Args:
        context: What the source says.
        original: Original context, in tokens.
        factor: By which it grew.
    """
    return max(context, round(original * factor))


def longrope_length(factor: float, original: int) -> float:
    """What longrope multiplies cosine and sine by where nothing else is said.

    Args:
        factor: Longest context / original context.
        original: Original context, in tokens.
    """
    return math.sqrt(1 + math.log(max(factor, 1)) / math.log(max(original, 2)))


def _llama3_weights(frequency: np.ndarray, scaling: Mapping[str, Any]) -> np.ndarray:
    turns = scaling["original_max_position_embeddings"] * frequency / (2 * math.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - ramp) / scaling["factor"] + ramp))


def _yarn_ramp(base: float, dimensions: int, scaling: Mapping[str, Any]) -> np.ndarray:
    original = scaling["original_max_position_embeddings"]

    def pair(turns: float) -> float:
        return dimensions * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    fast, slow = scaling.get("beta_fast", YARN_TURNS[0]), scaling.get("beta_slow", YARN_TURNS[1])
    low, high = pair(fast), pair(slow)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dimensions - 1)
    ramp = (np.arange(dimensions // 2) - low) / max(high - low, 1e-3)
    return np.asarray(np.clip(ramp, 0, 1))
