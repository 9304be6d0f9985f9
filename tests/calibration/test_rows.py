"""Rows in 8 bits: how far they are off, and that rows can be picked and joined."""

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.calibration.rows import Rows, row_bytes
from tamiz_ops.formats import GROUP

NUMBERS = st.floats(-1e6, 1e6, width=32)
VALUES = arrays.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.integers(1, 70)), elements=NUMBERS
)


@given(VALUES)
def test_each_number_is_off_by_at_most_half_a_scale(values: np.ndarray) -> None:
    rows = Rows.of(values)
    scales = np.repeat(rows.scales, GROUP, axis=1)[:, : values.shape[1]]
    errors, found = np.abs(rows.floats() - values), rows.floats()
    small = np.abs(values) < 0.5 * scales  # become a scale, not 0
    assert (errors[~small] <= 0.5001 * scales[~small] + 1e-40).all()
    assert (errors[small] <= scales[small]).all()
    assert ((found == 0) == (values == 0))[scales > 0].all()
    assert rows.quants.nbytes + rows.scales.nbytes == len(values) * row_bytes(values.shape[1])


@given(VALUES)
def test_rows_that_were_rounded_stay_as_they_are(values: np.ndarray) -> None:
    once = Rows.of(values).floats()
    np.testing.assert_allclose(Rows.of(once).floats(), once, rtol=1e-6, atol=1e-40)


def test_rows_are_picked_and_joined() -> None:
    values = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    rows, order = Rows.of(values), np.array([4, 0, 2])
    joined = Rows.joined([rows.at(order), Rows.of(values[1:2])])
    assert len(joined) == 4
    assert Rows.of(values[:0]).floats().shape == (0, 40)
    assert np.array_equal(joined.floats(), rows.floats()[[4, 0, 2, 1]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_shows_in_its_scale(bad: float) -> None:
    values = np.ones((2, 64), np.float32)
    values[1, 40] = bad
    rows = Rows.of(values)
    assert np.isfinite(rows.scales).tolist() == [[True, True], [True, False]]
