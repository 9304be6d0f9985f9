"""Decode steps that attend to some of the keys, on every instruction set, against NumPy.

Values are one-hot where the choice itself is looked at: element j of y is above 0 if and only if
key j was attended to.
"""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from tamiz_ops import reference, sketch_reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
F = np.float32


class Step:
    """A decode step over a cache whose sketches the op itself has written."""

    def __init__(self, keys=200, heads=(3, 1), dim=256, batch=1, seed=0, **attributes):
        rng = np.random.default_rng(seed)
        self.attributes = {"num_heads": heads[0], "kv_heads": heads[1], **attributes}
        self.planes = 1 + attributes.get("ternary", 0)
        self.q = rng.standard_normal((batch, 1, heads[0] * dim)).astype(F)
        self.keys = rng.standard_normal((batch, heads[1], keys, dim)).astype(F)
        self.values = np.zeros_like(self.keys)
        self.values[..., np.arange(min(keys, dim)), np.arange(min(keys, dim))] = 1
        self.mask = np.ones((batch, keys), np.int64)
        self.mean = None

    def inputs(self) -> list[np.ndarray | None]:
        past, new = np.split(self.keys, [-1], axis=2)
        sketches = sketch_reference.sketch(
            past, None if self.mean is None else self.mean[:, None],
            self.planes, self.attributes.get("epsilon", 0.0),
        )  # fmt: skip
        batch, _, keys, _ = self.keys.shape
        new_value = self.values[:, :, -1].reshape(batch, 1, -1)
        return [self.q, new[:, :, 0].reshape(batch, 1, -1), new_value, past,
                self.values[:, :, :-1], self.mask, np.full((batch, 1), keys - 1), None,
                sketches, self.mean]  # fmt: skip

    def run(self, isa=None, threads=2, **changes) -> list[np.ndarray]:
        attributes = {**self.attributes, **changes}
        return tamiz_ops.run("Attention", self.inputs(), isa=isa, threads=threads, **attributes)

    def reference(self) -> list[np.ndarray]:
        return reference.run("Attention", self.inputs(), **self.attributes)

    def chosen(self, isa=None) -> list[list[set[int]]]:
        """Keys attended to, by batch and query head."""
        y = self.run(isa)[0].reshape(len(self.q), self.attributes["num_heads"], -1)
        return [[set(np.flatnonzero(head)) for head in row] for row in y]


def check(step, isa) -> None:
    y, keys, _, sketches, _ = step.run(isa)
    expected = step.reference()
    np.testing.assert_array_equal(y > 0, expected[0] > 0)
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=2e-6)
    np.testing.assert_array_equal(sketches.view(np.int32), expected[3].view(np.int32))
    np.testing.assert_array_equal(keys, expected[1].astype(F))


# ---- the formulas ----


def test_hadamard_rotation_keeps_dot_products() -> None:
    x = np.random.default_rng(0).standard_normal((2, 100))
    a, b = sketch_reference.rotate(x.astype(F)).astype(np.float64)
    assert len(a) == 128
    np.testing.assert_allclose(a @ b, 128 * (x[0] @ x[1]), rtol=1e-5)


@pytest.mark.parametrize("ternary", [0, 1])
def test_scores_with_a_packed_query_are_popcounts(ternary) -> None:
    rng = np.random.default_rng(1)
    key, query = rng.standard_normal((2, 64)).astype(F)
    row = sketch_reference.sketch(key[None], None, 1 + ternary, 0.5)
    score = sketch_reference.scores(query, row, 64, 1 + ternary, 0.5, 2)
    k, q = sketch_reference.rotate(key), sketch_reference.rotate(query)
    if ternary:
        a, b = 0.5 * np.abs(k).mean(), 0.5 * np.abs(q).mean()
        dot = sum(((k * s > a) & (q * t > b)).sum() * s * t for s in (1, -1) for t in (1, -1))
        gamma = np.abs(k[np.abs(k) > a]).mean()
    else:
        dot = 64 - 2 * ((k >= 0) ^ (q >= 0)).sum()
        gamma = np.abs(k).mean()
    expected = gamma * dot * np.abs(q).mean() / 64 * 256
    np.testing.assert_allclose(score, [expected], rtol=1e-5)


