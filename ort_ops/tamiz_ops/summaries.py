"""What sessions counted, and what that says of a run: shares and means under the names of
docs/guides/switch-off-and-measure.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

#: Sums by metric, of one op.
Sums = Mapping[str, float]
#: Node or part → op → metric → sum.
Counts = Mapping[str, Mapping[str, Sums]]


class Quotient(NamedTuple):
    """A metric that is the quotient of two sums."""

    over: str
    under: str
    unit: str
    description: str


#: Metrics that are quotients. Where one is named as a sum is, it takes the place of the sum.
QUOTIENTS: dict[str, tuple[Quotient, ...]] = {
    "kwta.keep_ratio": (
        Quotient("kwta.kept", "kwta.blocks", "fraction", "Share of the blocks that are computed."),
    ),
    "event.topk_kept": (
        Quotient(
            "event.topk_kept",
            "event.enabled",
            "inputs",
            "Inputs (of attention: keys) that a step computes, mean of event.enabled steps.",
        ),
    ),
    "event.quality_gap": (
        Quotient("event.quality_gap", "event.gap_checks", "fraction", "Mean measured gap."),
    ),
    "pack.density": (
        Quotient("pack.nonzero", "pack.inputs", "fraction", "Share of the inputs that are not 0."),
        Quotient(
            "pack.density", "pack.enabled", "fraction", "Attended keys divided by visible keys."
        ),
    ),
    "pack.mode": (
        Quotient("pack.mode", "pack.enabled", "planes", "Bits per sketched element of a key."),
    ),
}
_STALE = "event.stale_pct"
#: Sums that say nothing beside the quotients that they are parts of.
_PARTS = {
    "calls",
    "tokens",
    "event.channels",
    "kwta.blocks",
    "kwta.kept",
    "pack.attended",
    "pack.inputs",
    "pack.nonzero",
    "pack.visible",
}


def summarise(sums: Sums) -> dict[str, float | None]:
    """The metrics of a technique from the sums that its ops counted.

    Args:
        sums: By metric.

    Returns:
        By name, sorted: sums as they are, and quotients, None where nothing was counted.
        `event.stale_pct` is the share of inputs that were not computed, in percent.
    """
    result: dict[str, float | None] = {k: v for k, v in sums.items() if k not in _PARTS}
    for name, ways in QUOTIENTS.items():
        for way in ways:
            if way.over in sums and way.under in sums:
                result[name] = sums[way.over] / sums[way.under] if sums[way.under] else None
    if "event.channels" in sums:
        kept, every = sums["event.topk_kept"], sums["event.channels"]
        result[_STALE] = 100 * (1 - kept / every) if every else None
    return dict(sorted(result.items()))


def unit_of(name: str, declared: Mapping[str, str]) -> str:
    """Unit of a metric that `summarise` gives; `declared` has the units of sums."""
    if name == _STALE:
        return "%"
    if name in QUOTIENTS:
        return QUOTIENTS[name][0].unit
    return declared.get(name, "")


def total(counts: Counts, ops: Iterable[str]) -> dict[str, float]:
    """Sums of all nodes and parts.

    Args:
        counts: What was counted.
        ops: Ops whose sums to add up: ``KwtaMask``, or ``Attention.pack`` for the metrics of an op
            whose names start with ``pack.``.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    for entry in ops:
        op_type, _, prefix = entry.partition(".")
        for by_op in counts.values():
            for name, value in by_op.get(op_type, {}).items():
                if name.startswith(prefix):
                    sums[name] += value
    return dict(sums)
