"""Masks of single inputs: KWTA, event-driven, and both, from the command line to the numbers.

Rounding decides which side of a threshold a score falls on that lies next to it, and one input of
64 more or less changes all that comes after. So the reference goes on with the masks that the
graph made, its logits have to agree, and each mask is judged against the equation by itself: where
the two differ, the score must be next to the threshold.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kit.command_line import ok
from kit.llama_reference import dense_llama
from kit.selection import Judge, Selection
from kit.unfused import Stage, Unfused
from tamiz.plugins import load

pytestmark = pytest.mark.slow

PROMPT = [(7 * i * i + 3 * i) % 250 for i in range(40)]
DECODED = [(11 * i + 5) % 250 for i in range(60)]
#: Activations are rounded to 16 bits; of the largest logit, and of the largest score of a token.
TOLERANCE = 2e-3
NEXT_TO = 5e-4
POLICY = {"version": 1, "defaults": {"gating": {}}}
KWTA = ("--kwta=on",)
EVENT = ("--event-driven=on", "--event-driven-gap-every=0", "--event-driven-anywhere=true")


@dataclass
class Checked:
    """What a bundle of the command line does against the reference."""

    judge: Judge
    stages: list[Stage] = field(default_factory=list)

    def of(self, op_type: str) -> list[Stage]:
        return [stage for stage in self.stages if stage.op_type == op_type]


@pytest.fixture
def check(tiny_dense: Path) -> Callable[..., Checked]:
    if missing := sorted({"kwta", "event-driven", "block-quant"} - set(load().techniques())):
        pytest.skip(f"not installed: {', '.join(missing)}")
    text, calibration = tiny_dense.parent / "text", tiny_dense.parent / "c.safetensors"
    text.write_text("hello world, the sieve keeps what is large. " * 100)
    ok("calibrate", tiny_dense, "--text", text, "-o", calibration, "--json")

    def run(*flags: str) -> Checked:
        policy, path = tiny_dense.parent / "policy.json", tiny_dense.parent / "built"
        policy.write_text(json.dumps(POLICY))
        chosen = (f"--calibration={calibration}", "--policy", policy, *flags)
        ok("build", tiny_dense, "-o", path, *chosen, "--max-dppl=off", "--json")
        graph = Unfused.of(path)
        found, masks = graph.read(PROMPT, DECODED)
        checked = Checked(Judge(), graph.stages)
        llama, _ = dense_llama(tiny_dense, load())
        for stage in [*checked.of("KwtaMask"), *checked.of("EventSelect")]:
            assert stage.site
            selection = llama.masks.setdefault(
                stage.site, Selection(checked.judge, masks, len(PROMPT))
            )
            assert isinstance(selection, Selection)
            if stage.op_type == "KwtaMask":
                selection.kwta = stage
            else:
                selection.event = stage
        expected = llama.logits(PROMPT + DECODED)[len(PROMPT) - 1 :]
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())
        assert checked.judge.farthest < NEXT_TO
        return checked

    return run


@pytest.mark.parametrize(("select", "center"), [("threshold", "true"), ("topk", "false")])
def test_kwta_of_single_inputs(check: Callable[..., Checked], select: str, center: str) -> None:
    made = check(*KWTA, "--kwta-k=0.6", f"--kwta-select={select}", f"--kwta-center={center}")
    assert len(made.of("KwtaMask")) == len(made.of("ChannelMatMul")) == 14


@pytest.mark.parametrize(
    ("select", "reference"), [("topk", "zero"), ("threshold", "ar1"), ("threshold", "last")]
)
def test_event_driven(check: Callable[..., Checked], select: str, reference: str) -> None:
    made = check(
        *EVENT,
        "--event-driven-topk=0.6",
        f"--event-driven-select={select}",
        f"--event-driven-reference={reference}",
    )
    assert len(made.of("EventSelect")) == len(made.of("EventSum")) == 14


@pytest.mark.parametrize(
    ("first", "block", "second", "center"),
    [("threshold", 1, "topk", "true"), ("topk", 4, "threshold", "false")],
)
def test_kwta_gives_the_candidates_of_event_driven(
    check: Callable[..., Checked], first: str, block: int, second: str, center: str
) -> None:
    """One sort in all, whichever of the two it is that takes a fixed number."""
    made = check(
        *KWTA, "--kwta-k=0.8", f"--kwta-select={first}", f"--kwta-center={center}",
        f"--kwta-block={block}",
        *EVENT, "--event-driven-topk=0.5", f"--event-driven-select={second}",
        "--event-driven-reference=ar1",
    )  # fmt: skip
    assert len(made.of("KwtaMask")) == len(made.of("EventSelect")) == 14
    both = made.of("KwtaMask") + made.of("EventSelect")
    assert sum(stage.attributes.get("keep", 0) > 0 for stage in both) == 14
