"""Attention: keys that weigh little keep the mean value that they had last.

Every key is scored by four bits an element; only those that weigh are attended to. The rest is one
window, computed anew every `age_max` tokens (ort_ops' ``ops/attention/event_choice.cc``).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tamiz.api import (
    POLICY_ONLY,
    Access,
    Cost,
    Fit,
    FitError,
    GraphEditor,
    Part,
    Site,
    TechniqueConfig,
    add_sketch,
    attribute_of,
    input_of,
    set_attention,
    sketch_words,
)

if TYPE_CHECKING:
    import onnx_ir as ir

#: Bits of a key's element.
_PLANES = 4
#: Keys that weigh more than theta / sqrt(n) of n, over sqrt(n), at this theta, on SmolLM2 and text;
#: it falls as theta ** -0.7.
_WEIGHTY, _THETA, _POWER = 4.6, 0.027, 0.7
#: How much longer a key takes to be scored and chosen than a weight of an int4 product, for each
#: byte of the key and its value (`benchmarks/kernels/work.py`).
_SCORED = 0.5


class EventAttentionConfig(TechniqueConfig):
    """Which keys are attended to, how long the others' part may be stale, and how wrong."""

    theta: float = Field(
        _THETA,
        ge=0,
        description="Threshold of attended keys: a key is attended if a query head gives it more "
        "than theta / √keys of its softmax. The keys that are skipped then leave a gap of about "
        "theta.",
    )
    least_keys: int = Field(
        512,
        ge=0,
        description="Smallest context, in tokens, at which keys are skipped; below it a step "
        "attends to all keys.",
        json_schema_extra=POLICY_ONLY,
    )
    age_max: int = Field(
        32,
        ge=1,
        description="Tokens between two steps in which a layer attends to all keys. Different "
        "layers do so in different steps.",
        json_schema_extra=POLICY_ONLY,
    )
    gap_tol: float = Field(
        0.25,
        ge=0,
        description="Largest accepted gap ‖y − y_full‖ / ‖y_full‖, measured whenever a layer "
        "attends to all keys. Beyond it the layer attends to all keys until the sequence ends.",
    )


def fit(site: Site, weight: Any, statistics: Any, config: EventAttentionConfig) -> Fit:
    """Turns the configuration into attributes of the op; nothing is fitted.

    Raises:
        FitError: It is not known which layer of the model this is.
    """
    if site.layer is None:
        raise FitError("its layer is not known, which names the state")
    attributes: dict[str, int | float | str] = {
        "theta": config.theta,
        "least_keys": config.least_keys,
        "age_max": config.age_max,
        "turn": site.layer % config.age_max,
        "gap_tol": config.gap_tol,
    }
    return Fit(attributes=attributes)


def effect(site: Site, config: EventAttentionConfig, cost: Cost, keys: int) -> Cost:
    """A step reads four bits of every key, what weighs, and once in `age_max` the others.

    How many keys weigh is the model's and the text's: what SmolLM2 has is taken.
    """
    if site.head_size == 0 or keys < config.least_keys:
        return cost
    kept = keys
    if config.theta > 0:
        weighty = _WEIGHTY * math.sqrt(keys) * (config.theta / _THETA) ** -_POWER
        kept = min(keys, round(weighty))
    rows = round(cost.read * kept / keys)
    rest = round((cost.read - rows) / config.age_max)
    nibbles = round(cost.read * sketch_words(site.head_size, _PLANES) / (2 * site.head_size))
    bytes_of_keys = nibbles + 4 * _width(site)
    mean = cost.read // keys // 2  # float32, as long as a key
    index = Part(bytes_of_keys, round(_SCORED * cost.read))
    parts = {Access.RECORDS: Part(rows), Access.INDEX: index}
    return Cost(
        cost.stored + mean, rows + rest + bytes_of_keys, cost.work, exact=False, parts=parts
    )


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Adds the states ``past_sketch.N`` and ``past_event.N.attention``; the node stays.

    Raises:
        FitError: The attention was not recognised, or the model has a window or sinks there.
    """
    own = GraphEditor(model).attention(site)
    if window := attribute_of(own, "window"):
        raise FitError(f"the model has a window of {window} keys there, expected none")
    if input_of(own, "head_sink") is not None:
        raise FitError("the model has sinks in its softmax there, expected none")
    [node] = set_attention(site, fit, model)
    add_sketch(model, node, _PLANES)
    past_key = input_of(node, "past_key")
    assert past_key is not None
    assert past_key.shape is not None
    graph, shape = GraphEditor(model), [past_key.shape[0], _width(site)]
    past = graph.add_past(f"event.{site.layer}.attention", shape)
    graph.connect(node, "past_event", past)
    graph.add_present(node, "present_event", past, shape)
    return [node]


def _width(site: Site) -> int:
    """Floats of the state: two, and a value of each query head."""
    return 2 + site.heads * site.head_size
