"""Declares kv-int8: a key or a value x of one token and KV head is stored as

    q = round(x / s),  s = max |x| / 127

in a row of head size / 4 + 1 floats, four q in each and then s. Attention reads what is stored,
also of the tokens of the same run, so that it does not matter how a prompt is cut into runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from tamiz.api import (
    CACHE,
    PAST_KEY,
    PRESENT_KEY,
    Claim,
    Cost,
    Fit,
    FitError,
    Mode,
    Resource,
    Site,
    SiteKind,
    Standing,
    Technique,
    TechniqueConfig,
    find_attention,
    hookimpl,
    set_attributes,
)

_PACKED = 4  # elements that share a float's place
#: How long 8 bits of a key or a value take to become a float and be multiplied, for each byte of
#: the float, in weights of an int4 product (`benchmarks/work.py`).
_WIDEN = 2.1


class KvInt8Config(TechniqueConfig):
    """Nothing to choose."""


def words(head_size: int) -> int:
    """Floats of a row."""
    return head_size // _PACKED + 1


def fit(site: Site, weight: Any, statistics: Any, config: KvInt8Config) -> Fit:
    """Turns the switch into an attribute of the op.

    Raises:
        FitError: The head size does not divide into words.
    """
    if site.head_size % _PACKED:
        raise FitError(
            f"its head size is {site.head_size}, expected a multiple of {_PACKED}: so many elements"
            " share a word of the cache"
        )
    return Fit({}, {"cache_bits": 8}, {}, 0.0)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Gives past and present keys and values their shape; the node stays.

    Raises:
        FitError: The attention was not recognised.
    """
    node = find_attention(model, site)
    set_attributes(node, fit.attributes)
    pasts = node.inputs[PAST_KEY : PAST_KEY + 2]
    for value in (*pasts, *node.outputs[PRESENT_KEY : PRESENT_KEY + 2]):
        assert value is not None
        assert value.shape is not None
        value.shape = ir.Shape([*value.shape[:3], words(site.head_size)])
        value.metadata_props[CACHE] = KV_INT8.name
    return [node]


def effect(site: Site, config: KvInt8Config, cost: Cost, keys: int) -> Cost:
    """A step reads the rows of the keys and values that it attends to."""
    if not site.head_size or site.head_size % _PACKED:
        return cost
    rows, part = cost.read - cost.sketch, words(site.head_size) / site.head_size
    return replace(
        cost,
        read=cost.sketch + round(rows * part),
        work=cost.work + round(_WIDEN * rows),
        scattered=round(cost.scattered * part),
    )


KV_INT8 = Technique(
    name="kv-int8",
    version="1",
    summary="The KV cache holds keys and values in 8 bits.",
    standing=Standing.SITUATIONAL,
    pays="Contexts from 2,000 tokens: half the cache; SmolLM2-135M decodes 1.38 × as fast.",
    config=KvInt8Config,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(Claim(Resource.CACHE, Mode.EXCLUSIVE),),
    effect=effect,
    fit=fit,
    rewrite=rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [KV_INT8]
