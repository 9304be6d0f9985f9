"""The strength is raised as far as the budget allows, after the rest was held to the budget."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Fit, Mode, Resource, Strength, Technique, TechniqueConfig
from tamiz.building.decision import Decision
from tamiz.building.fit.fitting import Attempt, Fitted
from tamiz.building.fit.gate import Verdict
from tamiz.building.search.candidates import Candidates
from tamiz.building.search.strength import adjustable, spend_budget
from tamiz.evaluation.judges import DecoderJudge
from tamiz.evaluation.judges.judge import Figure, Quality
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


def fitted(decision: Decision) -> Decision:
    choice = decision.waiting[0][0]
    verdict = Verdict(None, None, None, None)
    predicted = {"loss": 0.001 * choice.config.strength**2}  # type: ignore[attr-defined]
    attempt = Attempt(choice, Path("x"), predicted, 0.0, 0, verdict, 0.0)
    result = Fitted(decision.site_plan.site.id, (attempt,), 0, True, choice, 1, 0)
    return Decision(decision.site_plan, decision.waiting[1:], (*decision.fitted, result))


def fill(decisions: Sequence[Decision]) -> list[Decision]:
    return [fitted(decision) if decision.needs_fit else decision for decision in decisions]


def decisions(technique: Technique = SEARCHED, count: int = 3, **fields: Any) -> list[Decision]:
    choice = Choice(technique, Config(**fields))
    sites = [
        Site(f"s{i}", SiteKind.LINEAR, f"n{i}", layer=i, tensor="attn_o", in_features=32)
        for i in range(count)
    ]
    return fill([Decision(SitePlan(site, (choice,), None), ((choice, 0),)) for site in sites])


def strengths(found: Sequence[Decision]) -> set[float]:
    return {s.accepted.choice.config.strength for s in found if s.accepted}  # type: ignore[attr-defined]


def candidates(limit: float, evaluate: Callable[[Sequence[Decision]], float]) -> Candidates:
    """Candidates whose Δppl `evaluate` gives."""

    def score(candidate: Sequence[Decision]) -> Quality:
        dppl = evaluate(candidate)
        loss = math.log1p(dppl) if math.isfinite(dppl) else math.inf
        return Quality(loss, None, loss / math.log1p(limit), (Figure("dppl", dppl),))

    return Candidates(DecoderJudge, math.log1p(limit), score, fill)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 0.3])
def test_the_largest_strength_that_holds(cost: float, power: float) -> None:
    def evaluate(candidate: Sequence[Decision]) -> float:
        [strength] = strengths(candidate)
        return math.expm1(cost * strength**power)

    measured = candidates(0.02, evaluate)
    [strength] = strengths(spend_budget(decisions(), measured))
    best = (math.log1p(0.02) / cost) ** (1 / power)
    assert 0.6 * best <= strength <= best
    built = [trial for trial in measured.trials if trial.holds][-1]
    assert built.strength == pytest.approx(strength, rel=1e-3)
    assert built.dppl <= 0.02


def test_nothing_is_applied_where_no_strength_is_within_the_budget() -> None:
    measured = candidates(0.02, lambda _: math.nan)
    assert not strengths(spend_budget(decisions(), measured))
    assert not any(trial.holds for trial in measured.trials)
    assert np.all(np.diff([trial.strength for trial in measured.trials]) < 0)


def test_a_field_that_is_set_decides_instead() -> None:
    assert not adjustable(decisions(k=0.5))
    measured = candidates(0.02, lambda _: 0.001)
    assert strengths(spend_budget(decisions(k=0.5), measured)) == {1.0}
    assert measured.trials
    assert all(trial.strength is None for trial in measured.trials)


@pytest.mark.parametrize("allowed", [0.02, 0.5])
def test_the_first_guess_is_what_the_fits_predict(allowed: float) -> None:
    def evaluate(candidate: Sequence[Decision]) -> float:
        return math.expm1(sum(d.accepted.metrics["loss"] for d in candidate if d.accepted))

    measured = candidates(allowed, evaluate)
    assert strengths(spend_budget(decisions(PREDICTING, 20), measured))
    first = measured.trials[0]
    assert allowed / 4 <= first.predicted <= allowed
    assert first.predicted == pytest.approx(first.dppl, rel=1e-3)


def test_without_a_prediction_the_search_begins_where_the_technique_says() -> None:
    measured = candidates(0.02, lambda _: 0.019)
    spend_budget(decisions(), measured)
    assert measured.trials[0].predicted is None
    assert measured.trials[0].strength == 1.0
