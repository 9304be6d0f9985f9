"""Every two techniques stand together and run, or are in conflict and say so."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from kit.conformance import cases
from tamiz.planning.plan import ConflictError
from tamiz.plugins import load
from tamiz.testing import Case, export_tiny_llama
from tamiz.testing.trial import Trial

PAIRS = list(combinations(cases(), 2))
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
    dense = export_tiny_llama(tmp_path, plugins)
    try:
        trial = Trial.make(Case(one.technique, mine, beside=beside), dense, plugins)
    except ConflictError as error:
        for conflict in error.conflicts:
            assert set(conflict.techniques) & {one.technique, other.technique}
            assert conflict.remedies
        return
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
