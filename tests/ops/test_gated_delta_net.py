"""GatedDeltaNet beside `tamiz_ops.reference`, and its bits in every cut, batch and slot."""

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
from tamiz_ops.recurrence_reference import BLOCK, DeltaNetSizes

ISAS = tamiz_ops.cpu()["isas"]
SLOTS = 5
SIZES = DeltaNetSizes(key_heads=2, value_heads=4, d_k=8, d_v=21, taps=4)

Array = np.ndarray[Any, Any]


class Case:
    """One sequence, or several of one length: what comes in, and the weights."""

    def __init__(
        self, tokens: int, batch: int = 1, sizes: DeltaNetSizes = SIZES, seed: int = 0
    ) -> None:
        random = np.random.default_rng(seed)
        heads, self.sizes = sizes.value_heads, sizes
        widths = (sizes.width, heads * sizes.d_v, heads, heads)
        self.rows = [self.draw(random, batch, tokens, width) for width in widths]
        constants = np.random.default_rng(77)  # of the layer, whatever the sequence
        self.weights = [
            self.draw(constants, sizes.taps, sizes.width) * np.float32(0.7),
            -np.exp(self.draw(constants, heads)),
            self.draw(constants, heads),
            self.draw(constants, sizes.d_v),
        ]
        self.mask = np.ones((batch, tokens), np.int64)
        self.state = np.zeros((batch, sizes.key_heads, sizes.size), np.float32)
        self.attributes: dict[str, Any] = {"key_heads": sizes.key_heads, "epsilon": 1e-5}

    @staticmethod
    def draw(random: np.random.Generator, *shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    def inputs(self, begin: int, end: int, state: Array) -> list[Array]:
        part = [np.ascontiguousarray(x[:, begin:end]) for x in self.rows]
        return [*part, *self.weights, state, np.ascontiguousarray(self.mask[:, :end])]

    def run(self, begin: int, end: int, state: Array, **options: Any) -> tuple[Array, Array]:
        """y, and the state after the run; the state before it is not changed."""
        inputs = self.inputs(begin, end, state)
        y, present = tamiz_ops.run("GatedDeltaNet", inputs, **self.attributes, **options)
        return y, present

    def in_place(self, begin: int, end: int, state: Array) -> Array:
        inputs = self.inputs(begin, end, state)
        y: Array = tamiz_ops.run("GatedDeltaNet", inputs, out=[True, state], **self.attributes)[0]
        return y

    def whole(self) -> Array:
        return self.run(0, self.mask.shape[1], self.state)[0]


def in_slots(
    parts: list[tuple[Case, int, int, int]], pool: Array, step: bool = False
) -> list[Array]:
    """y of parts of several sequences in one call: case, begin, end and slot of each."""
    pages = max(-(-end // PAGE) for *_, end, _ in parts)
    table = np.zeros((len(parts), 2 + pages), np.int64)
    for row, (_, begin, end, _) in zip(table, parts, strict=True):
        row[:2] = begin, -1 if step else end - begin
    slots = np.array([slot for *_, slot in parts], np.int64)
    rows = [
        np.concatenate([case.rows[n][:, begin:end] for case, begin, end, _ in parts], axis=1)
        for n in range(4)
    ]
    case = parts[0][0]
    mask = np.ones(rows[0].shape[:2], np.int64)
    inputs = [*rows, *case.weights, pool, mask, table, slots]
    y = tamiz_ops.run("GatedDeltaNet", inputs, out=[True, pool], **case.attributes)[0]
    return np.split(y, np.cumsum([end - begin for _, begin, end, _ in parts])[:-1], axis=1)


def new_pool() -> Array:
    """What belongs to no sequence must not be read."""
    return np.full((SLOTS, SIZES.key_heads, SIZES.size), np.nan, np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize(
    ("tokens", "batch", "sizes"),
    [
        (1, 1, SIZES),
        (20, 2, SIZES),
        (9, 1, DeltaNetSizes(1, 1, 2, 1, 1)),
        (33, 1, DeltaNetSizes(3, 3, 16, 48, 3)),
        (17, 2, DeltaNetSizes(2, 6, 128, 128, 4)),
    ],
)
def test_values_are_those_of_the_reference(isa, tiled, tokens, batch, sizes) -> None:
    case = Case(2 * tokens, batch, sizes)
    case.attributes["tiled"] = tiled
    case.mask[-1, : tokens // 2] = 0
    _, state = case.run(0, tokens, case.state, isa=isa)
    inputs = case.inputs(tokens, 2 * tokens, state)
    found = tamiz_ops.run("GatedDeltaNet", inputs, isa=isa, **case.attributes)
    expected = reference.run("GatedDeltaNet", inputs, **case.attributes)
    for value, exact in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=2e-5)


def test_the_state_is_that_of_the_recurrence() -> None:
    case = Case(40)
    _, state = case.run(0, 40, case.state)
    exact = reference.run("GatedDeltaNet", case.inputs(0, 40, case.state), **case.attributes)[1]
    np.testing.assert_allclose(state, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_cuts_give_the_same_bits_on_every_level(isa, threads) -> None:
    case = Case(50, 2)
    state, rows = case.state, []
    for begin, end in ((0, 1), (1, 17), (17, 18), (18, 50)):
        y, state = case.run(begin, end, state, isa=isa, threads=threads)
        rows.append(y)
    expected, last = case.run(0, 50, case.state, isa=isa, threads=1)
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), expected)
    np.testing.assert_array_equal(state, last)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 45), min_size=1, max_size=8), st.integers(1, 3), st.booleans())
