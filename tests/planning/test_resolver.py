import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Mode, Resource, Technique, TechniqueConfig
from tamiz.planning.choice import Choice
from tamiz.planning.resolver import Resolution, SitePlan, resolve

EVERYWHERE = frozenset(SiteKind)


class BlockConfig(TechniqueConfig):
    block: int | None = None


def technique(
    name: str,
    *claims: Claim,
    provides: set[str] | None = None,
    requires: set[str] | None = None,
    excludes: set[str] | None = None,
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
        excludes=frozenset(excludes or ()),
        fit=unused,
        rewrite=unused,
    )


def choice(made: Technique, block: int | None = None, requested: bool = True) -> Choice:
    return Choice(made, BlockConfig(block=block), requested)


def weights(block: int | None = 1) -> Claim:
    return Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block=block)


def narrows(order: int = 0, block: int | str | None = None) -> Claim:
    return Claim(Resource.CANDIDATES, Mode.NARROWING, order=order, block=block)


def budget(block: int | str | None = None) -> Claim:
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
    found = everywhere(choice(a, requested=False), choice(b))
    assert names(found.plans[0]) == ["b"]


def test_masks_compose_in_their_order_after_the_weights() -> None:
    found = everywhere(
        choice(technique("a-budget", budget(8), requires={"skippable-blocks"})),
        choice(technique("b-second", narrows(2, 32))),
        choice(technique("c-first", narrows(1, 32))),
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
        choice(technique("b", budget("block")), second),
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
                excludes=draw(st.sets(st.sampled_from(["skip", "refine", "bits"]), max_size=1)),
                kinds=frozenset(draw(kinds)),
            ),
            requested=draw(st.booleans()),
        )
        for index in range(draw(st.integers(0, 6)))
    ]


@given(choices())
@settings(max_examples=300)
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


def test_an_excluded_capability_meets_over_a_composite_site() -> None:
    window = technique("window", provides={"windows"}, kinds=frozenset({SiteKind.FFN}))
    stale = technique("stale", excludes={"windows"}, kinds=frozenset({SiteKind.LINEAR}))
    found = resolve(SITES, {site.id: [choice(window), choice(stale)] for site in SITES})
    assert {(c.site, c.rule) for c in found.conflicts} == {
        (LINEAR.id, "excluded-capability"),
        (DOWN.id, "excluded-capability"),
    }
    other = Site("layers.1.ffn", SiteKind.FFN, "act", layer=1, members=("layers.1.ffn_up",))
    apart = resolve(
        [LINEAR, other], {s.id: [choice(window), choice(stale)] for s in (LINEAR, other)}
    )
    assert apart.conflicts == ()


def test_a_technique_may_provide_what_it_excludes() -> None:
    found = everywhere(choice(technique("alone", provides={"windows"}, excludes={"windows"})))
    assert found.conflicts == ()


def broken_rules(there: dict[str, list[Choice]]) -> set[tuple[str, frozenset[str]]]:
    """The rules as the design states them, by brute force: rule and techniques."""
    found = set()
    placed = [(site, c) for site in SITES for c in there[site.id]]

    def meet(one: Site, other: Site) -> bool:
        return one.id == other.id or one.id in other.members or other.id in one.members

    for site, c in placed:
        name = c.technique.name
        around = [(s, o) for s, o in placed if meet(s, site) and o.technique.name != name]
        for need in c.technique.requires:
            over = [s for s, o in around if need in o.technique.provides]
            here = any(site.id == s.id or site.id in s.members for s in over)
            below = site.members and set(site.members) <= {
                m for s in over for m in (s.id, *s.members)
            }
            if not here and not below:
                found.add(("required-capability", frozenset({name})))
        for s, o in around:
            pair = frozenset({name, o.technique.name})
            if c.technique.excludes & o.technique.provides:
                found.add(("excluded-capability", pair))
            for mine in c.technique.claims:
                for theirs in o.technique.claims:
                    modes = (mine.mode, theirs.mode)
                    if mine.resource == theirs.resource and Mode.EXCLUSIVE in modes:
                        found.add(("one-owner", pair))
                    blocks = (c.block(mine), o.block(theirs))
                    if s.id != site.id or None in blocks:
                        continue
                    a, b = blocks
                    kinds = (mine.resource, theirs.resource)
                    masks = (Resource.CANDIDATES, Resource.BUDGET)
                    if Resource.KEYS in kinds:
                        continue
                    if kinds == (Resource.CANDIDATES, Resource.CANDIDATES) and a != b:
                        found.add(("one-partition", pair))
                    if kinds[0] is Resource.WEIGHTS and kinds[1] in masks:
                        bad = b % a != 0
                    elif kinds[1] is Resource.WEIGHTS and kinds[0] in masks:
                        bad = a % b != 0
                    else:
                        bad = max(a, b) % min(a, b) != 0
                    if bad:
                        found.add(("one-partition", pair))
    return found


def asked_only(wanted: list[Choice]) -> list[Choice]:
    return [Choice(c.technique, c.config, requested=True) for c in wanted]


@given(choices())
@settings(max_examples=150)
def test_conflicts_are_those_of_the_design(wanted: list[Choice]) -> None:
    """Complete and sound against rules that are written a second time, without resolving."""
    asked = asked_only(wanted)
    there = {s.id: [c for c in asked if c.technique.fits(s)] for s in SITES}
    expected = broken_rules(there)
    found = resolve(SITES, there)
    assert bool(found.conflicts) == bool(expected)
    assert {(c.rule, frozenset(c.techniques)) for c in found.conflicts} <= expected
    pairs = {frozenset(c.techniques) for c in found.conflicts}
    assert pairs == {names for _, names in expected}
    planned = {p.site.id: list(p.choices) for p in found.plans}
    assert broken_rules(planned) == set()


@given(choices())
@settings(max_examples=80)
def test_conflicts_are_minimal(wanted: list[Choice]) -> None:
    """The named techniques are in conflict by themselves, and without one of them are not."""
    asked = asked_only(wanted)
    for conflict in resolve(SITES, {site.id: asked for site in SITES}).conflicts:
        named = [c for c in asked if c.technique.name in conflict.techniques]
        alone = resolve(SITES, {site.id: named for site in SITES}).conflicts
        assert (conflict.rule, conflict.techniques) in {(c.rule, c.techniques) for c in alone}
        assert conflict.remedies
        for left in named:
            rest = [c for c in named if c is not left]
            fewer = resolve(SITES, {site.id: rest for site in SITES}).conflicts
            assert all(c.techniques != conflict.techniques for c in fewer)


@given(choices())
@settings(max_examples=200)
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
    default = choice(technique("default", weights()), requested=False)
    asked = choice(technique("wanted", weights()))
    found = everywhere(default, asked)
    assert found.conflicts == ()
    assert found.dropped == ()
    (plan,) = found.plans
    assert (names(plan), plan.fallbacks) == (["wanted"], (default,))


@given(choices(), st.randoms())
@settings(max_examples=200)
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
