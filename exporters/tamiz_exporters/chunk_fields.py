"""Sequences within which attention in chunks is attention to all keys (Llama 4).

In layers with a rotary embedding a query at p sees keys from ⌊p / chunk⌋ · chunk on. In the others
it grows: times 1 + scale · ln(1 + ⌊(p + 1) / span⌋). While p < chunk and p + 1 < span, neither
changes a number, so a sequence may be as long as that and no longer.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.decoder_config import Mixer, attention_of
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields

#: Of a GGUF, which has no key for them.
_CHUNK = _SPAN = 8192
_log = logging.getLogger(__name__)


def hf_reach(of: Fields, traits: Architecture, layers: tuple[Mixer, ...], context: int) -> int:
    """The longest sequence of a ``config.json`` in which neither changes a number, in tokens.

    Args:
        of: The fields.
        traits: The architecture.
        layers: How layers mix tokens.
        context: The longest sequence that the model was made for, in tokens.

    Raises:
        TamizError: A value is absurd, or a layer attends in another way.
    """
    if not traits.chunked:
        return context
    key, kinds = "layer_types", of.given("layer_types")
    chunked, full = "chunked_attention", "full_attention"
    usual = [chunked if turns else full for turns in _turning(layers)]
    known = isinstance(kinds, list) and len(kinds) == len(layers)
    if kinds is not None and (not known or {*map(str, kinds)} - {chunked, full}):
        of.reject(key, kinds, f"{len(layers)} times {chunked} or {full}")
    cuts = chunked in (usual if kinds is None else kinds)
    cuts = cuts and of.values.get("attention_chunk_size", _CHUNK) is not None
    grows = bool(of.values.get("attn_temperature_tuning", True))
    chunk = of.positive("attention_chunk_size", _CHUNK) if cuts else context
    span = of.positive("floor_scale", _SPAN) if grows and not all(_turning(layers)) else 0
    return _reach(of.path, context, chunk, span)


def gguf_reach(
    of: Hyperparameters, traits: Architecture, layers: tuple[Mixer, ...], context: int
) -> int:
    """The longest sequence of a GGUF in which neither changes a number, in tokens.

    Args:
        of: The hyperparameters.
        traits: The architecture.
        layers: How layers mix tokens.
        context: The longest sequence that the model was made for, in tokens.

    Raises:
        TamizError: The file says that no layer has chunks.
    """
    if not traits.chunked:
        return context
    key = "attention.sliding_window"
    if (window := of.given(key)) is not None:
        of.reject(key, window, "no such key: layers with a rotary embedding attend in chunks")
    return _reach(of.file.path, context, _CHUNK, 0 if all(_turning(layers)) else _SPAN)


def _turning(layers: tuple[Mixer, ...]) -> list[bool]:
    """Which layers have a rotary embedding."""
    attentions = map(attention_of, layers)
    return [attention is not None and attention.rotary is not None for attention in attentions]


def _reach(path: Path, context: int, chunk: int, span: int) -> int:
    reach = max(1, min(context, chunk, span - 1 if span else context))
    if reach < context:
        _log.warning(
            "%s: sequences are limited to %d tokens of %d: longer ones need attention in chunks, "
            "or queries that grow with their position",
            path,
            reach,
            context,
        )
    return reach
