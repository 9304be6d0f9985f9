"""What the ops with a recurrence promise alike: bits in every cut, batch and slot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.recurrent_cases import in_cuts, side_by_side
from kit.recurrent_ops import SLOTS, DeltaCase, Mamba2Case, RecurrentCase, ScanCase, in_slots
from tamiz_ops.cache_rows import PAGE
from tamiz_ops.recurrent_layout import BLOCK

Make = type[DeltaCase] | type[Mamba2Case] | type[ScanCase]
ISAS = tamiz_ops.cpu()["isas"]
CASES: list[Make] = [DeltaCase, Mamba2Case, ScanCase]
of_each_op = pytest.mark.parametrize("make", CASES, ids=[case.op for case in CASES])

drawn = st.sampled_from(CASES)


@of_each_op
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_cuts_give_the_same_bits_on_every_level(make, isa, threads) -> None:
    case = make(50, 2)
    state, rows = case.state, []
    for begin, end in ((0, 1), (1, 17), (17, 18), (18, 50)):
        y, state = case.run(begin, end, state, isa=isa, threads=threads)
        rows.append(y)
    expected, last = case.run(0, 50, case.state, isa=isa, threads=1)
    np.testing.assert_array_equal(np.concatenate(rows, axis=1), expected)
    np.testing.assert_array_equal(state, last)


@pytest.mark.parametrize("make", [Mamba2Case, ScanCase])
def test_a_token_that_is_hidden_changes_no_state(make) -> None:
    case = make(2)
    _, state = case.run(0, 1, case.state)
    case.mask[:, 1] = 0
    _, after = case.run(1, 2, state)
    matrices = [make.SIZES.layout.parts(each[0, 0])[2][0] for each in (state, after)]
    np.testing.assert_array_equal(*matrices)


@settings(max_examples=100, deadline=None)
@given(
    drawn, st.lists(st.integers(1, 45), min_size=1, max_size=8), st.integers(1, 3), st.booleans()
)
def test_a_sequence_has_the_same_bits_in_every_cut(make, counts, batch, in_place) -> None:
    case = make(sum(counts), batch)
    np.testing.assert_array_equal(in_cuts(case, counts, in_place), case.whole())


@settings(max_examples=150, deadline=None)
@given(drawn, st.integers(1, 80), st.integers(0, BLOCK), st.integers(1, 20))
def test_a_sequence_forgets_its_last_tokens_by_going_on_before_them(
    make, length, forgotten, more
) -> None:
    forgotten = min(forgotten, length)
    wrong, case = make(length, seed=1), make(length - forgotten + more)
    kept = length - forgotten
    for own, other in zip(wrong.rows, case.rows, strict=True):
        own[:, :kept] = other[:, :kept]
    state = case.state.copy()
    wrong.in_place(0, length, state)
    found = case.in_place(kept, kept + more, state)
    np.testing.assert_array_equal(found, case.whole()[:, kept:])


@settings(max_examples=100, deadline=None)
@given(drawn, st.data())
def test_any_history_gives_the_bits_of_the_text_that_is_left(make, data) -> None:
    case, state, length, furthest = make(120), make(1).state.copy(), 0, 0
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


@settings(max_examples=60, deadline=None)
@given(drawn, st.lists(st.integers(1, 150), min_size=1, max_size=4), st.integers(0, 2**32))
def test_sequences_in_slots_have_the_bits_that_they_have_alone(make, lengths, seed) -> None:
    random = np.random.default_rng(seed)
    cases = [make(length, seed=n) for n, length in enumerate(lengths)]
    slots = random.permutation(SLOTS).tolist()
    pool = cases[0].new_pool()
    found = side_by_side(cases, lengths, slots, random, lambda parts: in_slots(parts, pool))
    for case, y in zip(cases, found, strict=True):
        np.testing.assert_array_equal(y, case.whole())


@of_each_op
def test_a_copy_of_a_slot_goes_on_by_itself(make: Make) -> None:
    first, second = make(70), make(90, seed=1)
    for own, other in zip(second.rows, first.rows, strict=True):
        own[:, :PAGE] = other[:, :PAGE]
    pool = first.new_pool()
    in_slots([(first, 0, PAGE, 3)], pool)
    pool[1] = pool[3]
    together: list[tuple[RecurrentCase, int, int, int]] = [
        (first, PAGE, 70, 3),
        (second, PAGE, 90, 1),
    ]
    np.testing.assert_array_equal(in_slots(together, pool)[1], second.whole()[:, PAGE:])


@of_each_op
def test_steps_of_one_sequence_follow_each_other_in_a_call(make: Make) -> None:
    case = make(70)
    pool = case.new_pool()
    in_slots([(case, 0, 60, 2)], pool)
    steps = [(case, token, token + 1, 2) for token in range(60, 70)]
    found = np.concatenate(in_slots(steps, pool, step=True), axis=1)
    np.testing.assert_array_equal(found, case.whole()[:, 60:])


@of_each_op
def test_padding_on_the_left_is_no_token(make: Make) -> None:
    alone, padded = make(9), make(14)
    padded.mask[:, :5] = 0
    for own, other in zip(padded.rows, alone.rows, strict=True):
        own[:, 5:] = other
    np.testing.assert_allclose(padded.whole()[:, 5:], alone.whole(), rtol=1e-6, atol=1e-7)


@of_each_op
def test_tokens_that_cannot_be_forgotten_are_refused(make: Make) -> None:
    case, state = make(40), make(1).state
    case.in_place(0, 40, state)
    with pytest.raises(ValueError, match="cannot go on behind token 23: expected at most 16 fewer"):
        case.in_place(40 - BLOCK - 1, 40, state)


@of_each_op
def test_sequences_need_their_state_in_place_and_a_slot_each(make: Make) -> None:
    case, table = make(4), np.array([[0, 4, 0]], np.int64)
    pool = case.new_pool()
    inputs = [*case.inputs(0, 4, pool), table, np.array([1], np.int64)]
    with pytest.raises(ValueError, match="past and present differ, expected the same memory"):
        tamiz_ops.run(case.op, inputs, **case.attributes)
    inputs[-1] = np.array([SLOTS], np.int64)
    out: list[Any] = [True, pool]
    with pytest.raises(ValueError, match="slots has slot 5 in row 0, expected 0 to 4"):
        tamiz_ops.run(case.op, inputs, out=out, **case.attributes)
    with pytest.raises(ValueError, match=r"slots has shape .* \(segments of sequences\)"):
        tamiz_ops.run(case.op, inputs[:-1], out=out, **case.attributes)
