"""EventSelect and EventSum around BlockMatMul: the NumPy reference, exactness, gap check, state."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]
N, K = 40, 100
CARRIED = {"alpha": 0.5}


def weight(seed=7) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.01, 0.02, (N, -(-K // 32))).astype(np.float16)
    quants = rng.integers(0, 16, (N, K), dtype=np.uint8)
    return tamiz_ops.pack_int4(quants, scales, (-7.5 * scales).astype(np.float16))


WEIGHT = weight()
DENSE = tamiz_ops.dequantize(WEIGHT, 4, N, K)
BIAS = random(N, seed=8)


def attention_mask(tokens, batch=1) -> np.ndarray:
    return np.ones((batch, tokens), np.int64)


def run_select(
    runner, x, past, *, mean=None, scale=None, attention=None, candidates=None, **others
) -> list[np.ndarray]:
    values = [x, past, mean, scale, attention, candidates]
    return runner("EventSelect", values, k=K, n=N, **others)


def by_isa(isa) -> Callable[..., Any]:
    return lambda op, values, **others: tamiz_ops.run(op, values, isa=isa, threads=2, **others)


def width(alpha) -> int:
    return K + N + 3 if alpha else 3


def product(x, mask, isa=None, bias=BIAS) -> np.ndarray:
    matmul: dict[str, Any] = {"bits": 4, "n": N, "k": K, "block": 1}
    return tamiz_ops.run("BlockMatMul", [x, WEIGHT, mask, bias], isa=isa, **matmul)[0]


class Linear:
    """The three ops in sequence and their state, as a graph runs them."""

    def __init__(
        self, *, alpha=0.5, mean=None, isa=None, gap_tol=0.03, beta=1.0, batch=1, **others
    ):
        self.select = {"alpha": alpha, "beta": beta} | others
        self.sum = {"alpha": alpha, "beta": beta, "gap_tol": gap_tol}
        self.mean, self.isa, self.batch = mean, isa, batch
        self.base = (1 - alpha) * (0 if mean is None else DENSE @ mean) - alpha * BIAS
        self.base = self.base.astype(np.float32)
        self.past = np.zeros((batch, width(alpha)), np.float32)
        self.tokens = 0

    @property
    def off(self) -> np.ndarray:
        return self.past[:, -2] != 0

    def __call__(self, x, *, scale=None, candidates=None, ahead=0):
        """x [batch, tokens, k]; `ahead`: how far, in ns, the clock goes back in between."""
        self.tokens += x.shape[1]
        attention = attention_mask(self.tokens, self.batch)
        delta, mask, plan, kept, started = run_select(
            by_isa(self.isa), x, self.past, mean=self.mean, scale=scale, attention=attention,
            candidates=candidates, **self.select,
        )  # fmt: skip
        self.mask = mask
        dy = product(delta, mask, self.isa)
        values = [dy, self.past, plan, kept, self.base, started + ahead]
        y, self.past = by_isa(self.isa)("EventSum", values, k=K, n=N, **self.sum)
        return y


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("position", [0, 2, 9, 16], ids=lambda p: f"position {p}")
@pytest.mark.parametrize(
    "others",
    [
        {"theta": 0.5},
        {"keep": 30},
        {"keep": 1, "theta": 0.1, "age_max": 7},
        {"theta": 0.3, "gap_every": 8},
        {"keep": 20, "gap_every": 8, "beta": 0.5},
        {"budget_us": 0.0, "quorum": 0.25},
        {"budget_us": 0.0},
        {"theta": 2.5, "together": 8},
        {"keep": 5, "together": 8, "gap_every": 8},
        {"keep": 9, "theta": 0.9, "age_max": 5, "together": 3, "beta": 0.5},
        {"budget_us": 0.0, "quorum": 0.25, "together": 32},
    ],
    ids=str,
)
def test_select_is_the_reference(isa, alpha, position, others) -> None:
    batch = 3
    x, past = random(batch, 1, K), random(batch, width(alpha), seed=1)
    past[:, -3:] = [[1, 0, 0], [1, 1, 0], [0, 0, 0]]  # a state; switched off; none yet
    values = {"mean": random(K, seed=2) / 2, "scale": np.abs(random(K, seed=3)) + 0.5}
    values["attention"] = attention_mask(position + 1, batch)
    values["candidates"] = (random(batch, 1, K // 2, seed=4) > -1).astype(np.uint8)
    others = {"alpha": alpha, "block": 2} | others
    found = run_select(by_isa(isa), x, past, **values, **others)[:4]
    expected = run_select(reference.run, x, past, **values, **others)[:4]
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[2], expected[2])
    np.testing.assert_allclose(found[0] * found[1], expected[0] * expected[1], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[3], expected[3], rtol=0, atol=1e-6)
    assert (found[1][0, 0] <= np.repeat(values["candidates"][0, 0], 2)).all() or not found[2][0, 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alpha", [0.0, 0.5])
@pytest.mark.parametrize("beta", [1.0, 0.5])
@pytest.mark.parametrize("checked", [0, 1])
def test_sum_is_the_reference(isa, alpha, beta, checked) -> None:
    batch, rows = 2, 1 + (beta != 1) + checked
    dy, past = random(rows * batch, 1, N), random(batch, width(alpha), seed=1)
    plan = np.array([[1, 30, 0, checked], [0, K, 1, 0]], np.float32)
    values = [dy, past, plan, random(batch, K, seed=2), random(N, seed=3)]
    others = {"k": K, "n": N, "alpha": alpha, "beta": beta, "gap_tol": 1e9}
    found = by_isa(isa)("EventSum", values, **others)
    for mine, theirs in zip(found, reference.run("EventSum", values, **others), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("alpha", [0.0, 0.7, 1.0])
def test_everything_chosen_is_dense_bit_for_bit_over_500_steps(isa, alpha) -> None:
    linear = Linear(alpha=alpha, mean=random(K, seed=2), isa=isa, keep=K, gap_every=64)
    for step in range(500):
        x = random(1, 1, K, seed=step)
        np.testing.assert_array_equal(linear(x), product(x, None, isa))
    assert not linear.off


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (0.6, 1.0), (1.0, 1.0), (0.9, 0.5)])
def test_500_steps_do_not_drift_from_the_effective_input(isa, alpha, beta) -> None:
    """y = W (x where chosen, beta * expected elsewhere) + bias, however long ago that was."""
    mean = random(K, seed=2) if beta == 1 else None
    linear = Linear(alpha=alpha, mean=mean, beta=beta, isa=isa, keep=K // 3)
    effective = np.zeros(K)
    centre = np.zeros(K) if mean is None else mean
    worst = 0.0
    for step in range(500):
        x = random(1, 1, K, seed=step)
        y = linear(x)[0, 0]
        chosen = linear.mask[0, 0] != 0
        effective = np.where(chosen, x[0, 0], centre + alpha * (effective - centre))
        assert chosen.sum() == (K if step < 4 else K // 3)
        expected = DENSE @ np.where(chosen, effective, beta * effective) + BIAS
        worst = max(worst, np.abs(y - expected).max() / np.abs(expected).max())
    # Deltas are rounded to 1 part in 65,024 of the largest of their group. What is carried on whole
    # adds these errors up, as the root of the steps; a gap check begins anew.
    assert worst < (1e-3 if alpha == 1 else 1e-4)


def test_a_block_is_computed_whole_or_not_at_all() -> None:
    linear = Linear(alpha=0.0, keep=2, together=32)
    for step in range(6):
        x = random(1, 1, K, seed=step)
        linear(x)
    blocks = [linear.mask[0, 0, at : at + 32] for at in range(0, K, 32)]
    assert [len(set(block)) for block in blocks] == [1] * 4
    norms = [np.linalg.norm(x[0, 0, at : at + 32]) for at in range(0, K, 32)]
    assert {i for i, block in enumerate(blocks) if block[0]} == set(np.argsort(norms)[-2:])


def test_first_tokens_and_prompts_are_dense() -> None:
    linear = Linear(keep=1)
    for step in range(4):
        x = random(1, 1, K, seed=step)
        np.testing.assert_array_equal(linear(x), product(x, None))
    x = random(1, 9, K, seed=5)
    np.testing.assert_array_equal(linear(x), product(x, None))
    linear(x[:, -1:])
    assert linear.mask.sum() == 1


def test_prompt_leaves_the_state_of_its_last_token() -> None:
    prompt, x = random(2, 600, K), random(2, 1, K, seed=1)
    whole, split = Linear(keep=10, batch=2), Linear(keep=10, batch=2)
    whole(prompt)
    split(prompt[:, :-1])
    split.tokens, split.past = 599, split.past
    split(prompt[:, 599:] if prompt.shape[1] > 599 else x)
    # The one-token run chose 10 inputs, the prompt all: they differ unless all move.
    assert not np.array_equal(whole.past, split.past)
    np.testing.assert_array_equal(whole.past[:, :K], prompt[:, -1])
    np.testing.assert_array_equal(whole.past[:, K : K + N], product(prompt, None)[:, -1])


def test_gap_check_gives_the_dense_product_and_starts_from_it() -> None:
    linear = Linear(keep=K - 5, gap_every=8, gap_tol=10.0)
    for step in range(17):
        x = random(1, 1, K, seed=step)
        y = linear(x)
        if step in (8, 16):
            np.testing.assert_array_equal(y, product(x, None))
            np.testing.assert_array_equal(linear.past[0, :K], x[0, 0])
            np.testing.assert_array_equal(linear.past[0, K : K + N], y[0, 0])
    assert not linear.off


def test_white_noise_switches_off_until_the_next_sequence() -> None:
    linear = Linear(keep=K // 2, gap_every=8, gap_tol=0.1)
    for step in range(12):
        x = random(1, 1, K, seed=step)
        y = linear(x)
        assert linear.off == (step >= 8)
        if step >= 8:
            np.testing.assert_array_equal(y, product(x, None))
    linear.tokens = 0  # the old state, and a new sequence
    for step in range(5):
        linear(random(1, 1, K, seed=step))
        assert not linear.off
    assert linear.mask.sum() == K // 2


def test_slow_drift_stays_on() -> None:
    linear = Linear(alpha=1.0, keep=K // 2, gap_every=8, gap_tol=0.1)
    x = random(1, 1, K)
    for step in range(33):
        linear(x + 0.01 * random(1, 1, K, seed=step))
    assert not linear.off


@pytest.mark.parametrize("isa", ISAS)
def test_noise_under_the_threshold_changes_nothing(isa) -> None:
    """No flicker: what has been computed is chosen again only after it has moved by theta."""
    linear = Linear(alpha=1.0, theta=0.05, isa=isa)
    x = random(1, 1, K)
    linear(np.repeat(x, 4, axis=1))
    for step in range(100):
        y = linear(x + np.tanh(random(1, 1, K, seed=step)) / 25)
        assert not linear.mask.any()
        np.testing.assert_allclose(y, product(x, None, isa), rtol=0, atol=1e-6)
    moved = x.copy()
    moved[0, 0, 7] += 0.06
    for step in range(5):
        linear(moved)
        assert list(np.flatnonzero(linear.mask)) == ([7] if step == 0 else [])


def test_a_steady_input_has_a_steady_choice() -> None:
    linear, x = Linear(alpha=0.0, mean=random(K, seed=2), keep=K // 3), random(1, 1, K)
    linear(np.repeat(x, 4, axis=1))
    y = linear(x)
    mask = linear.mask
    for _ in range(20):
        np.testing.assert_array_equal(linear(x), y)
        np.testing.assert_array_equal(linear.mask, mask)


def test_not_a_number_is_chosen_and_switches_off() -> None:
    linear = Linear(theta=1e9, gap_every=8)
    for step in range(9):
        x = random(1, 1, K, seed=step)
        if step == 5:
            x[0, 0, 3] = np.nan
        y = linear(x)
        assert np.isnan(y).all() == (5 <= step < 8)
    assert linear.off


def test_age_max_computes_every_input_in_its_turn() -> None:
    linear = Linear(theta=1e9, age_max=10)
    seen = np.zeros(K, bool)
    for step in range(14):
        linear(random(1, 1, K, seed=step))
        if step >= 4:
            assert linear.mask.sum() == K // 10
            seen |= linear.mask[0, 0] != 0
    assert seen.all()


def test_ties_go_to_the_lower_inputs() -> None:
    linear = Linear(alpha=0.0, keep=10)
    for _ in range(5):
        linear(np.ones((1, 1, K), np.float32))
    np.testing.assert_array_equal(np.flatnonzero(linear.mask), np.arange(10))


def test_budget_of_nothing_leaves_the_quorum() -> None:
    linear = Linear(budget_us=0.0, quorum=0.3, theta=0.0)
    for step in range(6):
        linear(random(1, 1, K, seed=step))
    assert linear.mask.sum() == np.ceil(np.float32(0.3) * K)


def test_budget_bounds_what_is_computed_at_the_pace_so_far() -> None:
    linear = Linear(budget_us=30.0, quorum=0.1)
    for step in range(4):
        linear(random(1, 1, K, seed=step))
    linear.past[0, -1] = 1000.0  # nanoseconds an input
    linear(random(1, 1, K, seed=9))
    assert linear.mask.sum() == 30
    linear.past[0, -1] = 1e6
    linear(random(1, 1, K, seed=9))
    assert linear.mask.sum() == 10


def test_pace_is_measured_and_a_clock_that_goes_back_is_ignored() -> None:
    linear = Linear(budget_us=1e9)
    linear(random(1, 1, K))
    assert linear.past[0, -1] > 0
    before = linear.past[0, -1]
    linear(random(1, 1, K, seed=1), ahead=time.monotonic_ns())
    assert linear.past[0, -1] == before


def test_sequences_of_a_batch_are_those_alone() -> None:
    together = Linear(keep=20, batch=3, gap_every=4, gap_tol=1e9)
    alone = [Linear(keep=20, gap_every=4, gap_tol=1e9) for _ in range(3)]
    for step in range(12):
        x = random(3, 1, K, seed=step)
        y = together(x)
        for b, linear in enumerate(alone):
            np.testing.assert_array_equal(linear(x[b : b + 1])[0], y[b])


def test_another_batch_than_the_state_is_told() -> None:
    linear = Linear(keep=20, batch=2)
    linear.batch = 3
    with pytest.raises(ValueError, match=r"past has shape \[2, 143\], expected \[3, 143\]"):
        linear(random(3, 1, K))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"quorum": 1.5}, "quorum is 1.5"),
        ({"block": 0}, "'block' is 0"),
        ({"together": 0}, "'together' is 0"),
        ({"mean": random(3)}, r"mean has shape \[3\], expected \[100\]"),
        ({"attention": attention_mask(0)}, "attention_mask has shape"),
        ({"candidates": np.ones((1, 1, 7), np.uint8)}, r"mask has shape \[1, 1, 7\]"),
    ],
)
def test_bad_input_is_told(change, message) -> None:
    values = {"attention": attention_mask(1), **CARRIED} | change
    with pytest.raises(ValueError, match=message):
        run_select(tamiz_ops.run, random(1, 1, K), np.zeros((1, width(0.5)), np.float32), **values)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("tokens", "beta", "plan", "rows"),
    [(1, 1.0, [1, 9, 0, 1], 4), (1, 0.5, [1, 9, 0, 1], 6), (3, 0.5, [1, 9, 0, 0], 4)],
)
def test_rows_that_only_the_plan_knows_of_are_told(isa, tokens, beta, plan, rows) -> None:
    batch = 2
    dy = random((1 + (beta != 1 and tokens == 1)) * batch, tokens, N)
    plans = np.array([[0, K, 0, 0], plan], np.float32)
    values = [dy, random(batch, width(0.0)), plans, random(batch, K)]
    with pytest.raises(ValueError, match=f"dy has {len(dy)} rows, expected {rows} for what plan"):
        by_isa(isa)("EventSum", values, k=K, n=N, alpha=0.0, beta=beta)
