"""Decides which techniques act together at every site.

The resolver knows no technique by name: everything follows from the claims, `provides` and
`requires` of the declarations. Rules:

- ``one-owner``: an exclusive claim shares its resource with no other technique, neither at its
  site nor at the members of a composite site.
- ``one-partition``: blocks along the input share one partition at a site. The finest block is the
  partition, the others are multiples of it, no mask is finer than what the weights can skip, and
  masks that narrow one another have equal blocks.
- ``required-capability``: another technique at the site provides what a technique requires.
- ``excluded-capability``: no other technique provides what a technique excludes, neither at its
  site, nor at a composite site that holds it, nor at a member of it.

A default owner of weights yields to a requested owner and becomes its fallback. A mask whose block
is not set takes that of its peers, else the block that the weights can skip.

The result depends on the declarations only, not on their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tamiz.api.site import Site
from tamiz.api.technique import Mode, Resource
from tamiz.planning.choice import Choice
from tamiz.planning.partition import MASKS, blocks, compatible, misfit, remedies, with_blocks

_RANK = {
    Resource.WEIGHTS: 0,
    Resource.CANDIDATES: 1,
    Resource.BUDGET: 2,
    Resource.KEYS: 3,
    Resource.OUTPUTS: 4,
    Resource.SKETCH: 5,
    Resource.CACHE: 6,
    Resource.INPUTS: 7,
}


@dataclass(frozen=True)
class SitePlan:
    """What happens at one site.

    Attributes:
        site: The site.
        choices: Techniques in the order of their rewrites. Claims order them: weights, candidates,
            budget, keys, outputs, sketch, cache. Masks whose block was not set have one now.
        block: Size of the common partition of the input; None where no claim has a block.
        fallbacks: Owners of the weights that are tried, in order, if the chosen owner's fit is
            refused: defaults that yielded to a requested technique.
    """

    site: Site
    choices: tuple[Choice, ...]
    block: int | None
    fallbacks: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Conflict:
    """Why techniques cannot act together at a site.

    Attributes:
        site: Id of the site.
        techniques: The technique that broke the rule and, if there is one, the other.
        rule: ``one-owner``, ``one-partition``, ``required-capability`` or
            ``excluded-capability``.
        reason: One sentence.
        remedies: What would solve it, one sentence each.
    """

    site: str
    techniques: tuple[str, ...]
    rule: str
    reason: str
    remedies: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """Outcome of `resolve`.

    Attributes:
        plans: One plan a site, in the order of the sites. Free of conflicts.
        conflicts: Reasons why requested techniques cannot act, in the order of the sites.
        dropped: ``(site id, technique name)`` of the techniques removed to resolve the conflicts;
            empty if and only if there are no conflicts.
    """

    plans: tuple[SitePlan, ...]
    conflicts: tuple[Conflict, ...]
    dropped: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class _Wish:
    """One choice at one site; `rank` orders wishes where conflicts are dropped."""

    site: Site
    choice: Choice
    rank: tuple[bool, str, str]

    @property
    def name(self) -> str:
        return self.choice.technique.name


def resolve(sites: Sequence[Site], choices_at: Mapping[str, Iterable[Choice]]) -> Resolution:
    """Finds a conflict-free plan for every site.

    Args:
        sites: The sites of a model.
        choices_at: Choices by site id; at most one choice a technique and site. A choice that
            cannot act at the site's kind is ignored.

    Returns:
        The plans after dropping what conflicts, and the conflicts. A set of choices without
        conflicts is never changed.
    """
    wishes = sorted(
        (
            _Wish(site, choice, (not choice.requested, choice.technique.name, site.id))
            for site in sites
            for choice in choices_at.get(site.id, ())
            if choice.acts_at(site)
        ),
        key=lambda wish: wish.rank,
    )
    order = {site.id: index for index, site in enumerate(sites)}
    yielding = _yielding(wishes)
    firm = [wish for wish in wishes if wish not in yielding]
    conflicts = [clash for _, _, clash in _clashes(firm)] + _unmet(firm)
    kept = _keep(wishes, [(a, b) for a, b, _ in _clashes(wishes)]) if conflicts else firm
    owned = {wish.site.id for wish in kept if wish.choice.requested and _owns_weights(wish)}
    fallbacks = {w for w in yielding if w not in kept and w.site.id in owned}
    dropped = [(wish.site.id, wish.name) for wish in set(wishes) - set(kept) - fallbacks]

    def at(site: Site, group: Iterable[_Wish]) -> tuple[Choice, ...]:
        return tuple(wish.choice for wish in group if wish.site.id == site.id)

    by_rank = sorted(fallbacks, key=lambda wish: wish.rank)
    return Resolution(
        tuple(_site_plan(site, at(site, kept), at(site, by_rank)) for site in sites),
        tuple(sorted(conflicts, key=lambda c: (order[c.site], c.techniques, c.rule, c.reason))),
        tuple(sorted(dropped, key=lambda pair: (order[pair[0]], pair[1]))),
    )


def _owns_weights(wish: _Wish) -> bool:
    return any(claim.resource is Resource.WEIGHTS for claim in wish.choice.technique.claims)


def _yielding(wishes: Sequence[_Wish]) -> set[_Wish]:
    """The default owners of weights at sites where another owner was requested."""
    owned = {wish.site.id for wish in wishes if wish.choice.requested and _owns_weights(wish)}
    defaults = (wish for wish in wishes if not wish.choice.requested and wish.site.id in owned)
    return {wish for wish in defaults if _owns_weights(wish)}


def _clashes(wishes: Sequence[_Wish]) -> list[tuple[_Wish, _Wish, Conflict]]:
    return [(a, b, clash) for a, b in _neighbours(wishes) if (clash := _clash(a, b))]


def _footprint(site: Site) -> set[str]:
    """Sites that a claim made at `site` covers."""
    return {site.id, *site.members}


def _neighbours(wishes: Sequence[_Wish]) -> list[tuple[_Wish, _Wish]]:
    """Pairs of different techniques whose sites overlap, each once, higher rank first."""
    wishes_at: dict[str, list[_Wish]] = {}
    for wish in wishes:
        for place in _footprint(wish.site):
            wishes_at.setdefault(place, []).append(wish)
    return list(
        {
            pair: None
            for there in wishes_at.values()
            for pair in combinations(there, 2)
            if pair[0].name != pair[1].name
        }
    )


def _clash(a: _Wish, b: _Wish) -> Conflict | None:
    """The rule that two wishes break together, if any."""
    site = a.site if a.site.id in _footprint(b.site) else b.site
    for one, other in ((a, b), (b, a)):
        if banned := one.choice.technique.excludes & other.choice.technique.provides:
            capability = min(banned)
            return Conflict(
                site.id,
                (a.name, b.name),
                "excluded-capability",
                f"{one.name} cannot act at {site.id} together with {capability}, which "
                f"{other.name} provides",
                (f"switch {a.name} off there", f"switch {b.name} off there"),
            )
    for mine in a.choice.technique.claims:
        for theirs in b.choice.technique.claims:
            if mine.resource == theirs.resource and Mode.EXCLUSIVE in (mine.mode, theirs.mode):
                return Conflict(
                    site.id,
                    (a.name, b.name),
                    "one-owner",
                    f"{a.name} and {b.name} both claim the {mine.resource.value} of {site.id}, "
                    "which only one technique can have",
                    (f"switch {a.name} off there", f"switch {b.name} off there"),
                )
            if a.site.id == b.site.id and not compatible(
                (mine.resource, a.choice.block(mine)), (theirs.resource, b.choice.block(theirs))
            ):
                return Conflict(
                    site.id,
                    (a.name, b.name),
                    "one-partition",
                    f"{a.name} works in blocks of {a.choice.block(mine)} and {b.name} in blocks of "
                    f"{b.choice.block(theirs)} at {site.id}, which {misfit(mine, theirs)}",
                    remedies((a.choice, mine), (b.choice, theirs)),
                )
    return None


def _unmet(wishes: Sequence[_Wish]) -> list[Conflict]:
    """Capabilities that a wish requires and that no other technique provides at its site."""
    return [
        Conflict(
            wish.site.id,
            (wish.name,),
            "required-capability",
            f"{wish.name} requires {capability} at {wish.site.id}, "
            "which no other technique there provides",
            (f"add a technique that provides {capability}", f"switch {wish.name} off there"),
        )
        for wish, capability in _lacking(wishes)
    ]


def _lacking(wishes: Sequence[_Wish]) -> list[tuple[_Wish, str]]:
    """Wishes with a capability they lack.

    A capability counts if it is provided at the site itself, at a composite site that holds the
    site, or at every member of the site.
    """
    providers: dict[tuple[str, str], set[str]] = {}
    for wish in wishes:
        for capability in wish.choice.technique.provides:
            for place in _footprint(wish.site):
                providers.setdefault((capability, place), set()).add(wish.name)

    def provided(wish: _Wish, capability: str) -> bool:
        def at(place: str) -> bool:
            return bool(providers.get((capability, place), set()) - {wish.name})

        members = wish.site.members
        return at(wish.site.id) or (bool(members) and all(at(member) for member in members))

    return [
        (wish, capability)
        for wish in wishes
        for capability in sorted(wish.choice.technique.requires)
        if not provided(wish, capability)
    ]


def _keep(wishes: Sequence[_Wish], clashes: Sequence[tuple[_Wish, _Wish]]) -> list[_Wish]:
    """Keeps wishes in order of rank, without clashes and without unmet requirements."""
    rivals: dict[_Wish, set[_Wish]] = {}
    for a, b in clashes:
        rivals.setdefault(a, set()).add(b)
        rivals.setdefault(b, set()).add(a)
    remaining = list(wishes)
    while True:
        kept: dict[_Wish, None] = {}
        for wish in remaining:
            if rivals.get(wish, set()).isdisjoint(kept):
                kept[wish] = None
        # Only the last one of each site: without it, another may lack nothing any more.
        hopeless = {wish.site.id: wish for wish, _ in _lacking(list(kept))}.values()
        if not hopeless:
            return list(kept)
        remaining = [wish for wish in remaining if wish not in hopeless]


def _site_plan(site: Site, choices: Sequence[Choice], fallbacks: tuple[Choice, ...]) -> SitePlan:
    def rank(choice: Choice) -> tuple[int, int, str]:
        first = min(((_RANK[c.resource], c.order) for c in choice.technique.claims), default=(9, 0))
        return (*first, choice.technique.name)

    chosen = tuple(sorted(with_blocks(choices), key=rank))
    return SitePlan(site, chosen, min(blocks(chosen, MASKS), default=None), fallbacks)
