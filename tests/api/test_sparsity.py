"""Which part of a weight techniques keep."""

import numpy as np

from tamiz.api.sparsity import importance, largest_blocks, largest_in_rows
from tamiz.api.statistics import Statistics


def test_importance_is_the_root_of_the_imatrix() -> None:
    m = np.array([1, 4, 9, 2], np.float32)
    got = importance(Statistics(5, m, np.zeros((0, 4), np.float32)), 4)
    np.testing.assert_allclose(got, np.sqrt(m / 4), rtol=1e-6)
    np.testing.assert_array_equal(importance(None, 3), np.ones(3, np.float32))
    dead = Statistics(5, np.zeros(4, np.float32), np.zeros((0, 4), np.float32))
    np.testing.assert_array_equal(importance(dead, 4), np.ones(4, np.float32))


def test_of_equal_values_the_first_are_the_largest() -> None:
    values = np.array([[1, 3, 3, 3], [2, 2, 2, 5]])
    np.testing.assert_array_equal(
        largest_in_rows(values, 2), [[False, True, True, False], [True, False, False, True]]
    )
    assert not largest_in_rows(values, 0).any()
    assert largest_in_rows(values, 9).all()


def test_blocks_are_chosen_by_the_energy_of_their_rows_together() -> None:
    weighted = np.zeros((5, 7), np.float32)
    weighted[0, 0], weighted[1, 3], weighted[2, 4] = 2, 1.5, 1.5  # rows 0 and 1; 2 and 3; 4
    weighted[1, 2] = 1.5
    weighted[4, 6] = 1
    got = largest_blocks(weighted, rows=2, block=2, count=1)
    expected = np.zeros((3, 4), bool)
    expected[0, 1] = expected[1, 2] = expected[2, 3] = True
    np.testing.assert_array_equal(got, expected)
