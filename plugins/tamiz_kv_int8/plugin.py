"""Declares kv-int8: a key or a value x of one token and KV head is stored as

    q = round(x / s),  s = max |x| / 127

in a row of head size / 4 + 1 floats, four q in each and then s. Attention reads what is stored,
also of the tokens of the same run, so the result does not depend on how a prompt is cut into runs.
Of a key x is (k - mean) / scale, with constants of the head that the pass `key-statistics` measures
(`ort_ops/src/ops/attention/key_value_cache.h` has the equations).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tamiz import api

if TYPE_CHECKING:
    import onnx_ir as ir

_PACKED = 4  # elements that share a float's place
_MOST = 512  # elements whose products with queries of 16 bits fit an integer of 32 bits
#: Time to make a float of 8 bits of a key or a value and multiply it, in int4 multiply-accumulates
#: for each byte of the float (`benchmarks/kernels/work.py`).
_WIDEN = 1.8
#: KL divergence with all layers in 8 bits, in nats per token: the median of Qwen2.5-Coder-1.5B
#: (0.00023), Qwen2.5-Coder-0.5B (0.00034), SmolLM2-135M (0.00052) and Gemma-3-270M (0.0018), see
#: `lab/2026-11-25-int8-cache.md`.
_LOSS = 0.0004


class KvInt8Config(api.TechniqueConfig):
    """Nothing to choose."""


def words(head_size: int) -> int:
    """Floats of a row."""
    return head_size // _PACKED + 1


def _fits(head_size: int) -> bool:
    return head_size % _PACKED == 0 and head_size <= _MOST


def fit(site: api.Site, weight: Any, statistics: Any, config: KvInt8Config) -> api.Fit:
    """Turns the switch into an attribute of the op.

    Raises:
        FitError: The head size does not divide into words, or is too large.
    """
    if not _fits(site.head_size):
        raise api.FitError(
            f"its head size is {site.head_size}, expected a multiple of {_PACKED} up to {_MOST}"
        )
    return api.Fit(attributes={"cache_bits": 8})


def rewrite(site: api.Site, fit: api.Fit, model: ir.Model) -> list[ir.Node]:
    """Gives past and present keys and values their shape; the node stays.

    Raises:
        FitError: The attention was not recognised, or others read its keys and values, too.
    """
    import onnx_ir as ir

    present_key = api.output_of(api.GraphEditor(model).attention(site), "present_key")
    if present_key is not None and present_key.uses():
        raise api.FitError("other layers read its keys and values, as floats")
    [node] = api.set_attention(site, fit, model)
    pasts = [api.input_of(node, port) for port in ("past_key", "past_value")]
    presents = [api.output_of(node, port) for port in ("present_key", "present_value")]
    for value in (*pasts, *presents):
        assert value is not None
        assert value.shape is not None
        value.shape = ir.Shape([*value.shape[:3], words(site.head_size)])
        value.metadata_props[api.CACHE] = KV_INT8.name
    return [node]


def effect(site: api.Site, config: KvInt8Config, cost: api.Cost, keys: int) -> api.Cost:
    """A step reads the rows of the keys and values that it attends to.

    Mean and scale of the keys are stored, float32; a filter has stored the mean before.
    """
    if not site.head_size or not _fits(site.head_size):
        return cost
    part, parts = words(site.head_size) / site.head_size, dict(cost.parts)
    sketch = cost.part(api.Access.INDEX).read
    rows = cost.read - sketch
    if chosen := cost.part(api.Access.RECORDS).read:
        parts[api.Access.RECORDS] = api.Part(round(chosen * part))
    read, work = sketch + round(rows * part), cost.work + round(_WIDEN * rows)
    constants = cost.stored or cost.read // max(1, keys)
    return replace(cost, stored=cost.stored + constants, read=read, work=work, parts=parts)


KV_INT8 = api.Technique.of(
    api.Identity(
        name="kv-int8",
        summary="Stores keys and values of the KV cache in 8 bits.",
        config=KvInt8Config,
        standing=api.Standing.SITUATIONAL,
        pays="Contexts from 2,000 tokens: half the cache; SmolLM2-135M decodes 1.38 × as fast.",
    ),
    api.Where(site_kinds={api.SiteKind.ATTENTION}),
    api.Claims(claims=(api.Claim(api.Resource.CACHE),)),
    api.Offline(fit=fit, options=lambda site: {"kv-int8": {}}),
    api.Graph(rewrite=rewrite),
    api.Planning(effect=effect, loss=lambda site, config: _LOSS / max(1, site.layers)),
)
tamiz_techniques = api.offer(KV_INT8)
