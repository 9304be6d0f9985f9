"""Rotary embeddings that Hugging Face's ``config.json`` describes.

transformers 4 has ``rope_theta`` and ``rope_scaling``. transformers 5 has ``rope_parameters`` with
both, for some architectures by the kind of layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tamiz_exporters.architectures import Architecture
from tamiz_exporters.config_fields import ROPE_FIELDS
from tamiz_exporters.decoder_config import Rotary
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.rope import YARN_TURNS, longrope_length, rotary, yarn_context, yarn_length

_ORIGINAL = "original_max_position_embeddings"
_FULL, _SLIDING = "full_attention", "sliding_attention"


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
        self._of, self._traits = of, traits
        self.context = of.positive("max_position_embeddings")
        parameters = self._group(of, "rope_parameters")
        self._local: Fields | None = None
        if parameters is not None and parameters.given(_FULL) is not None:
            self._local = self._group(parameters, _SLIDING)
            parameters = self._group(parameters, _FULL)
        self._full = parameters
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
        return self._rotary(base, self._full or self._group(self._of, "rope_scaling"))

    def local(self) -> Rotary:
        """The rotary embedding of layers with a window, where it is one of their own.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        base = self._base(self._local, "rope_local_base_freq", self._traits.local_rope_base)
        return self._rotary(base, self._local)

    def _group(self, of: Fields, key: str) -> Fields | None:
        group = of.group(key)
        return None if group is None else group.obeyed(self._traits.model_type, ROPE_FIELDS)

    def _rotary(self, base: float, group: Fields | None) -> Rotary:
        scaling, *weights = self._scaling(group) if group else ({},)
        return rotary(base, self._dimensions, scaling, *weights)

    def _base(self, parameters: Fields | None, key: str, default: float) -> float:
        fields = self._of
        if parameters is not None and parameters.given("rope_theta") is not None:
            fields, key = parameters, "rope_theta"
        base = fields.number(key, default)
        if base <= 1:
            fields.reject(key, base, "a number over 1")
        return base

    def _scaling(self, group: Fields) -> tuple[Any, ...]:
        """Returns the scaling with all that it needs, and what divides the frequencies."""
        key = "rope_type" if group.given("rope_type") is not None else "type"
        # Old files have a factor alone, as the first scaling was linear.
        kind = group.text(key, "default" if group.given("factor") is None else "linear")
        if kind in ("default", "dynamic"):
            return ({},)
        if kind == "longrope":
            return self._longrope(group)
        if kind == "yarn":
            return (self._yarn(group),)
        if kind not in ("linear", "llama3"):
            group.reject(key, kind, "default, dynamic, linear, llama3, yarn or longrope")
        scaling: dict[str, Any] = {"rope_type": kind, "factor": group.number("factor")}
        if kind == "linear":
            return (scaling,)
        low, high = (group.number(f"{end}_freq_factor") for end in ("low", "high"))
        if high <= low:
            group.reject("high_freq_factor", high, f"more than {low}")
        scaling |= {_ORIGINAL: group.positive(_ORIGINAL)}
        return (scaling | {"low_freq_factor": low, "high_freq_factor": high},)

    def _yarn(self, group: Fields) -> dict[str, Any]:
        original = self._original(group)
        factor = group.number("factor", max(1.0, self.context / original))
        length = yarn_length(factor)
        if group.given("mscale") and group.given("mscale_all_dim"):
            scale, of_all = group.number("mscale"), group.number("mscale_all_dim")
            length = yarn_length(factor, scale) / yarn_length(factor, of_all)
        self.context = yarn_context(self.context, original, factor)
        return {
            "rope_type": "yarn",
            "factor": factor,
            _ORIGINAL: original,
            "attention_factor": group.number("attention_factor", length),
            "beta_fast": group.number("beta_fast", YARN_TURNS[0]),
            "beta_slow": group.number("beta_slow", YARN_TURNS[1]),
            "truncate": group.flag("truncate") is not False,
        }

    def _longrope(self, group: Fields) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        original = self._original(group)
        factor = group.number("factor", self.context / original)
        scaling = {
            "rope_type": "longrope",
            _ORIGINAL: original,
            "attention_factor": group.number("attention_factor", longrope_length(factor, original)),
        }
        count = self._dimensions // 2
        short, long = (
            np.asarray(group.numbers(f"{which}_factor", count)) for which in ("short", "long")
        )
        return scaling, short, long

    def _original(self, group: Fields) -> int:
        """The context before scaling; Phi 3 says it outside of the group."""
        holder = self._of if self._of.given(_ORIGINAL) is not None else group
        return holder.positive(_ORIGINAL, self.context)
