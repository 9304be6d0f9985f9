import greedy
import numpy as np


class Counting:
    """A model whose next token is the last one plus one, by one logit over all others."""

    def sequence(self, capacity):
        return self

    def read(self, prompt):
        return self.step(prompt[-1])

    def step(self, token):
        return np.eye(10, dtype=np.float32)[(token + 1) % 10]


def test_equal_answers_do_not_part():
    assert greedy.divergence(Counting(), [1, 2], [3, 4, 5]) is None


def test_the_first_other_token_is_found_with_its_margin():
    assert greedy.divergence(Counting(), [1, 2], [3, 4, 7, 8]) == (2, 1.0)


def test_a_summary_counts_and_lists():
    found = greedy.summary([None, (3, 0.5), (7, 0.25)])
    assert (found["prompts"], found["equal"]) == (3, 1)
    assert (found["median_margin"], found["largest_margin"]) == (0.375, 0.5)
    assert found["divergences"][0] == {"prompt": 1, "equal_tokens": 3, "margin": 0.5}


def test_what_follows_a_stop_token_is_left_out():
    assert greedy.until_stop([1, 2, 9, 3, 9], {9, 8}) == [1, 2, 9]
    assert greedy.until_stop([1, 2], {9}) == [1, 2]
