"""Blocks along the input of a site: which fit together, and what masks without one take.

All claims of a site share one partition of its input. The finest block is the partition, the others
are multiples of it, no mask is finer than what the weights can skip, and masks that narrow one
another have equal blocks, as their ops read each other's masks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tamiz.api.technique import Claim, Resource
from tamiz.planning.choice import Choice

#: Resources whose claims skip inputs.
MASKS = (Resource.CANDIDATES, Resource.BUDGET)


def compatible(a: tuple[Resource, int | None], b: tuple[Resource, int | None]) -> bool:
    """Whether two blocks along the input allow one partition."""
    (a_resource, a_block), (b_resource, b_block) = a, b
    if a_block is None or b_block is None or Resource.KEYS in (a_resource, b_resource):
        return True
    if a_resource == Resource.WEIGHTS and b_resource in MASKS:
        return b_block % a_block == 0
    if b_resource == Resource.WEIGHTS and a_resource in MASKS:
        return a_block % b_block == 0
    if a_resource == b_resource == Resource.CANDIDATES:
        return a_block == b_block
    return max(a_block, b_block) % min(a_block, b_block) == 0


def misfit(mine: Claim, theirs: Claim) -> str:
    """What is wrong with blocks that are not compatible."""
    if mine.resource == theirs.resource == Resource.CANDIDATES:
        return "differ, and masks that narrow one another need equal blocks"
    return "have no common partition"


def remedies(*both: tuple[Choice, Claim]) -> tuple[str, ...]:
    """Remedies of two blocks without a common partition: what to set, and to what."""
    masks = [(choice, claim) for choice, claim in both if claim.resource in MASKS]
    for choice, claim in masks:
        owner = next((c.block(k) for c, k in both if k.resource is Resource.WEIGHTS), None)
        if isinstance(claim.block, str) and owner is not None:
            flag = choice.technique.flag(claim.block)
            return (f"set {flag} to a multiple of {owner}", f"leave {flag} out")
    flags = [c.technique.flag(k.block) for c, k in both if isinstance(k.block, str)]
    named = f" by {' or '.join(flags)}" if flags else ""
    if len(masks) == len(both):
        return (f"choose equal blocks{named}",)
    return (f"choose blocks of which one is a multiple of the other{named}",)


def blocks(choices: Iterable[Choice], resources: Sequence[Resource]) -> list[int]:
    """The blocks that claims on some resources have."""
    return [
        block
        for choice in choices
        for claim in choice.technique.claims
        if claim.resource in resources and (block := choice.block(claim)) is not None
    ]


def with_blocks(choices: Sequence[Choice]) -> list[Choice]:
    """The choices of a site, masks without a block with that of their peers or of the weights."""
    weights = blocks(choices, (Resource.WEIGHTS,))
    given = {resource: [*blocks(choices, (resource,)), *weights] for resource in MASKS}

    def filled(choice: Choice) -> Choice:
        fields = {
            claim.block: given[claim.resource][0]
            for claim in choice.technique.claims
            if isinstance(claim.block, str)
            and choice.block(claim) is None
            and given.get(claim.resource)
        }
        return choice.with_fields(fields) if fields else choice

    return [filled(choice) for choice in choices]
