"""Declares state-pack."""

from __future__ import annotations

from tamiz import api
from tamiz_state_pack import kv_filter, popcount, signs, zero_mask
from tamiz_state_pack.kv_config import StatePackConfig

STATE_PACK = api.Technique.of(
    api.Identity(
        name="state-pack",
        summary="Attends exactly to the keys whose packed bits score best.",
        config=StatePackConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Contexts from 2,000 tokens: SmolLM2-135M decodes 1.25 × as fast, 2.56 × at 8,000.",
    ),
    api.Where(site_kinds={api.SiteKind.ATTENTION}, decode_only=True),
    api.Claims(
        claims=(
            api.Claim(api.Resource.KEYS, api.Mode.NARROWING, order=20),  # after a window
            api.Claim(api.Resource.SKETCH),
        ),
        provides={"refine"},
    ),
    api.Offline(fit=kv_filter.fit, options=lambda site: {"state-pack": {}}),
    api.Graph(
        rewrite=api.rewrite_filter, ops=("Attention.pack",), switch="Attention.without_choice"
    ),
    api.Planning(
        effect=kv_filter.effect, loss=lambda site, config: kv_filter.LOSS / max(1, site.layers)
    ),
)

MLP = {"ffn_gate", "ffn_up", "ffn_down"}

STATE_PACK_MLP = api.Technique.of(
    api.Identity(
        name="state-pack-mlp",
        summary="Multiplies packed activations by packed weights by counting set bits (popcount).",
        config=popcount.PopcountConfig,
        standing=api.Standing.EXPERIMENTAL,
        pays="No situation was found: more than half of the output is lost on SmolLM2-135M.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}, tensors=MLP),
    # After masks, whose skipped inputs are packed as 0; a second final choice has no effect.
    api.Claims(claims=(api.Claim(api.Resource.BUDGET),), requires={"packed-bits"}),
    api.Offline(fit=popcount.fit),
    api.Graph(
        rewrite=popcount.rewrite,
        ops=("PopcountMatMul",),
        switch="PopcountMatMul.without",
        shown={"pack.mode": "mode"},
    ),
)

STATE_PACK_MASK = api.Technique.of(
    api.Identity(
        name="state-pack-mask",
        summary="Skips the weights of what a ReLU made 0.",
        config=zero_mask.ZeroMaskConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Feed-forward blocks with a ReLU that leaves at most 0.2 of the activations.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}, tensors={"ffn_down"}),
    api.Claims(
        claims=(api.Claim(api.Resource.CANDIDATES, api.Mode.NARROWING, order=10, block="block"),),
        requires={"skippable-blocks"},
    ),
    api.Offline(fit=zero_mask.fit, calibrated=True),
    api.Graph(
        rewrite=zero_mask.rewrite, ops=("ZeroMask", "ChosenMatMul"), switch="ZeroMask.without"
    ),
    api.Planning(effect=zero_mask.effect),
)

STATE_PACK_SIGNS = api.Technique.of(
    api.Identity(
        name="state-pack-signs",
        summary="Predicts from signs which gates a ReLU closes, and computes the others only.",
        config=signs.SignsConfig,
        standing=api.Standing.SITUATIONAL,
        pays="With state-pack-mask, gates with a ReLU whose zeros signs predict; see its page.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}, tensors={"ffn_gate"}),
    # No product leaves both inputs and outputs out.
    api.Claims(
        claims=tuple(
            map(api.Claim, (api.Resource.OUTPUTS, api.Resource.CANDIDATES, api.Resource.BUDGET))
        ),
        requires={"packed-tiles"},
    ),
    api.Offline(
        fit=signs.fit,
        calibrated=True,
        strength=api.Strength("strength", fixed=("recall",), start=1.0),
    ),
    api.Graph(rewrite=signs.rewrite, ops=("SignMask",), switch="SignMask.without"),
    api.Planning(effect=signs.effect),
)

tamiz_techniques = api.offer(STATE_PACK, STATE_PACK_MLP, STATE_PACK_MASK, STATE_PACK_SIGNS)


@api.hookimpl
def tamiz_graph_passes() -> list[type[api.GraphPass]]:
    """Computes of `up` what the gate needs."""
    from tamiz_state_pack.unneeded import SkipUnneeded

    return [SkipUnneeded]
