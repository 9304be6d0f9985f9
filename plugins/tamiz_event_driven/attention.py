"""Attention: what a key filter leaves out keeps the part of the softmax that it had last.

The filter is the top-K prefilter; the rest of the keys is one window, computed anew every `age_max`
tokens, in between a stale value with a weight that follows the query (ort_ops'
``ops/event_attention.cc``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import onnx_ir as ir
from pydantic import Field

from tamiz.attention import (
    PAST_EVENT,
    PAST_KEY,
    PAST_SKETCH,
    PRESENT_EVENT,
    add_sketch,
    add_state,
    filtered,
    find_attention,
    input_at,
    set_attributes,
)
from tamiz.site import Site
from tamiz.technique import Cost, Fit, FitError, TechniqueConfig

#: Where nobody else filters keys: a gap of at most 3 % at 1,500 to 4,000 tokens of SmolLM2.
_KEEP, _FRACTION = 544, 0.3
#: More than half of the keys are not read faster than all of them by much.
_DENSITY = 0.5


class EventAttentionConfig(TechniqueConfig):
    """How many keys are attended to, how long the others' part may be stale, and how wrong."""

    keep: int | None = Field(
        None,
        ge=0,
        description="Keys attended to for their score, in tokens, where no other technique chooses "
        f"them. By default {_KEEP}, or {_FRACTION:g} of the context where that is more.",
    )
    age_max: int = Field(
        32,
        ge=1,
        description="Tokens after which all keys are attended to; layers take turns.",
    )
    gap_tol: float = Field(
        0.25,
        ge=0,
        description="Largest gap ‖y − y_full‖ / ‖y_full‖, measured where all keys are attended to; "
        "above it the layer attends to all of them until the sequence ends.",
    )


def fit(site: Site, weight: Any, statistics: Any, config: EventAttentionConfig) -> Fit:
    """Turns the configuration into attributes of the op; nothing is fitted.

    Raises:
        FitError: It is not known which layer of the model this is.
    """
    if site.layer is None:
        raise FitError("its layer is not known, which names the state")
    attributes: dict[str, int | float | str] = {
        "age_max": config.age_max,
        "turn": site.layer % config.age_max,
        "gap_tol": config.gap_tol,
    }
    if config.keep is not None:
        attributes["keep"] = config.keep
    return Fit({}, attributes, {}, 0.0)


def effect(site: Site, config: EventAttentionConfig, cost: Cost, keys: int) -> Cost:
    """Once in `age_max` a step reads what the filter leaves out, in each what is known of it."""
    if cost.left_out is None:
        keep, fraction = _kept(config.keep)
        cost = filtered(cost, site.head_size, keys, keep, 1, fraction, density=_DENSITY)
    if not cost.left_out:
        return cost
    known = 4 * _width(site)
    read = cost.read + round(cost.left_out / config.age_max) + known
    return replace(cost, read=read, sketch=cost.sketch + known)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Adds the state ``past_event.N.attention``, and a filter where there is none; the node stays.

    Raises:
        FitError: The attention was not recognised, or keys are to be kept that a filter chooses.
    """
    node = find_attention(model, site)
    past_key = node.inputs[PAST_KEY]
    assert past_key is not None
    assert past_key.shape is not None
    own, asked = dict(fit.attributes), "keep" in fit.attributes
    if input_at(node, PAST_SKETCH) is None:
        keep, fraction = _kept(int(own["keep"]) if asked else None)
        own |= {"keep": keep, "keep_fraction": fraction, "density": _DENSITY}
        add_sketch(model, node, planes=1)
    elif asked:
        raise FitError("another technique chooses its keys, and is to be told how many")
    set_attributes(node, own)
    shape = ir.Shape([past_key.shape[0], _width(site)])
    ports = (PAST_EVENT, PRESENT_EVENT)
    add_state(model, node, f"event.{site.layer}.attention", ports, (shape, shape))
    return [node]


def _kept(asked: int | None) -> tuple[int, float]:
    """Keys to keep for their score: a number, and a fraction of the context."""
    return (_KEEP, _FRACTION) if asked is None else (asked, 0.0)


def _width(site: Site) -> int:
    """Floats of the state: two, and of each query head a weight, a key and a value."""
    return 2 + site.heads * (1 + 2 * site.head_size)
