"""The dial: turned up as far as the budget allows, after the rest was held to it."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamiz.dial import hold_and_turn, turnable
from tamiz.fitting import Attempt, Fitted
from tamiz.gate import Verdict
from tamiz.resolver import Choice, SitePlan
from tamiz.selection import Slot
from tamiz.site import Site, SiteKind
from tamiz.technique import Claim, Dial, Fit, Mode, Resource, Technique, TechniqueConfig
from tamiz.whole_model import Trials


class Config(TechniqueConfig):
    """Of the technique under test."""

    strength: float = 1.0
    k: float | None = None


def no_fit(*_: Any) -> Fit:
    raise NotImplementedError


TURNED = Technique(
    name="turned",
    version="1",
    summary="-",
    config=Config,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.CANDIDATES, Mode.NARROWING),),
    fit=no_fit,
    rewrite=no_fit,  # type: ignore[arg-type]
    dial=Dial("strength", fixed=("k",), start=1.0),
)


def fitted(slot: Slot) -> Slot:
    choice = slot.waiting[0][0]
    verdict = Verdict(None, None, None, None)
    attempt = Attempt(choice, Path("x"), {"output_rel_l2": 0.1}, 0.0, 0, verdict, 0.0)
    result = Fitted(slot.site_plan.site.id, (attempt,), 0, True, choice, 1, 0)
    return Slot(slot.site_plan, slot.waiting[1:], (*slot.fitted, result))


def fill(slots: Sequence[Slot]) -> list[Slot]:
    return [fitted(slot) if slot.needs_fit else slot for slot in slots]


def slots(**fields: Any) -> list[Slot]:
    choice = Choice(TURNED, Config(**fields))
    sites = [Site(f"s{i}", SiteKind.LINEAR, f"n{i}", in_features=32) for i in range(3)]
    return fill([Slot(SitePlan(site, (choice,), None), ((choice, 0),)) for site in sites])


def strengths(found: Sequence[Slot]) -> set[float]:
    return {s.accepted.choice.config.strength for s in found if s.accepted}  # type: ignore[attr-defined]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 0.3])
def test_the_largest_strength_that_holds(cost: float, power: float) -> None:
    def evaluate(candidate: Sequence[Slot]) -> dict[str, float]:
        [strength] = strengths(candidate)
        return {"dppl": math.expm1(cost * strength**power)}

    found = hold_and_turn(slots(), Trials(math.log1p(0.02), evaluate, fill))
    best = (math.log1p(0.02) / cost) ** (1 / power)
    [strength] = strengths(found.slots)
    assert 0.6 * best <= strength <= best
    assert found.result is not None
    assert found.result["strength"] == pytest.approx(strength, rel=1e-3)
    assert found.result["dppl"] <= 0.02


def test_nothing_stands_where_no_strength_holds() -> None:
    found = hold_and_turn(slots(), Trials(math.log1p(0.02), lambda _: {"dppl": math.nan}, fill))
    assert not strengths(found.slots)
    assert found.result is None
    assert not any(trial["holds"] for trial in found.trials)
    assert np.all(np.diff([trial["strength"] for trial in found.trials]) < 0)


def test_a_field_that_is_set_decides_instead() -> None:
    assert not turnable(slots(k=0.5))
    found = hold_and_turn(slots(k=0.5), Trials(math.log1p(0.02), lambda _: {"dppl": 0.001}, fill))
    assert all("strength" not in trial for trial in found.trials)
    assert strengths(found.slots) == {1.0}
