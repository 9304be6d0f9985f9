"""Declares state-pack."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import (
    Claim,
    Metric,
    Mode,
    Resource,
    SiteKind,
    Standing,
    Technique,
    hookimpl,
    rewrite_filter,
)
from tamiz_state_pack import kv_filter, popcount, zero_mask
from tamiz_state_pack.kv_config import StatePackConfig

STATE_PACK = Technique(
    name="state-pack",
    version="1",
    summary="Decode steps attend to the keys whose packed bits score best, exactly.",
    standing=Standing.SITUATIONAL,
    pays="Contexts from 2,000 tokens: SmolLM2-135M decodes 1.25 × as fast, 2.56 × at 8,000.",
    config=StatePackConfig,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(
        Claim(Resource.KEYS, Mode.NARROWING, order=20),  # after a window
        Claim(Resource.SKETCH, Mode.EXCLUSIVE),
    ),
    provides=frozenset({"refine"}),  # what is kept is scored exactly
    decode_only=True,
    metrics=(
        Metric("pack.enabled", "calls", "Decode steps of attention that keep sketches."),
        Metric("pack.active", "calls", "Those of them in which the filter chose the keys."),
        Metric("pack.attended", "keys", "Keys attended, by KV head."),
        Metric("pack.visible", "keys", "Keys there were to attend to, by KV head."),
        Metric("pack.density", "share", "Keys attended of those visible, summed over calls."),
        Metric("pack.mode", "planes", "Of the sketches, summed over calls: 1 binary, 2 ternary."),
        Metric("pack.popcnt", "calls", "Active ones with the query packed as the keys are."),
    ),
    effect=kv_filter.effect,
    fit=kv_filter.fit,
    rewrite=rewrite_filter,
)

MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})

STATE_PACK_MLP = Technique(
    name="state-pack-mlp",
    version="1",
    summary="Feed-forward products of packed activations and packed weights, by popcounts.",
    standing=Standing.EXPERIMENTAL,
    pays="No situation was found: more than half of the output is lost on SmolLM2-135M.",
    config=popcount.PopcountConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    tensors=MLP,
    # After masks: what they leave out is packed as 0. Another final choice would be lost in it.
    claims=(Claim(Resource.BUDGET, Mode.EXCLUSIVE),),
    requires=frozenset({"packed-bits"}),
    metrics=(
        Metric("pack.enabled", "tokens", "Packed."),
        Metric("pack.active", "tokens", "Of them those that were multiplied by popcounts."),
        Metric("pack.nonzero", "inputs", "Packed as other than 0; over pack.inputs: density."),
        Metric("pack.inputs", "inputs", "Packed."),
    ),
    fit=popcount.fit,
    rewrite=popcount.rewrite,
)

STATE_PACK_MASK = Technique(
    name="state-pack-mask",
    version="1",
    summary="The weights of inputs that a ReLU made 0 are not read.",
    standing=Standing.SITUATIONAL,
    pays="Feed-forward blocks with a ReLU that leaves at most 0.3 of the activations.",
    config=zero_mask.ZeroMaskConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    tensors=frozenset({"ffn_down"}),
    claims=(Claim(Resource.CANDIDATES, Mode.NARROWING, order=10, block="block"),),
    requires=frozenset({"skippable-blocks"}),
    calibrated=True,
    metrics=(
        Metric("pack.enabled", "tokens", "That could be masked."),
        Metric("pack.active", "tokens", "Of them those that were masked."),
        Metric("pack.nonzero", "blocks", "Larger than eps; over pack.inputs: density."),
        Metric("pack.inputs", "blocks", "That there were."),
    ),
    effect=zero_mask.effect,
    fit=zero_mask.fit,
    rewrite=zero_mask.rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The techniques of this plugin."""
    return [STATE_PACK, STATE_PACK_MLP, STATE_PACK_MASK]
