"""What errors of weights cost: the same however many windows are read side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tamiz.files.bundle import Bundle
from tamiz.plugins import load
from tamiz.survey.sensitivity import sensitivities, windows_at_once
from tamiz.survey.survey import survey

WINDOWS = np.random.default_rng(0).integers(2, 262, (3, 24)).tolist()


def test_windows_side_by_side_change_no_bit(tiny_dense: Path) -> None:
    surveyed = survey(Bundle.open_dense(tiny_dense), load())
    done: list[int] = []
    alone = sensitivities(surveyed, WINDOWS, lambda what, count, total: done.append(count))
    together = sensitivities(surveyed, WINDOWS, lambda *_: None, at_once=2)
    assert done == [0, 1, 2, 3]
    assert {site.id for site in surveyed.sites if site.weight} == set(alone) == set(together)
    for site, expected in alone.items():
        np.testing.assert_array_equal(together[site].outputs, expected.outputs)
        assert (expected.outputs > 0).any()
        if expected.inputs is not None:
            np.testing.assert_array_equal(together[site].inputs, expected.inputs)


def test_large_models_read_fewer_windows_side_by_side(tiny_dense: Path) -> None:
    surveyed = survey(Bundle.open_dense(tiny_dense), load())
    values = sum(site.in_features + site.out_features for site in surveyed.sites)
    assert windows_at_once(surveyed, 512, 3 * 2 * 4 * 512 * values) == 3
    assert windows_at_once(surveyed, 512, 3 * 2 * 4 * 512 * values - 1) == 2
    assert windows_at_once(surveyed, 512, 1) == 1
