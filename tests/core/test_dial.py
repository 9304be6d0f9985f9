"""The dial: turned up as far as the budget allows, after the rest was held to it."""

import math
from collections.abc import Sequence
from dataclasses import replace
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
    sensitivity: float | None = None


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


INFORMED = replace(TURNED, dial=Dial("strength", ("k",), 1.0, sensitivity="sensitivity"))


def fitted(slot: Slot) -> Slot:
    choice = slot.waiting[0][0]
    verdict = Verdict(None, None, None, None)
    error = {"output_rel_l2": 0.1 * choice.config.strength}  # type: ignore[attr-defined]
    attempt = Attempt(choice, Path("x"), error, 0.0, 0, verdict, 0.0)
    result = Fitted(slot.site_plan.site.id, (attempt,), 0, True, choice, 1, 0)
    return Slot(slot.site_plan, slot.waiting[1:], (*slot.fitted, result))


def fill(slots: Sequence[Slot]) -> list[Slot]:
    return [fitted(slot) if slot.needs_fit else slot for slot in slots]


def slots(technique: Technique = TURNED, count: int = 3, **fields: Any) -> list[Slot]:
    choice = Choice(technique, Config(**fields))
    sites = [
        Site(f"s{i}", SiteKind.LINEAR, f"n{i}", layer=i, tensor="attn_o", in_features=32)
        for i in range(count)
    ]
    return fill([Slot(SitePlan(site, (choice,), None), ((choice, 0),)) for site in sites])


def strengths(found: Sequence[Slot]) -> set[float]:
    return {s.accepted.choice.config.strength for s in found if s.accepted}  # type: ignore[attr-defined]


def unused(_: Sequence[Slot]) -> dict[str, float]:
    raise AssertionError("nothing is to be probed")


@pytest.mark.parametrize("power", [1.0, 2.0, 3.5])
@pytest.mark.parametrize("cost", [1e-4, 0.01, 0.3])
def test_the_largest_strength_that_holds(cost: float, power: float) -> None:
    def evaluate(candidate: Sequence[Slot]) -> dict[str, float]:
        [strength] = strengths(candidate)
        return {"dppl": math.expm1(cost * strength**power)}

    found = hold_and_turn(slots(), Trials(math.log1p(0.02), evaluate, fill, unused))
    best = (math.log1p(0.02) / cost) ** (1 / power)
    [strength] = strengths(found.slots)
    assert 0.6 * best <= strength <= best
    assert found.result is not None
    assert found.result["strength"] == pytest.approx(strength, rel=1e-3)
    assert found.result["dppl"] <= 0.02


def test_nothing_stands_where_no_strength_holds() -> None:
    found = hold_and_turn(
        slots(), Trials(math.log1p(0.02), lambda _: {"dppl": math.nan}, fill, unused)
    )
    assert not strengths(found.slots)
    assert found.result is None
    assert not any(trial["holds"] for trial in found.trials)
    assert np.all(np.diff([trial["strength"] for trial in found.trials]) < 0)


def test_a_field_that_is_set_decides_instead() -> None:
    assert not turnable(slots(k=0.5))
    found = hold_and_turn(
        slots(k=0.5), Trials(math.log1p(0.02), lambda _: {"dppl": 0.001}, fill, unused)
    )
    assert all("strength" not in trial for trial in found.trials)
    assert strengths(found.slots) == {1.0}


def test_sites_are_told_what_the_model_loses_by_their_errors() -> None:
    losses = [5.0, 4.0, *[0.3] * 4, *[0.1] * 4, *[0.7] * 4, *[0.2] * 4, 8.0]

    def divergence(candidate: Sequence[Slot]) -> float:
        acting = [slot.accepted for slot in candidate]
        return sum(
            loss * attempt.metrics["output_rel_l2"] ** 2
            for loss, attempt in zip(losses, acting, strict=True)
            if attempt is not None
        )

    def evaluate(candidate: Sequence[Slot]) -> dict[str, float]:
        return {"dppl": math.expm1(divergence(candidate))}

    def probe(candidate: Sequence[Slot]) -> dict[str, float]:
        return {"kl_mean": divergence(candidate)}

    trials = Trials(math.log1p(0.02), evaluate, fill, probe)
    found = hold_and_turn(slots(INFORMED, len(losses)), trials)
    told = [s.accepted.choice.config.sensitivity for s in found.slots if s.accepted]  # type: ignore[attr-defined]
    np.testing.assert_allclose(told, losses, rtol=1e-3)
    assert [probe["group"] for probe in trials.probed] == [
        "attn_o of layer 0",
        "attn_o of layer 1",
        *(f"attn_o of layers {first} to {first + 3}" for first in (2, 6, 10, 14)),
        "attn_o of layer 18",
    ]
    [trial] = found.trials  # the first guess is right
    assert trial["predicted"] == pytest.approx(trial["dppl"], rel=0.02)


def test_a_sensitivity_that_is_set_is_not_measured() -> None:
    trials = Trials(math.log1p(0.02), lambda _: {"dppl": 0.019}, fill, unused)
    found = hold_and_turn(slots(INFORMED, sensitivity=0.5), trials)
    assert found.result is not None
    assert found.result["predicted"] == pytest.approx(
        0.5 * 3 * 0.01 * strengths(found.slots).pop() ** 2, rel=0.01
    )


def test_a_model_that_breaks_has_a_large_sensitivity() -> None:
    trials = Trials(
        math.log1p(0.02), lambda _: {"dppl": 0.019}, fill, lambda _: {"kl_mean": math.nan}
    )
    found = hold_and_turn(slots(INFORMED), trials)
    told = {s.accepted.choice.config.sensitivity for s in found.slots if s.accepted}  # type: ignore[attr-defined]
    assert told == {1e5}
