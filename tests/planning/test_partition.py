"""Blocks along the input of a site: which fit together, and what masks without one take."""

from typing import Any

import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Mode, Resource, Technique, TechniqueConfig
from tamiz.planning.choice import Choice
from tamiz.planning.resolver import Resolution, resolve

SITE = Site("layers.0.ffn_up", SiteKind.LINEAR, "up", layer=0, tensor="ffn_up")


class BlockConfig(TechniqueConfig):
    block: int | None = None


def choice(name: str, claim: Claim, block: int | None = None) -> Choice:
    def unused(*_: Any) -> Any:
        raise AssertionError("the resolver runs nothing")

    made = Technique(
        name=name,
        summary=name,
        config=BlockConfig,
        site_kinds={SiteKind.LINEAR},
        claims=(claim,),
        fit=unused,
        rewrite=unused,
    )
    return Choice(made, BlockConfig(block=block))


def narrows(order: int = 0) -> Claim:
    return Claim(Resource.CANDIDATES, Mode.NARROWING, order=order, block="block")


def weights(block: int) -> Claim:
    return Claim(Resource.WEIGHTS, block=block)


BUDGET = Claim(Resource.BUDGET, block="block")


def resolved(*choices: Choice) -> Resolution:
    return resolve([SITE], {SITE.id: choices})


def test_masks_that_narrow_one_another_have_equal_blocks() -> None:
    found = resolved(
        choice("a", narrows(1), 8),
        choice("b", narrows(2), 32),
    )
    (conflict,) = found.conflicts
    assert conflict.remedies == ("choose equal blocks by --a-block or --b-block",)


@pytest.mark.parametrize("owner", [1, 16, 32])
def test_a_mask_without_a_block_takes_that_of_the_weights(owner: int) -> None:
    found = resolved(
        choice("mask", narrows(1)),
        choice("last", BUDGET),
        choice("packed", weights(owner)),
    )
    (plan,) = found.plans
    assert found.conflicts == ()
    assert plan.block == owner
    masks = [c for c in plan.choices if c.technique.name != "packed"]
    assert [c.config.model_dump() for c in masks] == [{"block": owner}] * 2


def test_a_mask_without_a_block_takes_that_of_its_peers() -> None:
    found = resolved(
        choice("mask", narrows(1)),
        choice("peer", narrows(2), 64),
        choice("packed", weights(32)),
    )
    (plan,) = found.plans
    assert [c.config.model_dump()["block"] for c in plan.choices[1:]] == [64, 64]


def test_the_remedy_of_a_fine_mask_names_its_flag() -> None:
    found = resolved(
        choice("mask", narrows(1), 8),
        choice("packed", weights(32)),
    )
    (conflict,) = found.conflicts
    assert conflict.remedies == (
        "set --mask-block to a multiple of 32",
        "leave --mask-block out",
    )
