"""Declares state-pack."""

from __future__ import annotations

from tamiz import api
from tamiz_state_pack import kv_filter, popcount, zero_mask
from tamiz_state_pack.kv_config import StatePackConfig

STATE_PACK = api.Technique(
    name="state-pack",
    summary="Attends exactly to the keys whose packed bits score best.",
    standing=api.Standing.SITUATIONAL,
    pays="Contexts from 2,000 tokens: SmolLM2-135M decodes 1.25 × as fast, 2.56 × at 8,000.",
    config=StatePackConfig,
    site_kinds={api.SiteKind.ATTENTION},
    claims=(
        api.Claim(api.Resource.KEYS, api.Mode.NARROWING, order=20),  # after a window
        api.Claim(api.Resource.SKETCH),
    ),
    provides={"refine"},  # what is kept is scored exactly
    decode_only=True,
    ops=("Attention.pack",),
    switch="Attention.without_choice",
    rungs=lambda site: {"state-pack": {}},
    effect=kv_filter.effect,
    loss=lambda site, config: kv_filter.LOSS / max(1, site.layers),
    fit=kv_filter.fit,
    rewrite=api.rewrite_filter,
)

MLP = {"ffn_gate", "ffn_up", "ffn_down"}

STATE_PACK_MLP = api.Technique(
    name="state-pack-mlp",
    summary="Multiplies packed activations by packed weights by counting set bits (popcount).",
    standing=api.Standing.EXPERIMENTAL,
    pays="No situation was found: more than half of the output is lost on SmolLM2-135M.",
    config=popcount.PopcountConfig,
    site_kinds={api.SiteKind.LINEAR},
    tensors=MLP,
    # After masks, whose skipped inputs are packed as 0. A second final choice would have no effect.
    claims=(api.Claim(api.Resource.BUDGET),),
    requires={"packed-bits"},
    ops=("PopcountMatMul",),
    switch="PopcountMatMul.without",
    shown={"pack.mode": "mode"},
    fit=popcount.fit,
    rewrite=popcount.rewrite,
)

STATE_PACK_MASK = api.Technique(
    name="state-pack-mask",
    summary="Skips the weights of inputs that a ReLU made 0.",
    standing=api.Standing.SITUATIONAL,
    pays="Feed-forward blocks with a ReLU that leaves at most 0.3 of the activations.",
    config=zero_mask.ZeroMaskConfig,
    site_kinds={api.SiteKind.LINEAR},
    tensors={"ffn_down"},
    claims=(api.Claim(api.Resource.CANDIDATES, api.Mode.NARROWING, order=10, block="block"),),
    requires={"skippable-blocks"},
    calibrated=True,
    ops=("ZeroMask",),
    switch="ZeroMask.without",
    effect=zero_mask.effect,
    fit=zero_mask.fit,
    rewrite=zero_mask.rewrite,
)

tamiz_techniques = api.offer(STATE_PACK, STATE_PACK_MLP, STATE_PACK_MASK)