def test_a_sequence_has_the_same_bits_in_every_cut(counts, batch, in_place) -> None:
    case = Case(sum(counts), batch)
    np.testing.assert_array_equal(in_cuts(case, counts, in_place), case.whole())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 80), st.integers(0, BLOCK), st.integers(1, 20))
def test_a_sequence_forgets_its_last_tokens_by_going_on_before_them(
    length, forgotten, more
) -> None:
    forgotten = min(forgotten, length)
    wrong, case = Case(length, seed=1), Case(length - forgotten + more)
    kept = length - forgotten
    for own, other in zip(wrong.rows, case.rows, strict=True):
        own[:, :kept] = other[:, :kept]
    state = case.state.copy()
    wrong.in_place(0, length, state)
    found = case.in_place(kept, kept + more, state)
    np.testing.assert_array_equal(found, case.whole()[:, kept:])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_history_gives_the_bits_of_the_text_that_is_left(data) -> None:
    case, state, length, furthest = Case(120), Case(1).state.copy(), 0, 0
    expected = case.whole()
    for _ in range(data.draw(st.integers(1, 8))):
        least = max(0, furthest - BLOCK)
        begin = data.draw(st.integers(least, length)) if least <= length else length
        end = data.draw(st.integers(begin + 1, min(120, begin + 40)))
        found = case.in_place(begin, end, state)
        np.testing.assert_array_equal(found, expected[:, begin:end])
        furthest = max(furthest, end) if begin else end
        if (length := end) == 120:
            break


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 150), min_size=1, max_size=4), st.integers(0, 2**32))
def test_sequences_in_slots_have_the_bits_that_they_have_alone(lengths, seed) -> None:
    random = np.random.default_rng(seed)
    cases = [Case(length, seed=n) for n, length in enumerate(lengths)]
    slots = random.permutation(SLOTS).tolist()
    pool = new_pool()
    found = side_by_side(cases, lengths, slots, random, lambda parts: in_slots(parts, pool))
    for case, y in zip(cases, found, strict=True):
        np.testing.assert_array_equal(y, case.whole())


