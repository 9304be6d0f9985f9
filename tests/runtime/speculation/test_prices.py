import pytest

from tamiz.runtime.speculation.prices import Prices


@pytest.fixture
def measured() -> Prices:
    """Up to four rows cost nearly nothing, and each further one a fifth of a step."""
    prices = Prices()
    prices.add(1, 2.0)
    for rows, seconds in ((2, 2.1), (4, 2.3), (8, 3.9), (16, 7.1)):
        prices.add(rows, seconds)
    return prices


def test_prices_are_relative_to_a_step(measured: Prices) -> None:
    assert measured.step == 2.0
    assert measured.of(8) == pytest.approx(1.95)
    assert measured.of(6) == pytest.approx((1.15 + 1.95) / 2)  # between what was measured
    assert measured.of(32) == pytest.approx(3.55 + 16 * 2.55 / 15)


def test_a_run_is_never_cheaper_than_a_step() -> None:
    prices = Prices()
    prices.add(1, 2.0)
    prices.add(4, 1.0)
    assert prices.of(4) == 1.0


def test_guesses_that_are_never_right_are_not_verified(measured: Prices) -> None:
    assert measured.best_guesses([])[0] == 0
    assert measured.best_guesses([0.01] * 16)[0] == 0


def test_sure_guesses_are_verified_up_to_the_best_rate(measured: Prices) -> None:
    rates = {rows: rows / measured.of(rows) for rows in (1, 2, 3, 4, 6, 8, 12, 16)}
    best = max(rates, key=rates.__getitem__)
    assert measured.best_guesses([1.0] * 15) == (best - 1, pytest.approx(rates[best]))


def test_a_doubtful_guess_is_worth_a_cheap_row(measured: Prices) -> None:
    assert measured.best_guesses([0.3, 0.01, 0.01, 0.01])[0] == 1


def test_slow_moments_move_a_price_less_than_fast_ones(measured: Prices) -> None:
    before = measured.of(8)
    measured.add(8, 39.0)
    slower = measured.of(8) - before
    assert 0 < slower < 0.2 * (19.5 - before)
    measured.add(8, 2.0)
    assert measured.of(8) < (before + slower + 1.0) / 2 + 1e-9


def test_a_stop_of_the_program_does_not_make_a_length_too_dear(measured: Prices) -> None:
    for rows in (1, 8, 12):  # measured before, and never measured
        before = measured.of(rows)
        measured.add(rows, 1000.0)
        assert measured.of(rows) <= 2 * before
    assert measured.step is not None
    assert measured.step <= 2.2 + 1e-9
    assert measured.best_guesses([1.0] * 15)[0] > 0


def test_guesses_that_cost_a_step_never_pay(measured: Prices) -> None:
    assert measured.best_guesses([0.99] * 15, each=1.0)[0] == 0
    count, rate = measured.best_guesses([0.99] * 15, each=0.2)
    assert count == 7
    assert rate == pytest.approx(sum(0.99**n for n in range(8)) / (1.95 + 7 * 0.2))
