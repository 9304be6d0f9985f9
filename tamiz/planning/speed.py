"""Predicted speed of a plan on a measured machine.

A decode step goes through the sites one after the other. At a weight it takes

    t = √((streamed / read rate + records / record rate)² + (work / product rate)²) + a product

with the rates of a working set as large as all that a step reads. Reading and multiplying overlap
in part: a thread that unpacks weights asks for fewer of the next ones. At an attention it takes

    t = max(streamed / attention rate + records / chosen rate, work / product rate)
        + max(index / read rate, work of the index / product rate) + an attention

with the parts of `tamiz.api.Access`, and *a product* and *an attention* the fixed time of each, see
`tamiz.system.machine`.
Every other node of the recognised graph takes as long as a norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tamiz.api.cost import Access, Cost
from tamiz.api.site import Site, SiteKind
from tamiz.planning.costs import Prediction, Sizes
from tamiz.system.machine import MachineSpeed, Profile


@dataclass(frozen=True)
class SpeedPrediction:
    """Predicted decode speed with a number of threads.

    Attributes:
        threads: The threads.
        before: Tokens per second of the dense model.
        after: Tokens per second of the model as planned.
        sites: Seconds of a step by site id, as planned.
    """

    threads: int
    before: float
    after: float
    sites: dict[str, float]


def predict(
    model: Sizes,
    predictions: Sequence[Prediction],
    total: tuple[Cost, Cost],
    profile: Profile | None,
) -> list[SpeedPrediction]:
    """Predicts the speed of a plan.

    Args:
        model: The dense model.
        predictions: What every site costs; see `tamiz.planning.costs.predict`.
        total: What the model costs before and after; see `tamiz.planning.costs.totals`.
        profile: The measured machine; None where it is not known.

    Returns:
        One prediction for each number of threads that was measured.
    """
    by_threads = []
    for speed in profile.speeds if profile else ():
        costs = (
            {p.plan.site: p.before for p in predictions},
            {p.plan.site: p.after for p in predictions},
        )
        spent = [
            {site.id: site_seconds(site, cost, whole.read, speed) for site, cost in by_site.items()}
            for by_site, whole in zip(costs, total, strict=True)
        ]
        rates = []
        for seconds in spent:
            others = model.nodes - sum(value > 0 for value in seconds.values())
            rates.append(1 / (sum(seconds.values()) + max(0, others) * speed.node_us * 1e-6))
        by_threads.append(SpeedPrediction(speed.threads, rates[0], rates[1], spent[1]))
    return by_threads


def site_seconds(site: Site, cost: Cost, working_set: int, speed: MachineSpeed) -> float:
    """Seconds that a step spends at one site; 0 where nothing is read.

    Args:
        site: The site.
        cost: What it costs.
        working_set: Bytes that a whole step reads.
        speed: The measured machine.
    """
    if cost.read == 0:
        return 0.0
    if site.kind is not SiteKind.ATTENTION:
        return _product_seconds(cost, working_set, speed)
    product, read = 1 / (speed.products_g_s * 1e9), 1 / speed.read_rate(working_set)
    records, index = cost.part(Access.RECORDS), cost.part(Access.INDEX)
    rows = cost.read - records.read - index.read
    before = max(index.read * read, index.work * product)
    reading = 1e-9 * (rows / speed.attention_gb_s + records.read / speed.chosen_gb_s)
    return max(reading, cost.work * product) + before + speed.attention_us * 1e-6


def _product_seconds(cost: Cost, working_set: int, speed: MachineSpeed) -> float:
    """Seconds of a product; see the module."""
    product, read = 1 / (speed.products_g_s * 1e9), 1 / speed.read_rate(working_set)
    records, index = cost.part(Access.RECORDS), cost.part(Access.INDEX)
    rows = cost.read - records.read - index.read
    reading = rows * read + records.read / speed.record_rate(working_set)
    before = max(index.read * read, index.work * product)
    return math.hypot(reading, cost.work * product) + before + speed.product_us * 1e-6
