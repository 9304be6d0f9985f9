"""Workers that fit: what a user does not have to read."""

import warnings

from tamiz.building.fit.workers import workers

RESTARTED = (
    "A worker stopped while some jobs were given to the executor. This can be caused by a too "
    "short worker timeout or by a memory leak."
)


def test_a_process_that_starts_anew_warns_of_nothing() -> None:
    """A process that has grown gives its memory back by a new start; joblib calls that a leak."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with workers("loky", 2) as engaged:
            assert list(engaged.map(abs, [-1, 2, -3])) == [1, 2, 3]
        for text in (RESTARTED, "another"):
            warnings.warn(text, UserWarning, stacklevel=1)
    told = [str(warning.message) for warning in seen if warning.category is UserWarning]
    assert told == ["another"]
