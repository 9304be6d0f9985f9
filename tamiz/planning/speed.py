"""Predicted speed of a plan on a measured machine.

A decode step goes through the sites one after the other. At a weight it takes

    t = max(in rows / read rate + scattered / record rate, work / product rate) + a product

with the rates of a working set as large as all that a step reads, and at an attention

    t = max(in rows / attention rate + scattered / chosen rate, work / product rate)
        + max(sketches / read rate, choosing / product rate) + an attention

where *a product* and *an attention* are what these cost beside, see `tamiz.planning.machine`.
Every other node of the recognised graph takes as long as a norm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Cost
from tamiz.planning.machine import Profile, Speed
from tamiz.planning.plan import Prediction
from tamiz.survey.survey import Survey


@dataclass(frozen=True)
class SpeedPrediction:
    """Decoding on a machine with so many threads.

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
    survey: Survey,
    predictions: Sequence[Prediction],
    total: tuple[Cost, Cost],
    profile: Profile | None,
) -> list[SpeedPrediction]:
    """Predicts the speed of a plan.

    Args:
        survey: The dense bundle's graph.
        predictions: What every site costs; see `tamiz.planning.plan.predict`.
        total: What the model costs before and after; see `tamiz.planning.plan.totals`.
        profile: The measured machine; None where it is not known.

    Returns:
        One prediction for each number of threads that was measured.
    """
    made = []
    for speed in profile.speeds if profile else ():
        costs = (
            {p.plan.site: p.before for p in predictions},
            {p.plan.site: p.after for p in predictions},
        )
        spent = [
            {site.id: _seconds(site, cost, whole.read, speed) for site, cost in by_site.items()}
            for by_site, whole in zip(costs, total, strict=True)
        ]
        rates = []
        for seconds in spent:
            others = len(survey.model.graph) - sum(value > 0 for value in seconds.values())
            rates.append(1 / (sum(seconds.values()) + max(0, others) * speed.node_us * 1e-6))
        made.append(SpeedPrediction(speed.threads, rates[0], rates[1], spent[1]))
    return made


def _seconds(site: Site, cost: Cost, working_set: int, speed: Speed) -> float:
    """Seconds that a step spends at one site; 0 where nothing is read."""
    if cost.read == 0:
        return 0.0
    product, read = 1 / (speed.products_g_s * 1e9), 1 / speed.read_rate(working_set)
    rows = cost.read - cost.scattered - cost.sketch
    if site.kind is SiteKind.ATTENTION:
        reading = 1e-9 * (rows / speed.attention_gb_s + cost.scattered / speed.chosen_gb_s)
        choosing = max(cost.sketch * read, cost.choosing * product)
        return max(reading, cost.work * product) + choosing + speed.attention_us * 1e-6
    reading = rows * read + cost.scattered / speed.record_rate(working_set)
    return max(reading, cost.work * product) + speed.product_us * 1e-6
