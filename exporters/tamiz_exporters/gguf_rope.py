"""Rotary embeddings that a GGUF file describes; llama 3's come as ``rope_freqs.weight``."""

from __future__ import annotations

from typing import Any

import numpy as np

from tamiz_exporters.decoder_config import Rotary
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.rope import longrope_length, rotary, yarn_length

#: The weights of a longrope for short contexts.
SHORT = "rope_factors_short.weight"


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
        if self.base <= 1:
            of.reject("rope.freq_base", self.base, "a number over 1")
        self.dimensions = of.positive("rope.dimension_count", head_dim)
        if self.dimensions > head_dim or self.dimensions % 2:
            expected = f"an even number up to {head_dim}"
            of.reject("rope.dimension_count", self.dimensions, expected)
        self.context = of.positive("context_length")
        self.scaling = self._scaling()

    def scaled(self) -> Rotary:
        """The rotary embedding of layers that see all keys."""
        weights = [
            self._factors(name)
            for name in ("rope_freqs.weight", SHORT)
            if name in self._of.file.tensors
        ]
        product = np.prod(weights, axis=0) if weights else None
        return rotary(self.base, self.dimensions, self.scaling, product)

    def local(self, base: float) -> Rotary:
        """The rotary embedding of layers with a window, which nothing scales."""
        base = self._of.number("rope.freq_base_swa", base)
        return rotary(base, self.dimensions)

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
            mild = yarn_length(factor)
        else:
            factor = max(1.0, self.context / original)
            mild = longrope_length(factor, original)
            # The other frequencies hold beyond the original context, for the whole sequence.
            self.context = min(self.context, original)
        return {
            "rope_type": kind,
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": of.number("rope.scaling.attn_factor", mild),
        }

    def _factors(self, name: str) -> np.ndarray:
        factors = self._of.tensor(name, (self.dimensions // 2,)).dequantize()
        if not (np.isfinite(factors) & (factors > 0)).all():
            self._of.file.fail(f"tensor {name}", "other values", "positive numbers")
        return factors
