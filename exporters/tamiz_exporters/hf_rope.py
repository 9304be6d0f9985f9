"""Rotary embeddings that Hugging Face's ``config.json`` describes.

transformers 4 has ``rope_theta`` and ``rope_scaling``. transformers 5 has ``rope_parameters`` with
both, for some architectures by the kind of layer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.decoder_config import Growth, Rotary
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.rope import YARN_TURNS, longrope_length, rotary, yarn_context, yarn_length
from tamiz_exporters.rope_fields import ROPE_FIELDS

_ORIGINAL = "original_max_position_embeddings"
_FULL, _SLIDING = "full_attention", "sliding_attention"


class HfRope:
    """The rotary embeddings of a configuration.

    Attributes:
        context: Longest sequence that the frequencies are meant for, in tokens.
    """

    def __init__(self, of: Fields, traits: Architecture, head_dim: int, local_dim: int = 0) -> None:
        """Reads the configuration.

        Args:
            of: ``config.json``.
            traits: The architecture.
            head_dim: D, length of a head.
            local_dim: Of layers with a window, where theirs is another one.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        self._of, self._traits, self._head_dim = of, traits, head_dim
        self._local_dim = local_dim or head_dim
        self.context = of.positive("max_position_embeddings", traits.context)
        parameters = self._group(of, "rope_parameters")
        self._local: Fields | None = None
        self._by_layers = parameters is not None and parameters.given(_FULL) is not None
        if parameters is not None and self._by_layers:
            self._local = self._group(parameters, _SLIDING)
            parameters = self._group(parameters, _FULL)
        self._full = parameters

    def scaled(self) -> Rotary:
        """The rotary embedding of layers that see all keys.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        usual = self._of.number("rotary_emb_base", self._traits.rope_base)
        base = self._base(self._full, "rope_theta", usual)
        group = self._full or self._group(self._of, "rope_scaling")
        if group is None and self._traits.rope_scaling:
            group = Fields(self._of.path, self._traits.rope_scaling)
        return self._rotary(base, group, self._dimensions(self._full, self._head_dim))

    def local(self) -> Rotary:
        """The rotary embedding of layers with a window, where it is one of their own.

        Raises:
            TamizError: A value is absurd or the kind of scaling is unknown.
        """
        own = self._traits.local_rope_base
        key = "rope_local_base_freq" if own else "rope_theta"
        base = self._base(self._local, key, own or self._traits.rope_base)
        dimensions = self._dimensions(self._local or self._full, self._local_dim)
        return self._rotary(base, self._local, dimensions)

    @property
    def dimensions(self) -> int:
        """R of the layers that see all keys."""
        return self._dimensions(self._full, self._head_dim)

    @property
    def stretch(self) -> float:
        """Factor on scores, which DeepSeek's scaling has.

        Raises:
            TamizError: A value is absurd.
        """
        group = self._full or self._group(self._of, "rope_scaling")
        if group is None or not group.given("mscale_all_dim"):
            return 1.0
        scaled = group.text("rope_type", group.text("type", "default")) != "default"
        return yarn_length(group.number("factor"), group.number("mscale_all_dim")) ** (2 * scaled)

    @property
    def growth(self) -> Growth | None:
        """How queries grow with their position.

        Raises:
            TamizError: A value is absurd.
        """
        group = self._full or self._group(self._of, "rope_scaling")
        if group is None or not group.given("llama_4_scaling_beta"):
            return None
        span = self._original(group)
        return Growth(group.number("llama_4_scaling_beta"), span, self.context // span + 1)

    def _group(self, of: Fields, key: str) -> Fields | None:
        group = of.group(key)
        return None if group is None else group.obeyed(self._traits.model_type, ROPE_FIELDS)

    def _rotary(self, base: float, group: Fields | None, dimensions: int) -> Rotary:
        scaling, *weights = self._scaling(group, dimensions) if group else ({},)
        if group is not None and self._kind(group) == "dynamic" and group.given("alpha"):
            base *= group.number("alpha") ** (dimensions / (dimensions - 2))
        return rotary(base, dimensions, scaling, *weights)

    def _dimensions(self, group: Fields | None, head_dim: int) -> int:
        """R of the layers of a group: its own, or that of the whole configuration."""
        if group is not None and group.given("rope_type") == "proportional":
            return head_dim  # of which a part has a frequency of 0
        if self._of.given("rotary_dim") is not None:
            dimensions = self._of.positive("rotary_dim")
            if dimensions > head_dim or dimensions % 2:
                expected = f"an even number up to {head_dim}"
                self._of.reject("rotary_dim", dimensions, expected)
            return dimensions
        key = "partial_rotary_factor"
        holder = group if group is not None and group.given(key) is not None else self._of
        usual = self._of.number("rotary_pct", self._traits.rotated)
        partial = holder.number(key, usual)
        dimensions = int(head_dim * min(partial, 2.0))
        if not 0 < dimensions <= head_dim or dimensions % 2:
            holder.reject(key, partial, f"an even number of {head_dim} dimensions")
        return dimensions

    def _base(self, parameters: Fields | None, key: str, default: float) -> float:
        fields = self._of
        if parameters is not None and parameters.given("rope_theta") is not None:
            fields, key = parameters, "rope_theta"
        base = fields.number(key, default)
        if base <= 1:
            fields.reject(key, base, "a number over 1")
        return base

    @staticmethod
    def _kind_key(group: Fields) -> str:
        return "rope_type" if group.given("rope_type") is not None else "type"

    def _kind(self, group: Fields) -> str:
        """The kind of scaling; old files have a factor alone, as the first one was linear."""
        usual = "default" if group.given("factor") is None else "linear"
        return group.text(self._kind_key(group), usual)

    def _scaling(self, group: Fields, dimensions: int) -> tuple[Any, ...]:
        """Returns the scaling with all that it needs, and what divides the frequencies."""
        kind = self._kind(group)
        if kind in ("default", "dynamic", "mrope"):  # of text, see `config_fields`
            return ({},)
        if kind == "longrope":
            return self._longrope(group, dimensions // 2)
        if kind == "yarn":
            return (self._yarn(group),)
        if kind == "proportional":
            part = min(group.number("partial_rotary_factor", 1.0), 1.0)
            return ({"rope_type": kind, "factor": group.number("factor", 1.0), "part": part},)
        if kind not in ("linear", "llama3"):
            known = "default, dynamic, linear, llama3, proportional, yarn or longrope"
            group.reject(self._kind_key(group), kind, known)
        scaling: dict[str, Any] = {"rope_type": kind, "factor": group.number("factor")}
        if kind == "linear":
            return (scaling,)
        low, high = (group.number(f"{end}_freq_factor") for end in ("low", "high"))
        if high <= low:
            group.reject("high_freq_factor", high, f"more than {low}")
        scaling |= {_ORIGINAL: self._original(group)}
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

    def _longrope(self, group: Fields, count: int) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
        original = self._original(group)
        factor = group.number("factor", self.context / original)
        scaling = {
            "rope_type": "longrope",
            _ORIGINAL: original,
            "attention_factor": group.number("attention_factor", longrope_length(factor, original)),
        }
        short, long = (
            np.asarray(group.numbers(f"{which}_factor", count)) for which in ("short", "long")
        )
        return scaling, short, long

    def _original(self, group: Fields) -> int:
        """The context before scaling; Phi 3 says it outside of the group, which counts first.

        Where each kind of layers has a group of its own, only the group counts.
        """
        outside = self._of.given(_ORIGINAL) is not None and not self._by_layers
        holder = self._of if outside else group
        return holder.positive(_ORIGINAL, self.context)
