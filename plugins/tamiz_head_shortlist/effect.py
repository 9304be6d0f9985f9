"""What head-shortlist makes of the cost of a head."""

from __future__ import annotations

from tamiz.api import Cost, Site
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.quantize import refined_tiles
from tamiz_ops.formats import GROUP, TILE, int_format

_OFFSET_BYTES = 4
#: Typical number of exact tiles where the fit chooses it for a recall.
_TYPICAL_TILES = 112
#: How long an output's bit takes to be added, by tables, in weights of an int4 product
#: (`benchmarks/kernels/work.py`).
_SIGN = 0.35


def effect(site: Site, config: HeadShortlistConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the sketch and the exact tiles in place of the head."""
    n, k = site.out_features, site.in_features
    dims = min(config.dims, k)
    tiles = -(-n // TILE)
    sketch = n * _OFFSET_BYTES + int_format(8).bytes(k, k)
    sketch += int_format(config.sketch_bits).bytes(n, dims)
    kept = min(_TYPICAL_TILES if config.keep is None else -(-config.keep // TILE), tiles)
    read, refined = sketch, 0
    if dims < k:
        signs = TILE * (-(-(k - dims) // GROUP) * GROUP // 8 + 2)  # of a tile
        refined = max(refined_tiles(tiles), kept)
        sketch += 2 * tiles * signs + n * _OFFSET_BYTES
        read += tiles * signs + refined * (signs + TILE * _OFFSET_BYTES)
    share = kept / tiles
    signed = round(_SIGN * (k - dims) * (n + refined * TILE))
    work = k * k + dims * n + signed + round(cost.work * share)
    return Cost(cost.stored + sketch, read + round(cost.read * share), work)


def loss(site: Site, config: HeadShortlistConfig) -> float:
    """The divergence that the fit may reach; with a fill of minus infinity none is bounded."""
    return config.kl if config.fill == "estimate" else 2 * config.kl


def options(site: Site) -> dict[str, dict[str, float]]:
    """How far the estimates may be from the exact logits."""
    return {f"head-shortlist {kl:g}": {"kl": kl} for kl in (0.0175, 0.008, 0.004)}
