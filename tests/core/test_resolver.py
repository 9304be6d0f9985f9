import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamiz.resolver import Choice, Resolution, SitePlan, resolve
from tamiz.site import Site, SiteKind
from tamiz.technique import Claim, Mode, Resource, Technique, TechniqueConfig

EVERYWHERE = frozenset(SiteKind)


class BlockConfig(TechniqueConfig):
    block: int | None = None


def technique(
    name: str,
    *claims: Claim,
    provides: set[str] | None = None,
    requires: set[str] | None = None,
    kinds: frozenset[SiteKind] = EVERYWHERE,
) -> Technique:
    def unused(*_: Any) -> Any:
        raise AssertionError("the resolver runs nothing")

    return Technique(
        name=name,
        version="1",
        summary=name,
        config=BlockConfig,
        site_kinds=kinds,
        claims=claims,
        provides=frozenset(provides or ()),
        requires=frozenset(requires or ()),
        fit=unused,
        rewrite=unused,
    )


def choice(made: Technique, block: int | None = None, asked: bool = True) -> Choice:
    return Choice(made, BlockConfig(block=block), asked)


def weights(block: int | None = 1) -> Claim:
    return Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block=block)


def narrows(order: int = 0, block: int | str | None = None) -> Claim:
    return Claim(Resource.CANDIDATES, Mode.NARROWING, order=order, block=block)


def budget(block: int | None = None) -> Claim:
    return Claim(Resource.BUDGET, Mode.EXCLUSIVE, block=block)


LINEAR = Site("layers.0.ffn_up", SiteKind.LINEAR, "up", layer=0, tensor="ffn_up")
DOWN = Site("layers.0.ffn_down", SiteKind.LINEAR, "down", layer=0, tensor="ffn_down")
FFN = Site("layers.0.ffn", SiteKind.FFN, "act", layer=0, members=(LINEAR.id, DOWN.id))
SITES = (LINEAR, DOWN, FFN)


def everywhere(*choices: Choice) -> Resolution:
    return resolve([LINEAR], {LINEAR.id: choices})


def names(plan: SitePlan) -> list[str]:
    return [c.technique.name for c in plan.choices]


def test_two_owners_of_the_weights_conflict() -> None:
    found = everywhere(choice(technique("b", weights())), choice(technique("a", weights())))
    (conflict,) = found.conflicts
    assert (conflict.site, conflict.techniques, conflict.rule) == (
        LINEAR.id,
        ("a", "b"),
        "one-owner",
    )
    assert conflict.remedies
    assert found.dropped == ((LINEAR.id, "b"),)
    assert names(found.plans[0]) == ["a"]


def test_what_was_asked_for_wins_over_defaults() -> None:
    a, b = technique("a", weights()), technique("b", weights())
    found = everywhere(choice(a, asked=False), choice(b))
    assert names(found.plans[0]) == ["b"]


def test_masks_compose_in_their_order_after_the_weights() -> None:
    found = everywhere(
        choice(technique("a-budget", budget(32), requires={"skippable-blocks"})),
        choice(technique("b-second", narrows(2, 32))),
        choice(technique("c-first", narrows(1, 8))),
        choice(technique("z-packed", weights(), provides={"skippable-blocks"})),
    )
    assert found.conflicts == ()
    assert names(found.plans[0]) == ["z-packed", "c-first", "b-second", "a-budget"]
    assert found.plans[0].block == 8


def test_two_budgets_conflict() -> None:
    found = everywhere(choice(technique("a", budget())), choice(technique("b", budget())))
    assert [c.rule for c in found.conflicts] == ["one-owner"]


@pytest.mark.parametrize(
    ("first", "second", "agree"),
    [(8, 32, True), (32, 8, True), (8, 12, False), (None, 12, True), (16, 16, True)],
)
def test_blocks_share_the_finest_partition(
    first: int | None, second: int | None, agree: bool
) -> None:
    found = everywhere(
        choice(technique("a", narrows(1, "block")), first),
        choice(technique("b", narrows(2, "block")), second),
    )
    assert [c.rule for c in found.conflicts] == ([] if agree else ["one-partition"])


@pytest.mark.parametrize(("skippable", "mask", "agree"), [(8, 16, True), (16, 8, False)])
def test_a_mask_is_not_finer_than_the_weights_can_skip(
    skippable: int, mask: int, agree: bool
) -> None:
    found = everywhere(
        choice(technique("packed", weights(skippable))), choice(technique("mask", narrows(0, mask)))
    )
    assert (found.conflicts == ()) == agree


def test_a_missing_capability_is_told_with_its_remedy() -> None:
    found = everywhere(choice(technique("mask", narrows(), requires={"skippable-blocks"})))
    (conflict,) = found.conflicts
    assert conflict.rule == "required-capability"
    assert "skippable-blocks" in conflict.reason
    assert names(found.plans[0]) == []


def test_a_technique_does_not_provide_for_itself() -> None:
    found = everywhere(choice(technique("odd", provides={"refine"}, requires={"refine"})))
    assert [c.rule for c in found.conflicts] == ["required-capability"]