def test_scores_are_dot_products_roughly() -> None:
    rng = np.random.default_rng(1)
    keys, query = rng.standard_normal((500, 64)).astype(F), rng.standard_normal(64).astype(F)
    rows = sketch_reference.sketch(keys, None, 1, 0.0)
    score = sketch_reference.scores(query, rows, 64, 1, 0.0, 4)
    exact = keys @ query
    assert np.corrcoef(score, exact)[0, 1] > 0.75
    slope = (score @ exact) / (exact @ exact) / 256
    assert 0.55 < slope < 0.72  # 2 / pi, as signs keep that much


# ---- the op ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [64, 96, 128, 200, 256])
@pytest.mark.parametrize("query_bits", [2, 4, 8])
@pytest.mark.parametrize("ternary", [0, 1])
def test_choice_equals_the_reference(isa, dim, query_bits, ternary) -> None:
    for keys in (40, 47, 64):
        step = Step(keys, dim=dim, seed=keys, keep=9, recent=5, ternary=ternary, epsilon=0.5,
                    query_bits=query_bits)  # fmt: skip
        step.mean = np.random.default_rng(2).standard_normal((1, dim)).astype(F)
        check(step, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(1, 1), (4, 2), (9, 3), (17, 1)])
def test_heads_and_batches(isa, heads) -> None:
    check(Step(90, heads, dim=128, batch=3, keep=10, recent=3), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_many_keys_and_every_small_head_size(isa) -> None:
    for dim in (1, 7, 20, 64):
        step = Step(2100, (3, 1), dim=dim, keep=70)
        step.values = np.random.default_rng(3).standard_normal(step.keys.shape).astype(F)
        y, *_ = step.run(isa)
        np.testing.assert_allclose(y, step.reference()[0], rtol=0, atol=5e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_all_instruction_sets_and_threads_choose_alike(isa) -> None:
    step = Step(256, (6, 2), keep=20, recent=8)
    base = step.run("scalar", threads=1)
    assert step.chosen(isa) == step.chosen("scalar")
    np.testing.assert_array_equal(step.run(isa)[3].view(np.int32), base[3].view(np.int32))
    np.testing.assert_array_equal(step.run(isa, threads=1)[0], step.run(isa, threads=4)[0])


def test_sinks_and_recent_keys_are_always_in() -> None:
    for head in Step(100, keep=7, recent=10, sinks=3).chosen()[0]:
        assert {0, 1, 2, *range(90, 100)} <= head
        assert len(head) == 20


def test_heads_of_a_group_attend_to_the_same_keys() -> None:
    step = Step(200, (6, 2), keep=20, recent=8)
    first, second = np.array(step.chosen()[0]).reshape(2, 3)
    assert first[0] == first[1] == first[2]
    assert first[0] != second[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("keep", [132, 200, 100_000])
def test_keeping_all_keys_is_exact_attention_bit_for_bit(isa, keep) -> None:
    step = Step(200, dim=64, keep=keep)
    step.values = np.random.default_rng(3).standard_normal(step.keys.shape).astype(F)
    exact = tamiz_ops.run("Attention", step.inputs()[:8], isa=isa, num_heads=3, kv_heads=1)
    np.testing.assert_array_equal(step.run(isa)[0], exact[0])


def test_density_above_its_limit_is_exact_attention() -> None:
    step = Step(200, keep=30, recent=8, sinks=2, density=0.19)
    assert len(step.chosen()[0][0]) == 200
    step.attributes["density"] = 0.21
    assert len(step.chosen()[0][0]) == 40


def test_keep_as_a_fraction() -> None:
    step = Step(200, keep=3, keep_fraction=0.1, recent=8, sinks=2)
    assert len(step.chosen()[0][0]) == 30


@pytest.mark.parametrize("isa", ISAS)
def test_holes_and_left_padding_of_a_batch(isa) -> None:
    step = Step(200, batch=3, keep=12, recent=6)
    rng = np.random.default_rng(5)
    step.mask[0, :150] = 0
    step.mask[1, rng.integers(0, 199, 80)] = 0
    step.mask[2, :-3] = 0
    step.keys[0, :, :150] = np.nan  # hidden keys may hold anything
    check(step, isa)
    for row, mask in zip(step.chosen(isa), step.mask, strict=True):
        assert all(mask[list(head)].all() for head in row)


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_sees_no_key(isa) -> None:
    step = Step(200, batch=2, keep=12)
    step.mask[0] = 0
    y, *_ = step.run(isa)
    np.testing.assert_array_equal(y[0], 0)
    assert y[1].max() > 0


@pytest.mark.parametrize("isa", ISAS)
def test_equal_scores_keep_the_earlier_keys(isa) -> None:
    step = Step(200, keep=12, recent=6, sinks=4)
    step.keys[:] = step.keys[:, :, :1]
    check(step, isa)
    assert step.chosen(isa)[0][0] == {*range(16), *range(194, 200)}


@pytest.mark.parametrize("isa", ISAS)
def test_zero_keys_and_zero_queries(isa) -> None:
    step = Step(200, keep=12, recent=6)
    step.keys[:, :, 50:100] = 0
    check(step, isa)
    step.q[:] = 0
    check(step, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("size", [1e2, 1e4, 1e12, 1e30])
@pytest.mark.parametrize("query_bits", [2, 4, 8])
def test_scores_that_do_not_fit_in_their_integers(isa, size, query_bits) -> None:
    """Beyond 128 nats scores count as equal; those that are no number go first."""
    step = Step(200, keep=12, recent=6, query_bits=query_bits)
    step.keys[:, :, 20:60] *= F(size)
    step.q *= 100
    with np.errstate(over="ignore"):
        expected = step.reference()[0]
    np.testing.assert_allclose(step.run(isa)[0], expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_keys_that_are_not_finite_are_not_hidden(isa, bad) -> None:
    step = Step(200, keep=12, recent=6)
    step.keys[0, 0, 77] = bad
    with np.errstate(all="ignore"):
        sketch = sketch_reference.sketch(step.keys[0, 0], None, 1, 0.0)
    assert np.isnan(sketch[77, -1])
    assert not np.isfinite(step.run(isa)[0]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [2, 4, 40])
def test_prefill_is_exact_and_writes_the_sketches_of_steps(isa, tokens) -> None:
    step = Step(60, dim=64, keep=5, recent=3)
    inputs = step.inputs()
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal((1, tokens, n * 64)).astype(F) for n in (3, 1, 1))
    mask = np.ones((1, 59 + tokens), np.int64)
    inputs = [q, k, v, *inputs[3:5], mask, np.arange(59, 59 + tokens)[None], *inputs[7:]]
    chosen = tamiz_ops.run("Attention", inputs, isa=isa, **step.attributes)
    exact = tamiz_ops.run("Attention", inputs[:8], isa=isa, num_heads=3, kv_heads=1)
    np.testing.assert_array_equal(chosen[0], exact[0])
    expected = sketch_reference.sketch(chosen[1], None, 1, 0.0)
    np.testing.assert_array_equal(chosen[3].view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_shared_buffer_equals_exact_length_bit_for_bit(isa) -> None:
    step = Step(200, (6, 2), dim=64, keep=20, recent=8)
    exact = step.run(isa)
    inputs = step.inputs()
    for index in (3, 4, 8):
        buffer = np.full((1, 2, 300, inputs[index].shape[3]), np.nan, F)
        buffer[:, :, :199] = inputs[index]
        inputs[index] = buffer
    copied = tamiz_ops.run("Attention", inputs, isa=isa, threads=2, **step.attributes)
    out: list[Any] = [True, inputs[3], inputs[4], inputs[8]]
    in_place = tamiz_ops.run("Attention", inputs, out=out, isa=isa, threads=2, **step.attributes)
    for found in (copied, in_place):
        np.testing.assert_array_equal(found[0], exact[0])
        for part, whole in zip(found[1:4], exact[1:4], strict=True):
            np.testing.assert_array_equal(part[:, :, :200].view("i4"), whole.view("i4"))
    assert np.isnan(in_place[3][:, :, 200:]).all()


# ---- window ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [1, 30, 100, 195, 199, 500])
@pytest.mark.parametrize("sinks", [0, 4])
def test_window_of_a_step(isa, window, sinks) -> None:
    step = Step(200, window=window, sinks=sinks)
    step.mask[0, 3:6] = 0
    check(step, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [2, 4, 33, 150])
@pytest.mark.parametrize("window", [1, 20, 64, 100])
def test_window_of_a_prefill(isa, tokens, window) -> None:
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((2, tokens, n * 64)).astype(F) for n in (3, 1, 1))
    past = [rng.standard_normal((2, 1, 90, 64)).astype(F) for _ in range(2)]
    mask = np.ones((2, 90 + tokens), np.int64)
    mask[1, :50] = 0
    inputs = [q, k, v, *past, mask, np.zeros((2, tokens), np.int64), None]
    attributes = {"num_heads": 3, "kv_heads": 1, "window": window, "sinks": 2}
    got = tamiz_ops.run("Attention", inputs, isa=isa, threads=2, **attributes)
    expected = reference.run("Attention", inputs, **attributes)
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=5e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_filter_inside_a_window(isa) -> None:
    step = Step(250, window=100, keep=10, recent=5, sinks=3)
    check(step, isa)
    for head in step.chosen(isa)[0]:
        assert head - {0, 1, 2} <= set(range(150, 250))
        assert len(head) == 18


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "how",
    [
        {"window": 60, "keep": 10, "recent": 5, "sinks": 3},
        {"window": 100, "keep_fraction": 0.3, "recent": 9, "sinks": 0},
        {"keep_fraction": 0.25, "recent": 12},
        {"window": 60, "keep": 10, "recent": 5, "density": 0.3},
        {"keep": 70, "recent": 10},
    ],
)
def test_positions_count_and_not_columns(isa: str, how: dict[str, Any]) -> None:
    """Hidden keys change nothing: as if they were not there."""
    plain, holes = Step(90, dim=64, **how), Step(140, dim=64, **how)
    shown = np.r_[0:2, 12:60, 80:100, 120:140]
    holes.mask[:] = 0
    holes.mask[:, shown] = 1
    holes.q = plain.q
    for name in ("keys", "values"):
        getattr(holes, name)[:, :, shown] = getattr(plain, name)
    np.testing.assert_allclose(holes.run(isa)[0], plain.run(isa)[0], rtol=0, atol=2e-6)
    np.testing.assert_allclose(holes.reference()[0], plain.reference()[0], rtol=0, atol=2e-6)
    check(holes, isa)


# ---- what does not fit ----


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("recent", 0, "recent is 0, expected at least 1"),
        ("window", -1, "window is -1, expected 0 to 2147483647"),
        ("keep", 2**63 - 1, "keep is 9223372036854775807, expected 0 to 2147483647"),
        ("recent", 2**31, "recent is 2147483648, expected 0 to 2147483647"),
        ("sinks", 2**40, "sinks is 1099511627776, expected 0 to 2147483647"),
        ("query_bits", 9, "query_bits is 9, expected 2 to 8"),
        ("keep_fraction", 1.5, "keep_fraction is 1.5"),
    ],
)
def test_bad_attributes(attribute, value, words) -> None:
    with pytest.raises(ValueError, match=words):
        Step(20, **{attribute: value}).run()


def test_sketches_of_another_size() -> None:
    step = Step(20, keep=4)
    with pytest.raises(ValueError, match=r"past_sketch has shape \[1, 1, 19, 9\], expected"):
        step.run(ternary=1)


def test_metrics_and_declaration() -> None:
    spec = tamiz_ops.schemas()["Attention"]
    names = {metric["name"] for metric in spec["metrics"]}
    assert {"pack.enabled", "pack.active", "pack.attended", "pack.visible"} <= names
    assert {"pack.mode", "pack.density", "pack.popcnt"} <= names
