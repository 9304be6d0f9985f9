"""For every flag of every technique: a value, and what must be set for the value to matter."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlagCase:
    """One flag in a build.

    Attributes:
        value: What it is set to, other than its default.
        beside: Other arguments of the build with the flag.
        plain: Those of the build without it; None for the same.
    """

    value: str
    beside: str = ""
    plain: str | None = None


_EVENT = "--event-driven=on --event-anywhere=true"
_DECAY = f"{_EVENT} --event-reference=decay --event-stale-lambda=0.2"
_EVENT_KEYS = "--event-attention=on"
_HEAD = "--head-shortlist=on --head-keep=64 --head-dims=32"
_SEARCHED = "--head-shortlist=on --head-dims=32"
_KWTA, _BARE, _MASS = "--kwta=on --kwta-k=0.5", "--kwta=on", "--kwta=on --kwta-select=mass"
_PROC, _SEED = "--proc-sparse=on", "--seed-delta=on"
_PACK, _ZEROS = "--state-pack=binary", "--state-pack-mask=on --state-pack-mask-density=1"
_COUNTED = "--ternary=on --ternary-max-error=1 --state-pack-mlp=on"

CASES = {
    "--block-quant": FlagCase("off"),
    "--block-quant-bits": FlagCase("8"),
    "--block-quant-head-bits": FlagCase("4"),
    "--block-quant-scale-bits": FlagCase("8"),
    "--block-quant-format": FlagCase("q4_0"),
    "--block-quant-fit": FlagCase("search", "--block-quant-scale-bits=8"),
    "--activation-bits": FlagCase("8"),
    "--event-attention": FlagCase("on"),
    "--event-attention-theta": FlagCase("0.5", _EVENT_KEYS),
    "--event-attention-least-keys": FlagCase("4", _EVENT_KEYS),
    "--event-attention-age-max": FlagCase("4", _EVENT_KEYS),
    "--event-attention-gap-tol": FlagCase("0.5", _EVENT_KEYS),
    "--event-driven": FlagCase("on", "--event-anywhere=true", ""),
    "--event-target": FlagCase("mlp", _EVENT),
    "--event-reference": FlagCase("last", _EVENT),
    "--event-topk": FlagCase("0.5", _EVENT),
    "--event-select": FlagCase("topk", _EVENT),
    "--event-delta-theta": FlagCase("0.01", _EVENT),
    "--event-budget-ms": FlagCase("4", _EVENT),
    "--event-quorum": FlagCase("0.9", f"{_EVENT} --event-budget-ms=4"),
    "--event-gap-every": FlagCase("16", _EVENT),
    "--event-gap-tol": FlagCase("0.03", _EVENT),
    "--event-block": FlagCase("8", _EVENT),
    "--event-age-max": FlagCase("8", _EVENT),
    "--event-stale-beta": FlagCase("0.5", _DECAY),
    "--event-stale-lambda": FlagCase("0.1", f"{_EVENT} --event-reference=decay"),
    "--event-anywhere": FlagCase("true", "--event-driven=on"),
    "--head-shortlist": FlagCase("on", "--head-keep=64 --head-dims=32", ""),
    "--head-dims": FlagCase("16", _HEAD),
    "--head-sketch-bits": FlagCase("8", _HEAD),
    "--head-keep": FlagCase("32", _HEAD),
    "--head-recall": FlagCase("0.3", f"{_SEARCHED} --head-fill=-inf"),
    "--head-kl": FlagCase("5", f"{_SEARCHED} --head-recall=0.3"),
    "--head-fill": FlagCase("-inf", _HEAD),
    "--head-rows": FlagCase("2", _HEAD),
    "--key-filter": FlagCase("on"),
    "--sdr-threshold": FlagCase("0.1", "--key-filter=on"),
    "--sdr-keep": FlagCase("8", "--key-filter=on"),
    "--kv-int8": FlagCase("on"),
    "--kwta": FlagCase("on"),
    "--kwta-k": FlagCase("0.4", "--kwta=on"),
    "--kwta-k-abs": FlagCase("8", _BARE),
    "--kwta-strength": FlagCase("3", _BARE),
    "--kwta-max-keep": FlagCase("0.6", _BARE),
    "--kwta-select": FlagCase("topk", _KWTA),
    "--kwta-mass": FlagCase("0.6", _MASS),
    "--kwta-temp": FlagCase("0.5", _MASS),
    "--kwta-block": FlagCase("8", _KWTA),
    "--kwta-target": FlagCase("mlp", _KWTA),
    "--kwta-duty": FlagCase("2", _KWTA),
    "--kwta-first": FlagCase("0", _KWTA),
    "--kwta-weighted": FlagCase("false", _KWTA),
    "--kwta-center": FlagCase("true", _KWTA),
    "--kwta-renorm": FlagCase("true", _KWTA),
    "--proc-sparse": FlagCase("on"),
    "--proc-target": FlagCase("mlp", _PROC),
    "--proc-fanout": FlagCase("1", _PROC),
    "--proc-head-size": FlagCase("32", f"{_PROC} --proc-fanout=1"),
    "--proc-block": FlagCase("64", f"{_PROC} --proc-fanout=1"),
    "--proc-base-scale": FlagCase("0", _PROC),
    "--proc-watermark": FlagCase("8", _PROC),
    "--proc-shed-eps": FlagCase("1", _PROC),
    "--proc-bits": FlagCase("8", _PROC),
    "--seed-delta": FlagCase("on"),
    "--seed-delta-target": FlagCase("attn", _SEED),
    "--seed-delta-base": FlagCase("xor-circulant", _SEED),
    "--seed-delta-base-bits": FlagCase("3", f"{_SEED} --seed-delta-base=seedlm"),
    "--seed-delta-depth": FlagCase("3", f"{_SEED} --seed-delta-base=hadamard"),
    "--seed-delta-perm-trials": FlagCase("1", f"{_SEED} --seed-delta-base=hadamard"),
    "--seed-delta-row-scale": FlagCase("false", f"{_SEED} --seed-delta-base=hadamard"),
    "--seed-delta-scheme": FlagCase("coo", f"{_SEED} --seed-delta-k=16"),
    "--seed-delta-k": FlagCase("32", _SEED),
    "--seed-delta-block": FlagCase("64", f"{_SEED} --seed-delta-k=32"),
    "--seed-delta-bits": FlagCase("4", _SEED),
    "--seed-delta-refit": FlagCase("true", f"{_SEED} --seed-delta-k=32"),
    "--state-pack": FlagCase("ternary", _PACK),
    "--state-pack-eps": FlagCase("1", "--state-pack=ternary"),
    "--state-pack-popcnt": FlagCase("true", _PACK),
    "--state-pack-keep": FlagCase("8", _PACK),
    "--state-pack-keep-fraction": FlagCase("0.5", _PACK),
    "--state-pack-late-part": FlagCase("1", _PACK),
    "--state-pack-late-share": FlagCase("0.1", f"{_PACK} --state-pack-late-part=1"),
    "--state-pack-recent": FlagCase("8", _PACK),
    "--state-pack-density": FlagCase("0.1", _PACK),
    "--state-pack-exact-layers": FlagCase("1", _PACK),
    "--state-pack-mask": FlagCase("on", "--state-pack-mask-density=1", ""),
    "--state-pack-mask-eps": FlagCase("0.2", _ZEROS),
    "--state-pack-mask-block": FlagCase("8", f"{_ZEROS} --state-pack-mask-eps=0.5"),
    "--state-pack-mask-density": FlagCase("1", "--state-pack-mask=on"),
    "--state-pack-mlp": FlagCase("ternary", "--ternary=on --ternary-max-error=1"),
    "--state-pack-mlp-eps": FlagCase("0.5", f"{_COUNTED} --state-pack-mlp=ternary"),
    "--state-pack-mlp-density": FlagCase("0.1", _COUNTED),
    "--ternary": FlagCase("on", "--ternary-max-error=1", ""),
    "--ternary-max-error": FlagCase("1", "--ternary=on"),
    "--tt": FlagCase("on"),
    "--tt-cores": FlagCase("2", "--tt=on"),
    "--tt-tolerance": FlagCase("0.5", "--tt=on"),
    "--tt-rank": FlagCase("4", "--tt=on"),
    "--win-attn": FlagCase("on"),
    "--win-attn-tokens": FlagCase("16", "--win-attn=on"),
    "--win-attn-sinks": FlagCase("0", "--win-attn=on"),
}
