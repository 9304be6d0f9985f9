"""Rotary embeddings that Hugging Face's ``config.json`` describes.

transformers 4 has ``rope_theta`` and ``rope_scaling``. transformers 5 has ``rope_parameters`` with
both, for some architectures by the kind of layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tamiz_exporters.architectures import Architecture
from tamiz_exporters.decoder_config import Rotary
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.rope import longrope_length, rotary, yarn_length

_FULL, _SLIDING = "full_attention", "sliding_attention"
#: Keys that change the frequencies or their length in ways that are not read.
_UNSUPPORTED = ("mscale", "mscale_all_dim")


class HfRope:
    """The rotary embeddings of a configuration.

    Attributes:
        context: Longest sequence that the frequencies are meant for, in tokens.
    """

    def __init__(self, of: Fields, traits: Architecture, head_dim: int) -> None:
        """Reads the configuration.

        Args:
            of: ``config.json``.
            traits: The architecture.
            head_dim: D, length of a head.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        self._traits = traits
        self.context = of.positive("max_position_embeddings")
        parameters = of.group("rope_parameters")
        if parameters is not None and parameters.given(_FULL) is not None:
            self._full, self._local = parameters.group(_FULL), parameters.group(_SLIDING)
        else:
            self._full, self._local = parameters, None
        self._of = of
        holder = self._full or of
        if holder.given("partial_rotary_factor") is None:
            holder = of
        partial = holder.number("partial_rotary_factor", 1.0)
        self._dimensions = int(head_dim * min(partial, 2.0))
        if not 0 < self._dimensions <= head_dim or self._dimensions % 2:
            expected = f"an even number of {head_dim} dimensions"
            holder.reject("partial_rotary_factor", partial, expected)

    def scaled(self) -> Rotary:
        """The rotary embedding of layers that see all keys.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        base = self._base(self._full, "rope_theta", self._traits.rope_base)
        group = self._full or self._of.group("rope_scaling")
        scaling, weights = self._scaling(group) if group else ({}, None)
        return rotary(base, self._dimensions, scaling, weights)

    def local(self) -> Rotary:
        """The rotary embedding of layers with a window, where it is one of their own.

        Raises:
            TamizError: A value is absurd.
        """
        base = self._base(self._local, "rope_local_base_freq", self._traits.local_rope_base)
        return rotary(base, self._dimensions)

    def _base(self, parameters: Fields | None, key: str, default: float) -> float:
        fields = self._of
        if parameters is not None and parameters.given("rope_theta") is not None:
            fields, key = parameters, "rope_theta"
        base = fields.number(key, default)
        if base <= 1:
            fields.reject(key, base, "a number over 1")
        return base

    def _scaling(self, group: Fields) -> tuple[dict[str, Any], np.ndarray | None]:
        """Returns the scaling with all that it needs, and what divides the frequencies."""
        key = "rope_type" if group.given("rope_type") is not None else "type"
        kind = group.text(key, "default")
        for unsupported in _UNSUPPORTED:
            if value := group.given(unsupported):
                group.reject(unsupported, value, "no such key")
        if kind == "default":
            return {}, None
        if kind == "longrope":
            return self._longrope(group)
        if kind not in ("linear", "llama3", "yarn"):
            group.reject(key, kind, "default, linear, llama3, yarn or longrope")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": group.number("factor")}
        if kind == "linear":
            return scaling, None
        key = "original_max_position_embeddings"
        scaling[key] = group.positive(key, None if kind == "llama3" else self.context)
        if kind == "llama3":
            low, high = (group.number(f"{end}_freq_factor") for end in ("low", "high"))
            if high <= low:
                group.reject("high_freq_factor", high, f"more than {low}")
            return scaling | {"low_freq_factor": low, "high_freq_factor": high}, None
        scaling["attention_factor"] = group.number(
            "attention_factor", yarn_length(scaling["factor"])
        )
        fast, slow = group.number("beta_fast", 32.0), group.number("beta_slow", 1.0)
        if group.given("truncate") is False:
            group.reject("truncate", False, "true or no such key")
        return scaling | {"beta_fast": fast, "beta_slow": slow}, None

    def _longrope(self, group: Fields) -> tuple[dict[str, Any], np.ndarray]:
        key = "original_max_position_embeddings"
        holder = self._of if self._of.given(key) is not None else group
        original = holder.positive(key, self.context)
        length = longrope_length(self.context / original, original)
        factor = group.number("attention_factor", length)
        weights = np.asarray(group.numbers("short_factor", self._dimensions // 2))
        # The other frequencies hold beyond the original context, for the whole sequence.
        self.context = min(self.context, original)
        return {"rope_type": "longrope", "attention_factor": factor}, weights
