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


_EVENT = "--event-driven=on --event-driven-anywhere=true"
_DECAY = f"{_EVENT} --event-driven-reference=decay --event-driven-stale-lambda=0.2"
_EVENT_KEYS = "--event-attention=on"
_HEAD = "--head-shortlist=on --head-shortlist-keep=64 --head-shortlist-dims=32"
_SEARCHED = "--head-shortlist=on --head-shortlist-dims=32"
_KWTA, _BARE, _MASS = "--kwta=on --kwta-k=0.5", "--kwta=on", "--kwta=on --kwta-select=mass"
_PROC, _SEED = "--proc-sparse=on", "--seed-delta=on"
_PACK, _ZEROS = "--state-pack=binary", "--state-pack-mask=on --state-pack-mask-density=1"
_SIGNS = "--state-pack-signs=on --state-pack-signs-density=1"
_COUNTED = "--ternary=on --ternary-max-error=1 --state-pack-mlp=on"

CASES = {
    "--block-quant": FlagCase("off"),
    "--block-quant-bits": FlagCase("8"),
    "--block-quant-head-bits": FlagCase("4"),
    "--block-quant-scale-bits": FlagCase("8"),
    "--block-quant-scale-inputs": FlagCase("128", "--block-quant-bits=8"),
    "--block-quant-format": FlagCase("q4_0"),
    "--block-quant-fit": FlagCase("search", "--block-quant-scale-bits=8"),
    "--activation-bits": FlagCase("8"),
    "--event-attention": FlagCase("on"),
    "--event-attention-theta": FlagCase("0.5", _EVENT_KEYS),
    "--event-attention-least-keys": FlagCase("4", _EVENT_KEYS),
    "--event-attention-age-max": FlagCase("4", _EVENT_KEYS),
    "--event-attention-gap-tol": FlagCase("0.5", _EVENT_KEYS),
    "--event-driven": FlagCase("on", "--event-driven-anywhere=true", ""),
    "--event-driven-target": FlagCase("mlp", _EVENT),
    "--event-driven-reference": FlagCase("last", _EVENT),
    "--event-driven-topk": FlagCase("0.5", _EVENT),
    "--event-driven-select": FlagCase("topk", _EVENT),
    "--event-driven-delta-theta": FlagCase("0.01", _EVENT),
    "--event-driven-budget-ms": FlagCase("4", _EVENT),
    "--event-driven-quorum": FlagCase("0.9", f"{_EVENT} --event-driven-budget-ms=4"),
    "--event-driven-gap-every": FlagCase("16", _EVENT),
    "--event-driven-gap-tol": FlagCase("0.03", _EVENT),
    "--event-driven-block": FlagCase("8", _EVENT),
    "--event-driven-age-max": FlagCase("8", _EVENT),
    "--event-driven-stale-beta": FlagCase("0.5", _DECAY),
    "--event-driven-stale-lambda": FlagCase("0.1", f"{_EVENT} --event-driven-reference=decay"),
    "--event-driven-anywhere": FlagCase("true", "--event-driven=on"),
    "--head-shortlist": FlagCase("on", "--head-shortlist-keep=64 --head-shortlist-dims=32", ""),
    "--head-shortlist-dims": FlagCase("16", _HEAD),
    "--head-shortlist-sketch-bits": FlagCase("8", _HEAD),
    "--head-shortlist-keep": FlagCase("32", _HEAD),
    "--head-shortlist-recall": FlagCase("0.3", f"{_SEARCHED} --head-shortlist-fill=-inf"),
    "--head-shortlist-kl": FlagCase("5", f"{_SEARCHED} --head-shortlist-recall=0.3"),
    "--head-shortlist-fill": FlagCase("-inf", _HEAD),
    "--head-shortlist-rows": FlagCase("2", _HEAD),
    "--key-filter": FlagCase("on"),
    "--key-filter-threshold": FlagCase("0.1", "--key-filter=on"),
    "--key-filter-keep": FlagCase("8", "--key-filter=on"),
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
    "--proc-sparse-target": FlagCase("mlp", _PROC),
    "--proc-sparse-fanout": FlagCase("1", _PROC),
    "--proc-sparse-head-size": FlagCase("32", f"{_PROC} --proc-sparse-fanout=1"),
    "--proc-sparse-block": FlagCase("64", f"{_PROC} --proc-sparse-fanout=1"),
    "--proc-sparse-base-scale": FlagCase("0", _PROC),
    "--proc-sparse-watermark": FlagCase("8", _PROC),
    "--proc-sparse-shed-eps": FlagCase("1", _PROC),
    "--proc-sparse-bits": FlagCase("8", _PROC),
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
    "--state-pack-mask": FlagCase("on", "--state-pack-mask-density=1", ""),
    "--state-pack-mask-eps": FlagCase("0.2", _ZEROS),
    "--state-pack-mask-block": FlagCase("8", f"{_ZEROS} --state-pack-mask-eps=0.5"),
    "--state-pack-mask-density": FlagCase("1", "--state-pack-mask=on"),
    "--state-pack-signs": FlagCase("on", "--state-pack-signs-density=1", ""),
    "--state-pack-signs-strength": FlagCase("4", _SIGNS),
    "--state-pack-signs-recall": FlagCase("0.9", _SIGNS),
    "--state-pack-signs-density": FlagCase("1", "--state-pack-signs=on"),
    "--state-pack-signs-planes": FlagCase("1", _SIGNS),
    "--state-pack-mlp": FlagCase("ternary", "--ternary=on --ternary-max-error=1"),
    "--state-pack-mlp-eps": FlagCase("0.5", f"{_COUNTED} --state-pack-mlp=ternary"),
    "--state-pack-mlp-density": FlagCase("0.1", _COUNTED),
    "--ternary": FlagCase("on", "--ternary-max-error=1", ""),
    "--ternary-max-error": FlagCase("1", "--ternary=on"),
    "--tensor-train": FlagCase("on"),
    "--tensor-train-cores": FlagCase("2", "--tensor-train=on"),
    "--tensor-train-tolerance": FlagCase("0.5", "--tensor-train=on"),
    "--tensor-train-rank": FlagCase("4", "--tensor-train=on"),
    "--window-attention": FlagCase("on"),
    "--window-attention-tokens": FlagCase("16", "--window-attention=on"),
    "--window-attention-sinks": FlagCase("0", "--window-attention=on"),
}
