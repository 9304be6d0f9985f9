"""Masks beside proc-sparse, seed-delta and ternary, in their blocks: from plan to numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.command_line import ok, tamiz
from kit.composed import DECODED, POLICY, PROMPT, TOLERANCE, Composed, needs
from kit.llama_reference import dense_llama
from kit.selection import Judge, Selection
from kit.unfused import Stage, Unfused
from tamiz.calibration.file import load as load_calibration
from tamiz.plugins import load

pytestmark = pytest.mark.slow

#: Flags of an owner, the fields that they set, its block.
OWNERS: dict[str, tuple[tuple[str, ...], dict[str, Any], int]] = {
    "proc-sparse": (("--proc-sparse=on", "--proc-sparse-shed-eps=0"), {"shed_eps": 0}, 32),
    "seed-delta": (("--seed-delta=on", "--seed-delta-k=48"), {"k": 48}, 32),
    "ternary": (("--ternary=on", "--ternary-max-error=1"), {"max_error": 1}, 16),
}
MASKS = {
    "kwta": ("--kwta=on", "--kwta-k=0.5"),
    "event-driven": (
        "--event-driven=on",
        "--event-driven-anywhere=true",
        "--event-driven-topk=0.5",
    ),
}


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("mask", ["kwta", "event-driven", "state-pack-mask"])
def test_defaults_end_in_a_plan_in_the_blocks_of_the_weights(
    tiny_dense: Path, owner: str, mask: str
) -> None:
    needs(owner, mask)
    plan = json.loads(ok("plan", tiny_dense, f"--{owner}=on", f"--{mask}=on", "--json"))
    assert plan["conflicts"] == []
    met = [s for s in plan["sites"] if {owner, mask} <= set(s["techniques"])]
    assert met
    for site in met:
        assert site["block"] == site["techniques"][mask]["config"]["block"] == OWNERS[owner][2]


@pytest.mark.parametrize("owner", OWNERS)
def test_a_given_block_that_is_too_fine_is_a_conflict_with_a_remedy(
    tiny_dense: Path, owner: str
) -> None:
    needs(owner, "kwta")
    block = OWNERS[owner][2]
    refused = tamiz("plan", tiny_dense, f"--{owner}=on", "--kwta-block=8")
    assert refused.exit_code == 2
    assert f"set --kwta-block to a multiple of {block} or leave --kwta-block out" in refused.stderr
    ok("plan", tiny_dense, f"--{owner}=on", f"--kwta-block={2 * block}")


@pytest.mark.parametrize(
    ("owner", "masks"),
    [
        *((owner, (mask,)) for owner in OWNERS for mask in MASKS),
        ("proc-sparse", ("kwta", "event-driven")),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value),
)
def test_numbers_are_those_of_the_composition(
    tiny_dense: Path, calibration: Path, owner: str, masks: tuple[str, ...]
) -> None:
    """W x̂ with the owner's W and the masks' x̂, token by token; each mask by its equation."""
    needs(owner, *masks)
    (tiny_dense.parent / "policy.json").write_text(json.dumps(POLICY))
    path = tiny_dense.parent / "built"
    ok("build", tiny_dense, "-o", path, "--policy", tiny_dense.parent / "policy.json",
       f"--calibration={calibration}", "--max-dppl=off", *OWNERS[owner][0],
       *(flag for mask in masks for flag in MASKS[mask]))  # fmt: skip
    graph = Unfused.of(path)
    found, chosen = graph.read(PROMPT, DECODED)
    llama, survey = dense_llama(tiny_dense, load())
    judge = Judge()
    made = Composed(path, {}, llama, survey)
    made.use_weights_of(owner, load_calibration(calibration, survey.bundle), **OWNERS[owner][1])
    for stage in graph.stages:
        if stage.op_type in ("KwtaMask", "EventSelect"):
            selection = llama.masks.setdefault(stage.site, Selection(judge, chosen, len(PROMPT)))
            assert isinstance(selection, Selection)
            owns = owner != "seed-delta" or ".ffn_" in stage.site  # block-quant has the others
            place(selection, stage, OWNERS[owner][2] if owns else 1)
    assert llama.masks
    expected = llama.logits(PROMPT + DECODED)[len(PROMPT) - 1 :]
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
    assert judge.elements
    assert judge.farthest < 5e-4


def place(selection: Selection, stage: Stage, block: int) -> None:
    if stage.op_type == "KwtaMask":
        assert stage.attributes["block"] == block
        selection.kwta = stage
    else:
        assert stage.attributes["together"] == block
        selection.event = stage
