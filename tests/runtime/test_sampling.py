import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tamiz.files.errors import TamizError
from tamiz.runtime.sampling import Sampler, Sampling, distribution

logits = hnp.arrays(
    np.float32, st.integers(1, 200), elements=st.floats(-30, 30, width=32), unique=True
)


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values.astype(np.float64) - values.max())
    return powers / powers.sum()


@given(logits)
def test_temperature_zero_takes_the_largest_logit(values):
    assert Sampler(Sampling())(values) == values.argmax()


@given(logits, st.floats(0.1, 5))
def test_temperature_divides_the_logits(values, temperature):
    tokens, probabilities = distribution(values, Sampling(temperature))
    np.testing.assert_array_equal(tokens, np.arange(len(values)))
    np.testing.assert_allclose(
        probabilities, softmax(values.astype(np.float64) / temperature), atol=1e-12
    )


@given(logits, st.integers(1, 250))
def test_top_k_keeps_the_k_largest(values, k):
    tokens, probabilities = distribution(values, Sampling(1.0, top_k=k))
    expected = np.argsort(-values)[:k]
    assert set(tokens) == set(expected)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)


@given(logits, st.floats(0.01, 0.99))
def test_top_p_keeps_the_smallest_set_of_that_mass(values, top_p):
    tokens, probabilities = distribution(values, Sampling(1.0, top_p=top_p))
    dense = softmax(values)
    assert dense[tokens].sum() >= top_p - 1e-9
    assert dense[tokens].sum() - dense[tokens].min() < top_p + 1e-9
    assert set(tokens) == set(np.argsort(-dense, kind="stable")[: len(tokens)])
    np.testing.assert_allclose(probabilities, dense[tokens] / dense[tokens].sum(), atol=1e-12)


def test_draws_follow_the_distribution():
    values = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(1.0, seed=7))
    counts = np.bincount([sampler(values) for _ in range(20_000)], minlength=4)
    # Five standard deviations of the likeliest token's count are 0.018.
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.3, 0.15, 0.05], atol=0.018)


@given(logits, st.integers(0, 2**32))
def test_the_same_seed_draws_the_same_tokens(values, seed):
    sampling = Sampling(1.5, top_k=20, top_p=0.9, seed=seed)
    first, second = Sampler(sampling), Sampler(sampling)
    assert [first(values) for _ in range(5)] == [second(values) for _ in range(5)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("seed", -1),
    ],
)
def test_a_value_out_of_range_is_named(field, value):
    with pytest.raises(TamizError, match=f"{field} is .*, expected"):
        Sampling(**{field: value})
