"""The strength is raised as far as the budget allows, after the rest was held to the budget."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Fit, Mode, Resource, Strength, Technique, TechniqueConfig
from tamiz.building.fit.fitting import Attempt, Fitted
from tamiz.building.fit.gate import Verdict
from tamiz.building.fit.selection import Slot
from tamiz.building.search.back_off import Trials
from tamiz.building.search.strength import adjustable, spend_budget
from tamiz.planning.choice import Choice
from tamiz.planning.resolver import SitePlan


class Config(TechniqueConfig):
    """Of the technique under test."""

    strength: float = 1.0
    k: float | None = None


def no_fit(*_: Any) -> Fit:
    raise NotImplementedError


SEARCHED = Technique(
    name="searched",
    version="1",
    summary="-",
    config=Config,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.CANDIDATES, Mode.NARROWING),),
    fit=no_fit,
    rewrite=no_fit,  # type: ignore[arg-type]
    strength=Strength("strength", fixed=("k",), start=1.0),
)


PREDICTING = replace(SEARCHED, strength=Strength("strength", ("k",), 1.0, loss="loss"))


def fitted(slot: Slot) -> Slot:
    choice = slot.waiting[0][0]
    verdict = Verdict(None, None, None, None)
    predicted = {"loss": 0.001 * choice.config.strength**2}  # type: ignore[attr-defined]
    attempt = Attempt(choice, Path("x"), predicted, 0.0, 0, verdict, 0.0)
    result = Fitted(slot.site_plan.site.id, (attempt,), 0, True, choice, 1, 0)
    return Slot(slot.site_plan, slot.waiting[1:], (*slot.fitted, result))


def fill(slots: Sequence[Slot]) -> list[Slot]:
    return [fitted(slot) if slot.needs_fit else slot for slot in slots]


def slots(technique: Technique = SEARCHED, count: int = 3, **fields: Any) -> list[Slot]:
    choice = Choice(technique, Config(**fields))
    sites = [
        Site(f"s{i}", SiteKind.LINEAR, f"n{i}", layer=i, tensor="attn_o", in_features=32)
        for i in range(count)
    ]
    return fill([Slot(SitePlan(site, (choice,), None), ((choice, 0),)) for site in sites])


def strengths(found: Sequence[Slot]) -> set[float]:
    return {s.accepted.choice.config.strength for s in found if s.accepted}  # type: ignore[attr-defined]


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 0.3])
def test_the_largest_strength_that_holds(cost: float, power: float) -> None:
    def evaluate(candidate: Sequence[Slot]) -> dict[str, float]:
        [strength] = strengths(candidate)
        return {"dppl": math.expm1(cost * strength**power), "kl_mean": 0.0}

    found = spend_budget(slots(), Trials(math.log1p(0.02), evaluate, fill))
    best = (math.log1p(0.02) / cost) ** (1 / power)
    [strength] = strengths(found.slots)
    assert 0.6 * best <= strength <= best
    assert found.built is not None
    assert found.trials[found.built].strength == pytest.approx(strength, rel=1e-3)
    assert found.trials[found.built].dppl <= 0.02


def test_nothing_is_applied_where_no_strength_is_within_the_budget() -> None:
    found = spend_budget(
        slots(), Trials(math.log1p(0.02), lambda _: {"dppl": math.nan, "kl_mean": 0.0}, fill)
    )
    assert not strengths(found.slots)
    assert found.built is None
    assert not any(trial.holds for trial in found.trials)
    assert np.all(np.diff([trial.strength for trial in found.trials]) < 0)


def test_a_field_that_is_set_decides_instead() -> None:
    assert not adjustable(slots(k=0.5))
    found = spend_budget(
        slots(k=0.5), Trials(math.log1p(0.02), lambda _: {"dppl": 0.001, "kl_mean": 0.0}, fill)
    )
    assert all(trial.strength is None for trial in found.trials)
    assert strengths(found.slots) == {1.0}


@pytest.mark.parametrize("allowed", [0.02, 0.5])
def test_the_first_guess_is_what_the_fits_predict(allowed: float) -> None:
    def evaluate(candidate: Sequence[Slot]) -> dict[str, float]:
        return {
            "kl_mean": 0.0,
            "dppl": math.expm1(sum(s.accepted.metrics["loss"] for s in candidate if s.accepted)),
        }

    found = spend_budget(slots(PREDICTING, 20), Trials(math.log1p(allowed), evaluate, fill))
    assert found.built is not None
    first = found.trials[0]
    assert allowed / 4 <= first.predicted <= allowed
    assert first.predicted == pytest.approx(first.dppl, rel=1e-3)


def test_without_a_prediction_the_search_begins_where_the_technique_says() -> None:
    trials = Trials(math.log1p(0.02), lambda _: {"dppl": 0.019, "kl_mean": 0.0}, fill)
    found = spend_budget(slots(), trials)
    assert found.trials[0].predicted is None
    assert found.trials[0].strength == 1.0
