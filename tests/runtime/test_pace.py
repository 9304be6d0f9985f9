from tamiz.runtime.pace import Pace


def read(pace: Pace, steps: int, runs: int, row: float) -> list[int]:
    """Tokens of a prompt in each run, where a step takes 1 s and such a token `row` s."""
    found = []
    for _ in range(runs):
        found.append(pace.tokens(steps))
        pace.add(steps, found[-1], 1.0 + row * found[-1])
    return found


def test_the_first_run_shows_how_long_steps_take_alone() -> None:
    assert read(Pace(1.5), steps=8, runs=3, row=0.1)[:2] == [0, 1]


def test_a_run_becomes_as_long_as_allowed() -> None:
    assert set(read(Pace(1.5), steps=8, runs=40, row=0.1)[-20:]) <= {4, 5}
    assert set(read(Pace(3.0), steps=8, runs=40, row=0.1)[-20:]) <= {18, 19, 20}


def test_a_prompt_goes_on_whatever_it_costs() -> None:
    assert set(read(Pace(1.0), steps=1, runs=10, row=9.0)[1:]) == {1}


def test_each_number_of_steps_has_its_own_measurements() -> None:
    pace = Pace(1.5)
    read(pace, steps=8, runs=40, row=0.1)
    assert pace.tokens(7) == 0
    read(pace, steps=7, runs=40, row=0.02)
    assert pace.tokens(7) > pace.tokens(8) > 1


def test_runs_of_prompts_alone_are_not_compared() -> None:
    pace = Pace(1.5)
    pace.add(0, 512, 9.0)
    assert pace.tokens(1) == 0
