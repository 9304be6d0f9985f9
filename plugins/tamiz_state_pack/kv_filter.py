"""The key/value filter at an attention site."""

from __future__ import annotations

from typing import Any

from tamiz.api import Cost, Fit, FitError, Site, filtered_cost
from tamiz_state_pack.kv_config import StatePackConfig

#: KL divergence with the default configuration in all layers, in nats per token: the mean of
#: SmolLM2-135M (0.0031) and Qwen2.5-Coder-0.5B (0.0194), the last 256 of 2,048 tokens, which it
#: narrows (`lab/2026-11-25-int8-cache.md`).
LOSS = 0.0113


def fit(site: Site, weight: Any, statistics: Any, config: StatePackConfig) -> Fit:
    """Turns the configuration into attributes of the op; nothing is fitted.

    Raises:
        FitError: The attention is in no layer.
    """
    if site.layer is None:
        raise FitError("it is in no layer")
    ternary = config.mode == "ternary"
    keep, keep_fraction = kept(site, config)
    attributes = {
        "keep": keep,
        "keep_fraction": keep_fraction,
        "recent": config.recent,
        "density": config.density,
        "ternary": int(ternary),
        "epsilon": config.eps if ternary else 0.0,
        "query_bits": 2 if config.popcnt else 4,
    }
    return Fit(attributes=attributes)


def kept(site: Site, config: StatePackConfig) -> tuple[int, float]:
    """Keys that the layer keeps at least, and the fraction of the context."""
    limits = config.limits()
    late = site.layer is not None and site.layer >= (1 - limits.late_part) * site.layers
    share = limits.late_share if late else 1.0
    return round(share * limits.keep), share * limits.keep_fraction


def effect(site: Site, config: StatePackConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the bits of every key, and the keys and values that it keeps."""
    if site.layer is None:
        return cost
    keep, keep_fraction = kept(site, config)
    planes = 2 if config.mode == "ternary" else 1
    limits = (keep_fraction, config.recent, config.density)
    return filtered_cost(cost, site.head_size, keys, keep, planes, *limits)
