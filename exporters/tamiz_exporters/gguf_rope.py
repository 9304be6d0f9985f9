"""Rotary embeddings that a GGUF file describes; llama 3's come as ``rope_freqs.weight``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tamiz_exporters.decoder_config import Growth, Rotary
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.rope import YARN_TURNS, longrope_length, rotary, yarn_context, yarn_length

#: What divides the frequencies: always, and a longrope's up to and beyond the original context.
FACTORS = "rope_freqs.weight"
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"
_ORIGINAL = "rope.scaling.original_context_length"
_LOGARITHM = "rope.scaling.yarn_log_multiplier"


class Rope:
    """The rotary embeddings of a file.

    Attributes:
        base: Rotary base.
        dimensions: R, the first dimensions of a head that rotate.
        scaling: What ``config.json`` says as ``rope_scaling``; None without scaling.
        context: Longest sequence that the frequencies are meant for, in tokens.
        stretch: Factor on scores.
        growth: How queries grow with their position; None: they do not.
    """

    def __init__(
        self,
        of: Hyperparameters,
        head_dim: int,
        truncated: bool = True,
        stretches_scores: bool = False,
        local_dim: int = 0,
    ) -> None:
        """Reads the metadata.

        Args:
            of: The file's hyperparameters.
            head_dim: D, length of a head; 0 where nothing rotates.
            truncated: Whether YaRN rounds where its ramp begins and ends.
            stretches_scores: Whether YaRN has a factor on scores.
            local_dim: Length of a head in layers with a window; 0: D, too.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        self._of, self._truncated = of, truncated
        self._stretches_scores, self.stretch = stretches_scores, 1.0
        self.base = of.number("rope.freq_base", 10000.0)
        if self.base <= 1:
            of.reject("rope.freq_base", self.base, "a number over 1")
        self.dimensions = self._dimensions("rope.dimension_count", head_dim) if head_dim else 0
        self._local = self.dimensions
        if local_dim:
            self._local = self._dimensions("rope.dimension_count_swa", local_dim)
        self.context = of.positive("context_length")
        self.scaling = self._scaling()
        self.growth = self._growth()

    def scaled(self) -> Rotary:
        """The rotary embedding of layers that see all keys."""
        if self.scaling and self.scaling["rope_type"] == "longrope":
            weights = [self._factors(SHORT), self._factors(LONG)]
        else:
            weights = [self._factors(FACTORS)] if FACTORS in self._of.file.tensors else []
        return rotary(self.base, self.dimensions, self.scaling, *weights)

    def local(self, base: float, unscaled: bool) -> Rotary:
        """The rotary embedding of layers with a window.

        Args:
            base: Rotary base where the file says none; 0: that of all layers.
            unscaled: Whether nothing scales it.
        """
        own = self._of.number("rope.freq_base_swa", base or self.base)
        return rotary(own, self._local, None if unscaled else self.scaling)

    def _dimensions(self, key: str, head_dim: int) -> int:
        """How many dimensions of a head rotate."""
        dimensions = self._of.positive(key, head_dim)
        if dimensions > head_dim or dimensions % 2:
            self._of.reject(key, dimensions, f"an even number up to {head_dim}")
        return dimensions

    def _scaling(self) -> dict[str, Any] | None:
        of = self._of
        kind = "longrope" if SHORT in of.file.tensors else of.text("rope.scaling.type", "linear")
        factor = self._factor()
        if kind not in ("none", "linear", "yarn", "longrope"):
            of.reject("rope.scaling.type", kind, "none, linear, yarn or longrope")
        length = of.number("rope.scaling.attn_factor", 0.0)
        if kind == "none" or (kind == "linear" and factor == 1 and length in (0, 1)):
            return None
        if kind == "linear":
            scaling = {"rope_type": "linear", "factor": factor}
            return scaling | ({"attention_factor": length} if length else {})
        original = of.positive(_ORIGINAL, self.context)
        if kind == "longrope":
            return self._longrope(original, length)
        self.context = yarn_context(self.context, original, factor)
        self._check_length(factor)
        fast, slow = (
            of.number(f"rope.scaling.yarn_beta_{end}", turns)
            for end, turns in zip(("fast", "slow"), YARN_TURNS, strict=True)
        )
        # llama.cpp multiplies the two.
        length = (length or 1.0) * yarn_length(factor)
        if self._stretches_scores:
            length = self._stretched(factor, length)
        elif of.given(_LOGARITHM) is not None:
            length /= yarn_length(factor, of.number(_LOGARITHM))
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": length,
            "beta_fast": fast,
            "beta_slow": slow,
            **({} if self._truncated else {"truncate": False}),
        }

    def _growth(self) -> Growth | None:
        of, key = self._of, "attention.temperature_scale"
        if not of.given(key):
            return None
        span = of.positive(_ORIGINAL, self.context)
        growth = Growth(of.number(key), span, self.context // span + 1)
        self.scaling = {**(self.scaling or {}), "llama_4_scaling_beta": growth.factor}
        return growth

    def _check_length(self, factor: float) -> None:
        """Refuses a factor on cosine and sine but the usual one, which is always applied."""
        key, usual = "rope.scaling.yarn_attn_factor", yarn_length(factor)
        given = self._of.number(key, 1.0)
        if not any(math.isclose(given, known, rel_tol=1e-5) for known in (1.0, usual)):
            self._of.reject(key, given, f"1 or {usual:.6g}, as of a factor of {factor:g}")

    def _stretched(self, factor: float, length: float) -> float:
        """Notes the factor on scores of a yarn as llama.cpp reads DeepSeek's; returns its length.

        The file has a tenth of the scale of the logarithm. With it, cosine and sine are as long as
        without yarn.
        """
        scale = 10 * self._of.number(_LOGARITHM, 0.0)
        length = length / yarn_length(factor) if scale else length
        self.stretch = (length * (yarn_length(factor, scale) if scale else 1.0)) ** 2
        return length

    def _longrope(self, original: int, length: float) -> dict[str, Any]:
        factor = max(1.0, self.context / original)
        short, long = self._factors(SHORT), self._factors(LONG)
        return {
            "rope_type": "longrope",
            "factor": factor,
            "short_factor": short.tolist(),
            "long_factor": long.tolist(),
            "original_max_position_embeddings": original,
            "attention_factor": length or longrope_length(factor, original),
        }

    def _factor(self) -> float:
        """By which positions are divided; the old key counts where the new one is absent."""
        new, old = "rope.scaling.factor", "rope.scale_linear"
        return self._of.number(new if self._of.given(new) is not None else old, 0.0) or 1.0

    def _factors(self, name: str) -> np.ndarray:
        """What a tensor divides the frequencies by."""
        factors = self._of.tensor(name, (self.dimensions // 2,)).dequantize()
        if not (np.isfinite(factors) & (factors > 0)).all():
            self._of.file.fail(f"tensor {name}", "other values", "positive numbers")
        return factors
