"""ShortConv beside `tamiz_ops.reference`, and its bits in every cut, batch and page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.recurrent_cases import in_cuts, side_by_side
from tamiz_ops import reference
from tamiz_ops.cache_rows import PAGE

ISAS = tamiz_ops.cpu()["isas"]
#: Pages of the pool: more than the sequences of any case need.
PAGES = 24
TAPS, ROWS, WIDTH = 3, 18, 71

Array = np.ndarray[Any, Any]


class Case:
    """One sequence, or several of one length: what comes in, and the weight.

    With gates as LFM2 has it, otherwise with a bias and silu as Mamba has it.
    """

    def __init__(
        self,
        tokens: int,
        batch: int = 1,
        taps: int = TAPS,
        width: int = WIDTH,
        seed: int = 0,
        gated: bool = True,
    ) -> None:
        random = np.random.default_rng(seed)
        self.gates = [self.draw(random, batch, tokens, width) for _ in range(3)]
        self.weight = self.draw(random, taps, width)
        self.mask = np.ones((batch, tokens), np.int64)
        self.state = np.zeros((batch, max(ROWS, taps), width), np.float32)
        self.bias = None if gated else self.draw(np.random.default_rng(5), width)
        self.attributes: dict[str, Any] = {} if gated else {"silu": 1}

    @staticmethod
    def draw(random: np.random.Generator, *shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    def inputs(self, begin: int, end: int, state: Array) -> list[Array | None]:
        part = [np.ascontiguousarray(x[:, begin:end]) for x in self.gates]
        mask = np.ascontiguousarray(self.mask[:, :end])
        return self.with_bias(part, [state, mask, None])

    def with_bias(self, gates: list[Array], rest: list[Array | None]) -> list[Array | None]:
        """All inputs, without gates where there is a bias."""
        first: list[Array | None] = [*gates] if self.bias is None else [None, None, gates[2]]
        return [*first, self.weight, *rest, self.bias]

    def run(self, begin: int, end: int, state: Array, **options: Any) -> tuple[Array, Array]:
        """y, and the state after the run; the state before it is not changed."""
        inputs = self.inputs(begin, end, state)
        y, present = tamiz_ops.run("ShortConv", inputs, **self.attributes, **options)
        return y, present

    def in_place(self, begin: int, end: int, state: Array) -> Array:
        inputs = self.inputs(begin, end, state)
        y: Array = tamiz_ops.run("ShortConv", inputs, out=[True, state], **self.attributes)[0]
        return y

    def whole(self) -> Array:
        return self.run(0, self.mask.shape[1], self.state)[0]


def paged(
    parts: list[tuple[Case, int, int, list[int]]], pool: Array, step: bool = False
) -> list[Array]:
    """y of parts of several sequences in one call: case, begin, end and pages of each."""
    width = 2 + max(len(pages) for *_, pages in parts)
    table = np.full((len(parts), width), -1, np.int64)
    for row, (_, begin, end, pages) in zip(table, parts, strict=True):
        row[: 2 + len(pages)] = [begin, -1 if step else end - begin, *pages]
    gates = [
        np.concatenate([case.gates[n][:, begin:end] for case, begin, end, _ in parts], axis=1)
        for n in range(3)
    ]
    mask = np.ones(gates[0].shape[:2], np.int64)
    case = parts[0][0]
    inputs = case.with_bias(gates, [pool, mask, table])
    y = tamiz_ops.run("ShortConv", inputs, out=[True, pool], **case.attributes)[0]
    return np.split(y, np.cumsum([end - begin for _, begin, end, _ in parts])[:-1], axis=1)


def new_pool() -> Array:
    """What belongs to no sequence must not be read."""
    return np.full((PAGES, ROWS, WIDTH), np.nan, np.float32)


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("tokens", "batch", "taps", "width"),
    [(1, 1, 3, 71), (2, 3, 3, 64), (40, 2, 4, 1), (90, 1, 1, 130), (7, 2, 16, 48)],
)
def test_values_are_those_of_the_reference(isa, tokens, batch, taps, width, gated) -> None:
    case = Case(2 * tokens, batch, taps, width, gated=gated)
    case.mask[-1, : tokens // 2] = 0
    _, state = case.run(0, tokens, case.state, isa=isa)
    found = case.run(tokens, 2 * tokens, state, isa=isa)
    inputs = case.inputs(tokens, 2 * tokens, state)
    exact = reference.run("ShortConv", inputs, **case.attributes)
    for value, expected in zip(found, exact, strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_all_levels_give_the_same_bits(isa) -> None:
    case = Case(50, 2)
    for found, expected in zip(
        case.run(0, 50, case.state, isa=isa), case.run(0, 50, case.state, isa="scalar"), strict=True
    ):
        np.testing.assert_array_equal(found, expected)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 45), min_size=1, max_size=8),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
)
def test_a_sequence_has_the_same_bits_in_every_cut(counts, batch, in_place, gated) -> None:
    case = Case(sum(counts), batch, gated=gated)
    np.testing.assert_array_equal(in_cuts(case, counts, in_place), case.whole())


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 80), st.integers(0, ROWS - TAPS + 1), st.integers(1, 20))
def test_a_sequence_forgets_its_last_tokens_by_going_on_before_them(
    length, forgotten, more
) -> None:
    forgotten = min(forgotten, length)
    wrong, case = Case(length, seed=1), Case(length - forgotten + more)
    kept = length - forgotten
    for own, other in zip(wrong.gates, case.gates, strict=True):
        own[:, :kept] = other[:, :kept]
    state = case.state.copy()
    wrong.weight = case.weight
    wrong.in_place(0, length, state)
    found = case.in_place(kept, kept + more, state)
    np.testing.assert_array_equal(found, case.whole()[:, kept:])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 200), min_size=1, max_size=4), st.integers(0, 2**32), st.booleans())
def test_sequences_in_pages_have_the_bits_that_they_have_alone(lengths, seed, gated) -> None:
    random = np.random.default_rng(seed)
    cases = [Case(length, seed=n, gated=gated) for n, length in enumerate(lengths)]
    free = random.permutation(PAGES).tolist()
    pages = [[free.pop() for _ in range(-(-length // PAGE))] for length in lengths]
    for case in cases:
        case.weight = cases[0].weight
    pool = new_pool()
    found = side_by_side(cases, lengths, pages, random, lambda parts: paged(parts, pool))
    for case, y in zip(cases, found, strict=True):
        np.testing.assert_array_equal(y, case.whole())


def test_a_full_page_serves_every_sequence_that_begins_with_it() -> None:
    first, second = Case(70), Case(90, seed=1)
    second.weight = first.weight
    for own, other in zip(second.gates, first.gates, strict=True):
        own[:, :PAGE] = other[:, :PAGE]
    pool = new_pool()
    paged([(first, 0, 70, [5, 9])], pool)
    together = [(first, 69, 70, [5, 9]), (second, PAGE, 90, [5, 2])]
    np.testing.assert_array_equal(paged(together, pool)[1], second.whole()[:, PAGE:])


def test_steps_of_one_sequence_follow_each_other_in_a_call() -> None:
    case, pool = Case(70), new_pool()
    paged([(case, 0, 60, [3, 1])], pool)
    steps = [(case, token, token + 1, [3, 1]) for token in range(60, 70)]
    found = np.concatenate(paged(steps, pool, step=True), axis=1)
    np.testing.assert_array_equal(found, case.whole()[:, 60:])


def test_padding_on_the_left_is_no_token() -> None:
    alone, padded = Case(9), Case(14)
    padded.weight, padded.mask[:, :5] = alone.weight, 0
    for own, other in zip(padded.gates, alone.gates, strict=True):
        own[:, 5:] = other
    np.testing.assert_array_equal(padded.whole()[:, 5:], alone.whole())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({3: np.zeros((17, WIDTH), np.float32)}, "weight has 17 taps, expected 1 to 16"),
        ({3: np.zeros((3, 5), np.float32)}, r"x has shape \[1, 4, 71\], expected \[1, 4, 5\]"),
        ({0: np.zeros((1, 4, 5), np.float32)}, r"b has shape .* \(the shape of x\)"),
        ({1: np.zeros((1, 4, 5), np.float32)}, r"c has shape .* \(the shape of x\)"),
        ({7: np.zeros(5, np.float32)}, r"bias has shape \[5\], expected \[71\]"),
        ({4: np.zeros((1, 2, WIDTH), np.float32)}, "past has 2 rows, expected at least the 3 taps"),
        ({4: np.zeros((2, ROWS, WIDTH), np.float32)}, r"past has shape \[2, 18, 71\], expected \["),
        ({5: np.ones((1, 3), np.int64)}, "attention_mask has 3 columns, expected at least"),
        ({5: np.ones((2, 4), np.int64)}, r"attention_mask has shape \[2, 4\], expected \[1, 4\]"),
    ],
)
def test_wrong_inputs_are_refused_by_name(change, message) -> None:
    inputs = Case(4).inputs(0, 4, np.zeros((1, ROWS, WIDTH), np.float32))
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("ShortConv", inputs)


def test_sequences_need_their_state_in_place() -> None:
    table = np.array([[0, 4, 1]], np.int64)
    inputs = Case(4).inputs(0, 4, new_pool())
    inputs[6] = table
    with pytest.raises(ValueError, match="past and present differ, expected the same memory"):
        tamiz_ops.run("ShortConv", inputs)
    with pytest.raises(ValueError, match="sequences has page 24 in row 0, expected 0 to 23"):
        tamiz_ops.run("ShortConv", [*inputs[:6], np.array([[0, 4, PAGES]], np.int64)])
