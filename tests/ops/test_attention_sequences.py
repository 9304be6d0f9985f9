"""Attention of several sequences in one call, their keys in pages of one cache.

Each sequence must have the bits that it has alone, and all of them the values of the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.attention_case import TOLERANCE
from tamiz_ops import reference
from tamiz_ops.cache_rows import PAGE

ISAS = tamiz_ops.cpu()["isas"]
#: Pages of the pool: more than the sequences of any case need.
PAGES = 40


class Batch:
    """One call: segments of past keys and new tokens, whose pages are shuffled in the pool."""

    def __init__(
        self,
        segments: list[tuple[int, int]],
        heads: tuple[int, int] = (6, 2),
        dim: int = 32,
        seed: int = 0,
        **attributes: float,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.segments, self.dim = segments, dim
        self.attributes: dict[str, Any] = {"num_heads": heads[0], "kv_heads": heads[1]} | attributes
        self.kv_heads = heads[1]
        tokens = sum(count for _, count in segments)
        self.q = self.random(1, tokens, heads[0] * dim)
        self.k, self.v = (self.random(1, tokens, heads[1] * dim) for _ in range(2))
        ranges = [np.arange(past, past + count) for past, count in segments]
        self.positions = np.concatenate(ranges)[None]
        self.frequencies = (10000.0 ** (-np.arange(dim // 2) / (dim // 2))).astype(np.float32)
        self.sequences = self.table()
        self.mean = self.scale = None
        if attributes.get("cache_bits") == 8:
            self.mean = self.random(heads[1], dim)
            self.scale = np.exp2(np.rint(self.random(heads[1], dim))).astype(np.float32)
        words = dim // 4 + 1 if attributes.get("cache_bits") == 8 else dim
        # What belongs to no sequence must not be read.
        self.pools = [
            np.full((1, heads[1], PAGES * PAGE, words), np.nan, np.float32) for _ in range(2)
        ]
        self.pasts = []
        for (past, _), rows in zip(segments, self.rows(), strict=True):
            self.pasts.append([self.cache(past) for _ in self.pools])
            for pool, own in zip(self.pools, self.pasts[-1], strict=True):
                pool[:, :, rows[:past]] = own

    def random(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    def cache(self, past: int) -> np.ndarray:
        """Rows ``[1, kv_heads, past, words]`` as the op stores them."""
        x = self.random(1, self.kv_heads, past, self.dim)
        if self.attributes.get("cache_bits") != 8:
            return x
        from tamiz_ops.cache_rows import pack_rows

        return pack_rows(x)

    def table(self) -> np.ndarray:
        free = self.rng.permutation(PAGES).tolist()
        needed = [-(-(past + count) // PAGE) for past, count in self.segments]
        rows = [
            [past, count, *(free.pop() for _ in range(pages)), *[-1] * (max(needed) - pages)]
            for (past, count), pages in zip(self.segments, needed, strict=True)
        ]
        return np.array(rows, np.int64)

    def rows(self) -> list[np.ndarray]:
        """The rows of the pool that hold each segment's keys."""
        found = []
        for past, count, *pages in self.sequences.tolist():
            key = np.arange(past + count)
            found.append(np.array(pages)[key // PAGE] * PAGE + key % PAGE)
        return found

    def inputs(self, pools: list[np.ndarray]) -> list[np.ndarray | None]:
        mask = np.ones((1, self.q.shape[1]), np.int64)
        others = self.others(self.sequences)
        return [self.q, self.k, self.v, *pools, mask, self.positions, self.frequencies, *others]

    def others(self, sequences: np.ndarray | None = None) -> list[np.ndarray | None]:
        """The inputs after the frequencies."""
        return [None, self.mean, None, None, None, sequences, self.scale]

    def run(self, isa: str | None = None, threads: int = 1) -> list[np.ndarray]:
        pools = [pool.copy() for pool in self.pools]
        options: dict[str, Any] = {"isa": isa, "threads": threads} | self.attributes
        return tamiz_ops.run("Attention", self.inputs(pools), out=[True, *pools], **options)

    def alone(self, isa: str | None) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        """Each segment in a call of its own: y and the caches."""
        found, begin = [], 0
        for (past, count), own in zip(self.segments, self.pasts, strict=True):
            part = slice(begin, begin + count)
            new = [np.ascontiguousarray(x[:, part]) for x in (self.q, self.k, self.v)]
            mask = np.ones((1, past + count), np.int64)
            positions = np.ascontiguousarray(self.positions[:, part])
            y, *caches = tamiz_ops.run(
                "Attention", [*new, *own, mask, positions, self.frequencies, *self.others()],
                out=[True] * 3, isa=isa, **self.attributes,
            )  # fmt: skip
            found.append((y, caches))
            begin += count
        return found

    def check(self, isa: str, threads: int) -> None:
        """Compares with each sequence alone; rows of others and free rows stay as they are."""
        y, *pools = self.run(isa, threads)
        alone = self.alone(isa)
        np.testing.assert_array_equal(y, np.concatenate([own for own, _ in alone], axis=1))
        for number, pool in enumerate(pools):
            expected = self.pools[number].copy()
            for rows, (_, caches) in zip(self.rows(), alone, strict=True):
                expected[:, :, rows] = caches[number]
            np.testing.assert_array_equal(pool.view(np.int32), expected.view(np.int32))


SEGMENTS = [
    [(0, 1)],
    [(63, 1), (64, 1), (0, 64)],
    [(500, 1), (3, 1), (0, 70), (128, 5), (127, 1)],
    [(n * 37, 1) for n in range(8)],
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("segments", SEGMENTS)
@pytest.mark.parametrize("cap", [{}, {"softcap": 1.5}])
def test_the_reference(segments: list[tuple[int, int]], cap: dict[str, Any], isa: str) -> None:
    batch = Batch(segments, **cap)
    y, *pools = batch.run(isa, threads=2)
    expected = reference.run("Attention", batch.inputs(batch.pools), **batch.attributes)
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=TOLERANCE)
    for pool, wanted in zip(pools, expected[1:], strict=True):
        np.testing.assert_allclose(pool, wanted, rtol=0, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "choice", [{}, {"window": 70}, {"window": 200, "sinks": 0}, {"softcap": 1.5, "window": 70}]
)
@pytest.mark.parametrize("cache", [{}, {"cache_bits": 8}])
@pytest.mark.parametrize(("heads", "dim"), [((3, 1), 64), ((6, 2), 32), ((4, 4), 20), ((16, 1), 8)])
def test_each_sequence_has_the_bits_that_it_has_alone(
    heads: tuple[int, int], dim: int, cache: dict[str, int], choice: dict[str, Any], isa: str
) -> None:
    segment = st.tuples(st.integers(0, 400), st.one_of(st.just(1), st.integers(1, 80)))

    @settings(max_examples=8, database=None, derandomize=True, deadline=None)
    @given(st.lists(segment, min_size=1, max_size=5), st.sampled_from([1, 2, 4]))
    def check(segments: list[tuple[int, int]], threads: int) -> None:
        Batch(segments, heads, dim, **cache, **choice).check(isa, threads)

    check()


@pytest.mark.parametrize("isa", ISAS)
def test_two_segments_can_be_parts_of_one_sequence(isa: str) -> None:
    whole = Batch([(70, 20), (5, 1)])
    expected = whole.run(isa)
    parts = Batch([(70, 20), (5, 1)])
    past, _, *pages = parts.sequences[0]
    parts.sequences = np.array(
        [[past, 13, *pages], [past + 13, 7, *pages], parts.sequences[1]], np.int64
    )
    for got, wanted in zip(parts.run(isa, threads=2), expected, strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_no_segments_are_as_none_given() -> None:
    batch = Batch([(70, 3)])
    mask, positions = np.ones((1, 73), np.int64), batch.positions
    new, table = [batch.q, batch.k, batch.v], [None] * 5
    inputs = [*new, *batch.pasts[0], mask, positions, batch.frequencies, *table]
    empty = np.zeros((0, 2), np.int64)
    got = tamiz_ops.run("Attention", [*inputs, empty], out=[True] * 3, **batch.attributes)
    y, caches = batch.alone(None)[0]
    for found, wanted in zip(got, [y, *caches], strict=True):
        np.testing.assert_array_equal(found, wanted)


BAD: list[tuple[Any, str]] = [
    ([[0, 3, 0, 1]], "sequences has 3 tokens, expected those of q, 4"),
    ([[0, 4]], "sequences has past 0 and 4 tokens in row 0, expected .* at most 0 keys"),
    ([[61, 4, 0]], "sequences has past 61 and 4 tokens in row 0, .* at most 64 keys"),
    ([[-1, 4, 0]], "sequences has past -1 and 4 tokens in row 0"),
    ([[0, 4, 0], [3, 0, 1]], "sequences has past 3 and 0 tokens in row 1"),
    ([[2**62, 4, 0]], "sequences has past 4611686018427387904 and 4 tokens"),
    ([[0, 4, 40]], "sequences has page 40 in row 0, expected 0 to 39, as the cache has 64 rows"),
    ([[62, 4, 1, -1]], "sequences has page -1 in row 0, expected 0 to 39"),
    ([[4]], "sequences has 1 columns, expected past, tokens and pages"),
    ([0, 4, 0], r"sequences has shape \[3\], expected 2 dimensions"),
]


@pytest.mark.parametrize(("sequences", "message"), BAD)
def test_errors_are_one_clear_sentence(sequences: Any, message: str) -> None:
    batch = Batch([(0, 4)])
    batch.sequences = np.array(sequences, np.int64)
    with pytest.raises(ValueError, match=message) as error:
        batch.run()
    assert "\n" not in str(error.value)


def test_a_cache_that_is_not_appended_in_place_is_refused() -> None:
    batch = Batch([(0, 4)])
    with pytest.raises(ValueError, match="past and present differ, expected the same memory"):
        tamiz_ops.run("Attention", batch.inputs(batch.pools), out=[True] * 3, **batch.attributes)


def test_more_than_one_row_of_the_batch_is_refused() -> None:
    batch = Batch([(0, 4)])
    double = [np.concatenate([x, x]) for x in (batch.q, batch.k, batch.v, *batch.pools)]
    inputs = [*double, np.ones((2, 4), np.int64), np.tile(batch.positions, (2, 1))]
    table = [batch.frequencies, *[None] * 5, batch.sequences]
    with pytest.raises(ValueError, match="q has batch 2, expected 1 for sequences"):
        tamiz_ops.run("Attention", [*inputs, *table], out=[True, *double[3:]], **batch.attributes)


CHOICES: list[dict[str, Any]] = [
    {},
    {"ternary": 1, "epsilon": 0.5, "keep_fraction": 0.3},
    {"ternary": 1, "query_bits": 2},
    {"cache_bits": 8},
    {"window": 90, "sinks": 2},
]


class Steps(Batch):
    """A call whose segments of one token are decode steps, which choose keys by sketches."""

    def __init__(self, segments: list[tuple[int, int]], **choice: Any) -> None:
        super().__init__(segments, dim=64, keep=12, recent=8, **choice)
        self.sequences[:, 1][self.sequences[:, 1] == 1] = -1
        words = 2 * (1 + choice.get("ternary", 0)) + 1
        self.pools.append(np.full((1, self.kv_heads, PAGES * PAGE, words), np.nan, np.float32))
        for (past, _), rows, own in zip(segments, self.rows(), self.pasts, strict=True):
            bits = self.rng.integers(0, 2**32, (1, self.kv_heads, past, words), np.uint32)
            sketch = bits.view(np.float32)
            sketch[..., -1] = self.rng.uniform(0.5, 2, sketch.shape[:-1])
            own.append(sketch)
            self.pools[2][:, :, rows[:past]] = sketch

    def rows(self) -> list[np.ndarray]:
        whole = self.sequences
        try:
            self.sequences = np.concatenate(
                [whole[:, :1], abs(whole[:, 1:2]), whole[:, 2:]], axis=1
            )
            return super().rows()
        finally:
            self.sequences = whole

    def inputs(self, pools: list[np.ndarray]) -> list[np.ndarray | None]:
        found = super().inputs(pools[:2])
        found[8] = pools[2]
        return found

    def alone(self, isa: str | None) -> list[tuple[np.ndarray, list[np.ndarray]]]:
        found, begin = [], 0
        for (past, count), own in zip(self.segments, self.pasts, strict=True):
            part = slice(begin, begin + count)
            new = [np.ascontiguousarray(x[:, part]) for x in (self.q, self.k, self.v)]
            mask = np.ones((1, past + count), np.int64)
            positions = np.ascontiguousarray(self.positions[:, part])
            table: list[Any] = [mask, positions, self.frequencies, own[2], *self.others()[1:]]
            y, *caches = tamiz_ops.run(
                "Attention", [*new, *own[:2], *table], out=[True] * 4, isa=isa, **self.attributes
            )
            found.append((y, caches))
            begin += count
        return found


MIXED = [(300, 1), (70, 1), (0, 40), (500, 1), (130, 6), (9, 1)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("segments", [MIXED, [(300, 1), (1100, 1)]])
def test_decode_steps_choose_the_keys_that_they_choose_alone(
    segments: list[tuple[int, int]], choice: dict[str, Any], isa: str
) -> None:
    Steps(segments, **choice).check(isa, threads=2)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("choice", CHOICES[:3])
def test_the_reference_of_decode_steps(choice: dict[str, Any], isa: str) -> None:
    batch = Steps(MIXED, **choice)
    expected = reference.run("Attention", batch.inputs(batch.pools), **batch.attributes)
    y, *_ = batch.run(isa, threads=2)
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=TOLERANCE)


def test_one_token_that_is_no_decode_step_attends_to_all_keys() -> None:
    steps, prompts = Steps([(300, 1)]), Steps([(300, 1)])
    prompts.sequences[:, 1] = 1
    plain = Batch([(300, 1)], dim=64)
    plain.q, plain.k, plain.v = prompts.q, prompts.k, prompts.v
    plain.sequences, plain.pools = prompts.sequences, prompts.pools[:2]
    np.testing.assert_array_equal(prompts.run()[0], plain.run()[0])
    assert (steps.run()[0] != prompts.run()[0]).any()


def test_a_state_of_fixed_size_is_refused() -> None:
    batch = Steps([(0, 4)])
    inputs = batch.inputs(batch.pools)
    inputs[8] = np.zeros((1, 2, PAGES * PAGE, 9), np.float32)
    inputs[10] = np.zeros((1, 2 + 6 * 64), np.float32)
    out: list[Any] = [True, *batch.pools[:2], inputs[8], True]
    with pytest.raises(ValueError, match="past_event is given, expected none for sequences"):
        tamiz_ops.run("Attention", inputs, out=out, **batch.attributes)
