from collections.abc import Callable

from tamiz.runtime.batching.pace import Pace


def read(pace: Pace, steps: int, runs: int, seconds: Callable[[int], float]) -> list[int]:
    """Tokens of a prompt in each run, where a run with so many takes `seconds`."""
    found = []
    for _ in range(runs):
        found.append(pace.tokens(steps))
        pace.add(steps, found[-1], seconds(found[-1]))
    return found


def share(found: list[int], tokens: int) -> float:
    return found.count(tokens) / len(found)


def test_the_first_run_shows_how_long_steps_take_alone() -> None:
    assert read(Pace(1.5), 8, 3, lambda n: 1 + 0.1 * n) == [0, 1, 4]


def test_a_run_becomes_as_long_as_allowed() -> None:
    for limit, most in ((1.5, 4), (3.0, 16)):
        found = read(Pace(limit), 8, 200, lambda n: 1 + 0.1 * n)[8:]
        assert share(found, most) > 0.95
        assert max(found) <= 2 * most


def test_prompts_of_many_sequences_get_their_share_of_the_time() -> None:
    pace = Pace(1.5)
    read(pace, 2, 20, lambda n: 1 + 0.1 * n)
    assert pace.tokens(2, share=0.25) == pace.tokens(2) == 4
    found = []
    for _ in range(10):
        found.append(pace.tokens(2, share=7.0))
        pace.add(2, found[-1], 1 + 0.1 * found[-1])
    assert set(found[4:]) == {64}  # 7.4 times as long, 8 times are allowed
    assert pace.tokens(2) == 4


def test_a_number_that_costs_less_than_it_seems_is_found() -> None:
    prices = {0: 1.0, 1: 1.3, 2: 1.3, 4: 1.35, 8: 1.4, 16: 9.0}
    assert share(read(Pace(1.5), 8, 400, prices.__getitem__)[160:], 8) > 0.95


def test_a_prompt_goes_on_whatever_it_costs() -> None:
    assert set(read(Pace(1.0), 1, 10, lambda n: 1 + 9 * n)[1:]) == {1}


def test_each_number_of_steps_has_its_own_measurements() -> None:
    pace = Pace(1.5)
    read(pace, 8, 20, lambda n: 1 + 0.1 * n)
    assert pace.tokens(7) == 0
    read(pace, 7, 20, lambda n: 1 + 0.01 * n)
    assert pace.tokens(7) > pace.tokens(8) > 1


def test_what_is_left_of_a_prompt_is_no_measurement() -> None:
    pace = Pace(1.5)
    pace.add(0, 512, 9.0)
    pace.add(1, 0, 1.0)
    pace.add(1, 5, 1.0)
    assert pace.tokens(1) == 1


def test_other_programs_that_slow_a_run_do_not_count_much() -> None:
    pace = Pace(1.5)
    read(pace, 8, 20, lambda n: 1 + 0.1 * n)
    pace.add(8, 4, 1.8)
    assert pace.tokens(8) == 4
