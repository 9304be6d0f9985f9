"""Every two techniques compose and run, but for the pairs that the design sets apart."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from kit.conformance import cases
from tamiz.planning.plan import ConflictError
from tamiz.plugins import load
from tamiz.testing import Case, export_tiny_llama
from tamiz.testing.trial import Trial

pytestmark = pytest.mark.slow

PAIRS = list(combinations(cases(), 2))
#: Groups of which two are never at one site, with what the techniques' documents say of them.
APART = [
    # weights have one backend a layer
    {"block-quant", "proc-sparse", "seed-delta", "ternary", "tensor-train"},
    # popcounts need ternary weights, so every other owner is in conflict with them
    *(
        {"state-pack-mlp", owner}
        for owner in ("block-quant", "proc-sparse", "seed-delta", "tensor-train")
    ),
    # a tensor train has no units that a mask could skip
    *({"tensor-train", mask} for mask in ("kwta", "event-driven", "state-pack-mask")),
    # popcounts and deltas do not act on the same product
    {"event-driven", "state-pack-mlp"},
    # one sketch of the keys
    {"event-attention", "key-filter", "state-pack"},
    # outputs are left out of int4 in tiles alone, and where no inputs are
    *(
        {"state-pack-signs", other}
        for other in (
            "proc-sparse",
            "seed-delta",
            "ternary",
            "tensor-train",
            "state-pack-mlp",
            "kwta",
            "event-driven",
        )
    ),
    # deltas are against steps that saw the same keys
    *({"event-driven", keys} for keys in ("key-filter", "window-attention")),
    {"event-attention", "window-attention"},
    # here seed-delta takes the head, too, which the shortlist needs in packed tiles
    {"head-shortlist", "seed-delta"},
]
#: One acts only where the other does not, which has all sites here: why it is refused everywhere.
REFUSED = {("activation-bits", "seed-delta"): "its product is SeedDeltaMatMul"}


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=lambda case: case.technique)
def test_a_pair(one: Case, other: Case, tmp_path: Path) -> None:
    """Where both have a full budget, the model with both is that without them."""
    full = one.full_budget is not None and other.full_budget is not None
    mine = one.full_budget if full else one.config
    theirs = other.full_budget if full else other.config
    needed = {**one.beside, **other.beside}
    for name in (one.technique, other.technique):
        needed.pop(name, None)
    beside = {**needed, other.technique: theirs}
    plugins = load()
    dense = export_tiny_llama(tmp_path, plugins, one.activation or other.activation)
    try:
        trial = Trial.make(Case(one.technique, mine, beside=beside), dense, plugins)
    except ConflictError as error:
        for conflict in error.conflicts:
            assert set(conflict.techniques) & {one.technique, other.technique}
            assert conflict.remedies
        if is_set_apart(one, other):
            return
        raise
    assert not is_set_apart(one, other)
    built = trial.build(mine)
    if reason := REFUSED.get((one.technique, other.technique)):
        assert other.technique in built.applied
        refusals = built.refused[one.technique]
        assert refusals
        assert all(reason in refusal for refusal in refusals)
    else:
        assert {one.technique, other.technique} <= built.applied
    assert np.isfinite(built.logits).all()
    if full:
        base = Trial.make(Case(one.technique, mine, beside=needed), dense, plugins).build(None)
        atol = 1e-3 * float(np.abs(base.logits).max())
        np.testing.assert_allclose(built.logits, base.logits, rtol=0, atol=atol)


def is_set_apart(one: Case, other: Case) -> bool:
    return any({one.technique, other.technique} <= group for group in APART)
