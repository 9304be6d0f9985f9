from hypothesis import given
from hypothesis import strategies as st

from tamiz.runtime.speculation.lookup import LONGEST, Lookup


def test_what_followed_the_last_tokens_is_guessed() -> None:
    lookup = Lookup([1, 2, 3, 4, 5, 6, 7])
    assert lookup.guess(3) == []
    lookup.add(2)
    assert lookup.guess(3) == [3, 4, 5]
    lookup.add(3)
    assert lookup.guess(9) == [4, 5, 6, 7, 2, 3, 4, 5, 6]  # what follows the end: the same again


def test_more_agreeing_tokens_win_over_a_later_place() -> None:
    lookup = Lookup([1, 2, 3, 50, 9, 3, 60, 1, 2])
    lookup.add(3)
    assert lookup.guess(1) == [50]


def test_after_an_edit_the_copy_goes_on_behind_it() -> None:
    source = [10, 11, 12, 13, 14, 15, 16, 17, 18]
    lookup = Lookup([*source, 99, 15, 77, *source[:5]])
    for token in (15, 16):
        lookup.add(token)
    lookup.add(88)  # instead of 17
    assert lookup.guess(1) == []
    lookup.add(18)
    assert lookup.guess(2) == [99, 15]


def test_guesses_that_fail_lose_their_chance() -> None:
    lookup = Lookup([])
    for token in range(1000, 1400):
        lookup.add(7)  # known, but never followed by the same token twice
        lookup.add(token)
    lookup.add(7)
    assert lookup.guess(1) == [1399]
    assert lookup.chances(1)[0] < 0.01


def test_guesses_that_hold_gain_chances() -> None:
    lookup = Lookup([])
    for _ in range(30):
        for token in range(10):
            lookup.add(token)
    chances = lookup.chances(4)
    assert len(chances) == 4
    assert min(chances) > 0.99


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(1, 2 * LONGEST))
def test_a_guess_continues_an_earlier_copy_of_the_last_token(tokens: list[int], count: int) -> None:
    lookup = Lookup(tokens[:5])
    for token in tokens[5:]:
        lookup.add(token)
    assert lookup.tokens == tokens
    guess = lookup.guess(count)
    assert len(guess) in (0, count)
    if guess:
        text = [*tokens, *guess]
        ends = [n for n, token in enumerate(tokens[:-1]) if token == tokens[-1]]
        assert any(text[end + 1 : end + 1 + count] == guess for end in ends)
