"""What the inputs of experts were, against sums that are written out."""

from __future__ import annotations

import numpy as np
import pytest

from tamiz.survey.experts import ExpertSums

TOKENS, TOP, EXPERTS, K = 9, 2, 5, 7


@pytest.mark.parametrize("own", [False, True])
def test_each_expert_has_the_inputs_of_its_tokens(own: bool) -> None:
    """Expert 4 is never taken: its means are those over all."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((TOKENS * (TOP if own else 1), K), dtype=np.float32)
    chosen = np.argsort(rng.random((TOKENS, EXPERTS - 1)), axis=1)[:, :TOP].astype(np.int32)
    counts, sums = np.zeros(EXPERTS), np.zeros((EXPERTS, K))
    for token in range(TOKENS):
        for place in range(TOP):
            row = x[token * TOP + place] if own else x[token]
            counts[chosen[token, place]] += 1
            sums[chosen[token, place]] += row.astype(np.float64) ** 2
    found = ExpertSums.of_tokens(x, chosen, EXPERTS)
    np.testing.assert_array_equal(found.counts, counts)
    np.testing.assert_allclose(found.sums, sums, rtol=1e-14)
    means = found.means()
    np.testing.assert_array_equal(means.counts, counts)
    np.testing.assert_allclose(means.imatrix[:4], sums[:4] / counts[:4, None], rtol=1e-6)
    np.testing.assert_allclose(means.imatrix[4], sums.sum(axis=0) / counts.sum(), rtol=1e-6)


def test_sums_are_added_and_weighed() -> None:
    one = ExpertSums(np.array([1.0, 0.0]), np.array([[2.0], [0.0]]))
    other = ExpertSums(np.array([3.0, 1.0]), np.array([[4.0], [5.0]])).times(2)
    both = one.joined(other)
    assert both.counts.tolist() == [7, 2]
    assert both.sums.tolist() == [[10], [10]]
    again = ExpertSums.of_means(both.means())
    np.testing.assert_allclose(again.sums, both.sums, rtol=1e-6)
