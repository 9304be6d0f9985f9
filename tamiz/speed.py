"""Predicted speed of a plan on a measured machine.

A decode step goes through the sites one after the other:

    t = Σ_sites max(in rows / read rate + scattered / record rate, work / product rate)
        + nodes · node time

with the rates of a working set as large as all that a step reads. At an attention it is
read / rate of attending + work / product rate: what chooses keys comes before these are read.
Every node of the recognised graph counts, also where it is no site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tamiz.inspect import Survey
from tamiz.machine import Profile, Speed
from tamiz.plan import Prediction
from tamiz.site import Site, SiteKind
from tamiz.technique import Cost


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
        predictions: What every site costs; see `tamiz.plan.predict`.
        total: What the model costs before and after; see `tamiz.plan.totals`.
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
    node, work = speed.node_us * 1e-6, cost.work / (speed.products_g_s * 1e9)
    if site.kind is SiteKind.ATTENTION:
        return cost.read / (speed.attention_gb_s * 1e9) + work + node
    rows = (cost.read - cost.scattered) / speed.read_rate(working_set)
    return max(rows + cost.scattered / speed.record_rate(working_set), work) + node
