"""What head-shortlist stores and reads."""

from __future__ import annotations

from tamiz.site import Site
from tamiz.technique import Cost
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.quantise import GROUP, TILE

_OFFSET_BYTES = 4


def cost(site: Site, config: HeadShortlistConfig) -> Cost:
    """The sketch, all of which is read, and the part of the head that `keep` reads.

    Without `keep` the fit decides on that part, and none of it is counted.
    """
    n, k = site.out_features, site.in_features
    dims = min(config.dims, k)
    tiles = -(-n // TILE)
    rest = k - dims if config.planes else 0
    project = -(-(dims + rest) // TILE) * _groups(k) * TILE * (GROUP + 2)
    sketch = tiles * _groups(dims) * TILE * (GROUP * config.sketch_bits // 8 + 2)
    if config.sketch_bits == 4:
        sketch += tiles * _groups(dims) * TILE * 2  # minima
    signs = tiles * TILE * (config.planes * _groups(rest) * GROUP // 8 + 2) if rest else 0
    stored = project + sketch + signs + n * _OFFSET_BYTES
    kept = 0 if config.keep is None else min(-(-config.keep // TILE), tiles)
    return Cost(stored, stored, kept / tiles)


def _groups(k: int) -> int:
    return -(-k // GROUP)
