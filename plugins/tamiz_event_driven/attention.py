"""Attention: what a key filter leaves out keeps the part of the softmax that it had last.

The filter is the top-K prefilter; the rest of the keys is one window, computed anew every `age_max`
tokens, in between a stale value with a weight that follows the query (ort_ops'
``ops/event_attention.cc``).
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from pydantic import Field

from tamiz.attention import PAST_KEY, find_attention, set_attributes
from tamiz.site import Site
from tamiz.technique import Fit, FitError, TechniqueConfig

#: Where tamiz.Attention has its state.
_PAST_EVENT, _PRESENT_EVENT = 10, 4


class EventAttentionConfig(TechniqueConfig):
    """How long a value may be stale, and how wrong."""

    age_max: int = Field(
        16,
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
    attributes = {
        "age_max": config.age_max,
        "turn": site.layer % config.age_max,
        "gap_tol": config.gap_tol,
    }
    return Fit({}, attributes, {}, 0.0)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Sets the attributes and adds the state ``past_event.N.attention``; the node stays.

    Raises:
        FitError: The attention was not recognised.
    """
    node = find_attention(model, site)
    past_key = node.inputs[PAST_KEY]
    assert past_key is not None
    assert past_key.shape is not None
    heads = node.attributes["num_heads"].as_int()
    set_attributes(node, fit.attributes)
    kind = ir.TensorType(ir.DataType.FLOAT)
    shape = ir.Shape([past_key.shape[0], 2 + heads * (1 + 2 * site.head_size)])
    past = ir.Value(name=f"past_event.{site.layer}.attention", shape=shape, type=kind)
    model.graph.inputs.append(past)
    node.resize_inputs(_PAST_EVENT + 1)
    node.replace_input_with(_PAST_EVENT, past)
    node.resize_outputs(_PRESENT_EVENT + 1)
    present = node.outputs[_PRESENT_EVENT]
    present.name = f"present_event.{site.layer}.attention"
    present.shape, present.type = shape, kind
    model.graph.outputs.append(present)
    return [node]