def test_a_copy_of_a_slot_goes_on_by_itself() -> None:
    first, second = Case(70), Case(90, seed=1)
    for own, other in zip(second.rows, first.rows, strict=True):
        own[:, :PAGE] = other[:, :PAGE]
    pool = new_pool()
    in_slots([(first, 0, PAGE, 3)], pool)
    pool[1] = pool[3]
    together = [(first, PAGE, 70, 3), (second, PAGE, 90, 1)]
    np.testing.assert_array_equal(in_slots(together, pool)[1], second.whole()[:, PAGE:])


def test_steps_of_one_sequence_follow_each_other_in_a_call() -> None:
    case, pool = Case(70), new_pool()
    in_slots([(case, 0, 60, 2)], pool)
    steps = [(case, token, token + 1, 2) for token in range(60, 70)]
    found = np.concatenate(in_slots(steps, pool, step=True), axis=1)
    np.testing.assert_array_equal(found, case.whole()[:, 60:])


def test_padding_on_the_left_is_no_token() -> None:
    alone, padded = Case(9), Case(14)
    padded.mask[:, :5] = 0
    for own, other in zip(padded.rows, alone.rows, strict=True):
        own[:, 5:] = other
    np.testing.assert_allclose(padded.whole()[:, 5:], alone.whole(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros((1, 4, 5), np.float32)}, r"qkv has shape \[1, 4, 5\], expected \[1, 4, 116"),
        ({1: np.zeros((1, 4, 5), np.float32)}, r"z has shape \[1, 4, 5\], expected \[1, 4, 84\]"),
        ({2: np.zeros((1, 4, 5), np.float32)}, r"b has shape .* \(batch, sequence, value heads\)"),
        ({4: np.zeros((17, 116), np.float32)}, "taps has 17 rows, expected 1 to 16"),
        ({4: np.zeros((4, 118), np.float32)}, "heads have 8 keys and 21 values, expected an even"),
        ({5: np.zeros(3, np.float32)}, "rate has 3 value heads, expected a multiple of the 2 key"),
        (
            {8: np.zeros((1, 2, 9), np.float32)},
            r"past has shape \[1, 2, 9\], expected \[1, 2, 3264",
        ),
        ({9: np.ones((1, 3), np.int64)}, "attention_mask has 3 columns, expected at least"),
        ({9: np.ones((2, 4), np.int64)}, r"attention_mask has shape \[2, 4\], expected \[1, 4\]"),
        ({9: np.ones((1, 6), np.int64)}, "past holds 0 tokens and has held 0, so it cannot go on"),
    ],
)
def test_wrong_inputs_are_refused_by_name(change, message) -> None:
    case = Case(4)
    inputs = case.inputs(0, 4, case.state)
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("GatedDeltaNet", inputs, **case.attributes)


def test_tokens_that_cannot_be_forgotten_are_refused() -> None:
    case, state = Case(40), Case(1).state
    case.in_place(0, 40, state)
    with pytest.raises(ValueError, match="cannot go on behind token 23: expected at most 16 fewer"):
        case.in_place(40 - BLOCK - 1, 40, state)


def test_sequences_need_their_state_in_place_and_a_slot_each() -> None:
    case, table = Case(4), np.array([[0, 4, 0]], np.int64)
    inputs = [*case.inputs(0, 4, new_pool()), table, np.array([1], np.int64)]
    with pytest.raises(ValueError, match="past and present differ, expected the same memory"):
        tamiz_ops.run("GatedDeltaNet", inputs, **case.attributes)
    inputs[-1] = np.array([SLOTS], np.int64)
    out: list[Any] = [True, inputs[8]]
    with pytest.raises(ValueError, match="slots has slot 5 in row 0, expected 0 to 4"):
        tamiz_ops.run("GatedDeltaNet", inputs, out=out, **case.attributes)
    with pytest.raises(ValueError, match=r"slots has shape .* \(segments of sequences\)"):
        tamiz_ops.run("GatedDeltaNet", inputs[:-1], out=out, **case.attributes)
