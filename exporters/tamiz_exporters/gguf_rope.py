"""Rotary embeddings that a GGUF file describes.

    f_i = base^(-2i/R),  i < R/2

- linear: f_i / factor.
- rope_freqs.weight (llama 3): f_i / weight_i.
- yarn (Peng et al. 2023): f_i · (1 - r_i + r_i / factor), where r rises from 0 to 1 between the
  pairs that turn 32 times and once in the original context; cosine and sine · (1 + 0.1 ln factor).
- longrope (Ding et al. 2024): f_i / weight_i with the weights of short contexts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tamiz_exporters.decoder_config import Rotary
from tamiz_exporters.gguf_hyperparameters import Hyperparameters

_YARN_TURNS = 32.0, 1.0
#: Of a longrope: short contexts, and those beyond the original context.
SHORT, LONG = "rope_factors_short.weight", "rope_factors_long.weight"


class Rope:
    """The rotary embeddings of a file.

    Attributes:
        base: Rotary base.
        dimensions: R, the first dimensions of a head that rotate.
        scaling: What ``config.json`` says as ``rope_scaling``; None without scaling.
        context: Longest sequence that the frequencies are meant for, in tokens.
    """

    def __init__(self, of: Hyperparameters, head_dim: int) -> None:
        """Reads the metadata.

        Args:
            of: The file's hyperparameters.
            head_dim: D, length of a head.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        self._of = of
        self.base = of.number("rope.freq_base", 10000.0)
        self.dimensions = of.positive("rope.dimension_count", head_dim)
        if self.dimensions > head_dim or self.dimensions % 2:
            expected = f"an even number up to {head_dim}"
            of.reject("rope.dimension_count", self.dimensions, expected)
        self.context = of.positive("context_length")
        self.scaling = self._scaling()

    def scaled(self) -> Rotary:
        """The rotary embedding of layers that see all keys."""
        frequency = self._frequency(self.base)
        scaling = self.scaling or {}
        factor = float(scaling.get("attention_factor", 1.0))
        kind = scaling.get("rope_type")
        if kind == "linear":
            frequency = frequency / scaling["factor"]
        elif kind == "yarn":
            ramp = self._yarn_ramp(scaling["original_max_position_embeddings"])
            frequency = frequency * (1 - ramp + ramp / scaling["factor"])
        for name in ("rope_freqs.weight", SHORT):
            if name in self._of.file.tensors:
                frequency = frequency / self._factors(name)
        return Rotary(np.asarray(frequency, np.float32), factor)

    def local(self, base: float) -> Rotary:
        """The rotary embedding of layers with a window, which nothing scales."""
        base = self._of.number("rope.freq_base_swa", base)
        return Rotary(np.asarray(self._frequency(base), np.float32))

    def _frequency(self, base: float) -> np.ndarray:
        exponent = np.arange(0, self.dimensions, 2) / self.dimensions
        return np.asarray(base**-exponent)

    def _scaling(self) -> dict[str, Any] | None:
        of = self._of
        longrope = SHORT in of.file.tensors
        kind = "longrope" if longrope else of.text("rope.scaling.type", "none")
        if kind == "none":
            return None
        if kind == "linear":
            return {"rope_type": "linear", "factor": of.number("rope.scaling.factor")}
        if kind not in ("yarn", "longrope"):
            of.reject("rope.scaling.type", kind, "none, linear, yarn or longrope")
        original = of.positive("rope.scaling.original_context_length", self.context)
        if kind == "yarn":
            factor = of.number("rope.scaling.factor")
            mild = 1 + 0.1 * math.log(max(factor, 1))
        else:
            factor = max(1.0, self.context / original)
            mild = math.sqrt(1 + math.log(factor) / math.log(max(original, 2)))
            # The other frequencies hold beyond the original context, for the whole sequence.
            self.context = min(self.context, original)
        return {
            "rope_type": kind,
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": of.number("rope.scaling.attn_factor", mild),
        }

    def _yarn_ramp(self, original: int) -> np.ndarray:
        def pair(turns: float) -> float:
            return (
                self.dimensions
                * math.log(original / (turns * 2 * math.pi))
                / (2 * math.log(self.base))
            )

        low, high = (pair(turns) for turns in _YARN_TURNS)
        low, high = max(math.floor(low), 0), min(math.ceil(high), self.dimensions - 1)
        ramp = (np.arange(self.dimensions // 2) - low) / max(high - low, 1e-3)
        return np.clip(ramp, 0, 1)

    def _factors(self, name: str) -> np.ndarray:
        factors = self._of.tensor(name, (self.dimensions // 2,)).dequantize()
        if not (np.isfinite(factors) & (factors > 0)).all():
            self._of.file.fail(f"tensor {name}", "other values", "positive numbers")
        return factors
