"""Guesses from earlier answers: what they find, learn and forget; answers keep their bits."""

from __future__ import annotations

import numpy as np

from tamiz.serving.recalled import AGREE, MOST_SCOPES, MOST_TOKENS, Guesses, Past, Pasts

TEXT = np.random.default_rng(1).permutation(1000).tolist()


def test_what_followed_in_an_earlier_answer_is_guessed() -> None:
    past = Past()
    past.remember(TEXT[:100])
    past.remember(TEXT[500:600])
    guesses = Guesses([7, *TEXT[10:20]], past)
    assert guesses.guess(5) == TEXT[20:25]
    guesses.add(TEXT[20])
    assert guesses.guess(1000) == TEXT[21:100]
    assert len(guesses.chances(1000)) == 79


def test_a_wrong_guess_ends_the_copy_and_is_learned() -> None:
    past = Past()
    past.remember(TEXT[:100])
    guesses = Guesses(TEXT[:10], past)
    before = guesses.chances(1)
    guesses.add(2000)
    assert guesses.guess(5) == []
    assert Guesses(TEXT[:10], past).chances(1) < before
    for token in TEXT[50:56]:
        guesses.add(token)
    assert guesses.guess(2) == TEXT[56:58]


def test_right_guesses_become_likelier_for_all_answers() -> None:
    past = Past()
    past.remember(TEXT)
    first = Guesses(TEXT[:AGREE], past)
    begin = first.chances(1)
    for token in TEXT[AGREE:200]:
        first.add(token)
    assert first.chances(1)[0] > 0.9
    assert Guesses(TEXT[:AGREE], past).chances(1) > begin


def test_the_text_itself_is_preferred_where_it_is_likelier() -> None:
    past = Past()
    past.remember([*TEXT[:8], 3000, 3001])
    text = [*TEXT[:8], 4000, 4001, *TEXT[:8]]
    guesses = Guesses(text[:-1], past)
    guesses.add(text[-1])
    assert guesses.guess(2) == [4000, 4001]


def test_the_older_half_is_forgotten() -> None:
    past = Past()
    past.remember(TEXT[:100])
    reader = Guesses(TEXT[:10], past)
    others = [5000 + n for n in range(2000)]
    for start in range(MOST_TOKENS // 1000):
        past.remember([token + 2000 * start for token in others])
    assert len(past.tokens) < MOST_TOKENS
    assert reader.guess(3) == []  # its place has moved
    reader.add(1)
    assert Guesses(TEXT[:10], past).guess(3) == []
    last = [token + 2000 * start for token in others[10:20]]
    assert Guesses(last, past).guess(1) == [others[20] + 2000 * start]


def test_a_scope_does_not_see_another() -> None:
    pasts = Pasts()
    pasts.of(b"one").remember(TEXT)
    assert Guesses(TEXT[:10], pasts.of(b"one")).guess(2) == TEXT[10:12]
    assert Guesses(TEXT[:10], pasts.of(b"two")).guess(2) == []
    for number in range(MOST_SCOPES):
        pasts.of(bytes([number]))
    assert Guesses(TEXT[:10], pasts.of(b"one")).guess(2) == []


def test_a_long_text_is_cut() -> None:
    past = Past()
    past.remember(list(range(3 * MOST_TOKENS)))
    assert len(past.tokens) <= MOST_TOKENS // 2