def test_an_owner_of_a_composite_site_owns_its_members() -> None:
    whole = technique("whole", weights(), kinds=frozenset({SiteKind.FFN}))
    single = technique("single", weights(), kinds=frozenset({SiteKind.LINEAR}))
    wanted = {site.id: [choice(whole), choice(single)] for site in SITES}
    found = resolve(SITES, wanted)
    assert {c.site for c in found.conflicts} == {LINEAR.id, DOWN.id}
    assert [names(plan) for plan in found.plans] == [["single"], ["single"], []]


def test_members_provide_for_their_composite_site_together() -> None:
    mask = technique("mask", narrows(), requires={"skip"}, kinds=frozenset({SiteKind.FFN}))
    packed = technique("packed", weights(), provides={"skip"}, kinds=frozenset({SiteKind.LINEAR}))
    both = resolve(SITES, {s.id: [choice(mask), choice(packed)] for s in SITES})
    assert both.conflicts == ()
    one = resolve(SITES, {FFN.id: [choice(mask)], LINEAR.id: [choice(packed)]})
    assert [c.techniques for c in one.conflicts] == [("mask",)]


def test_one_owner_resources_are_exclusive() -> None:
    with pytest.raises(ValueError, match="must be exclusive"):
        Claim(Resource.WEIGHTS, Mode.NARROWING)


CLAIMS = st.builds(
    lambda resource, narrowing, order, block: Claim(
        resource,
        Mode.NARROWING
        if narrowing and resource in (Resource.CANDIDATES, Resource.KEYS)
        else Mode.EXCLUSIVE,
        order,
        block,
    ),
    st.sampled_from(Resource),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([None, 1, 4, 6, 8, 32]),
)
CAPABILITIES = st.sets(st.sampled_from(["skip", "refine", "bits"]), max_size=2)


@st.composite
def choices(draw: st.DrawFn) -> list[Choice]:
    kinds = st.sets(st.sampled_from([SiteKind.LINEAR, SiteKind.FFN]), min_size=1)
    return [
        choice(
            technique(
                f"t{index}",
                *draw(st.lists(CLAIMS, max_size=2)),
                provides=draw(CAPABILITIES),
                requires=draw(CAPABILITIES),
                kinds=frozenset(draw(kinds)),
            ),
            asked=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 6)))
    ]


@given(choices())
@settings(max_examples=300, deadline=None)
def test_a_plan_breaks_no_rule(wanted: list[Choice]) -> None:
    """Sound: what a resolution plans has no conflict of its own."""
    planned = resolve(SITES, {site.id: wanted for site in SITES}).plans
    again = resolve(SITES, {p.site.id: [*p.choices, *p.fallbacks] for p in planned})
    assert again.conflicts == ()
    assert again.plans == planned
    for plan in planned:
        owned = [
            claim.resource
            for c in plan.choices
            for claim in {k.resource: k for k in c.technique.claims}.values()
            if claim.resource in (Resource.WEIGHTS, Resource.BUDGET)
        ]
        assert len(owned) == len(set(owned))


@given(choices())
@settings(max_examples=200, deadline=None)
def test_what_has_no_conflicts_is_never_changed(wanted: list[Choice]) -> None:
    """Complete: everything that was wanted is planned, or a conflict says why not."""
    found = resolve(SITES, {site.id: wanted for site in SITES})
    assert bool(found.conflicts) == bool(found.dropped)
    planned = {(plan.site.id, name) for plan in found.plans for name in names(plan)}
    asked = {
        (site.id, c.technique.name) for site in SITES for c in wanted if c.technique.fits(site)
    }
    standing_by = {(plan.site.id, c.technique.name) for plan in found.plans for c in plan.fallbacks}
    assert planned | standing_by | set(found.dropped) == asked
    assert planned.isdisjoint(found.dropped)
    assert standing_by.isdisjoint(planned | set(found.dropped))


def test_a_default_owner_yields_to_one_that_was_asked_for() -> None:
    default = choice(technique("default", weights()), asked=False)
    asked = choice(technique("wanted", weights()))
    found = everywhere(default, asked)
    assert found.conflicts == ()
    assert found.dropped == ()
    (plan,) = found.plans
    assert (names(plan), plan.fallbacks) == (["wanted"], (default,))


@given(choices(), st.randoms())
@settings(max_examples=200, deadline=None)
def test_the_order_of_the_input_does_not_matter(
    wanted: list[Choice], shuffler: random.Random
) -> None:
    shuffled = list(wanted)
    shuffler.shuffle(shuffled)
    one = resolve(SITES, {site.id: wanted for site in SITES})
    assert resolve(SITES, {site.id: shuffled for site in SITES}) == one
    other_sites = resolve(SITES[::-1], {site.id: shuffled for site in SITES})
    assert other_sites.plans == one.plans[::-1]
    assert set(other_sites.dropped) == set(one.dropped)
    assert set(other_sites.conflicts) == set(one.conflicts)
