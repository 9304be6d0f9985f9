"""What a load of a server must show."""

from typing import Any

import pytest

from benchmarks.serving.serving_load import faults

GOOD: dict[str, Any] = {
    "answers": 10,
    "wrong": 0,
    "bad_statuses": 0,
    "lost_tokens": 0.0,
    "left_running": 0.0,
    "memory_mb": [1000, 1100, 1060],
}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"memory_mb": []}, None),
        ({"wrong": 1}, "wrong is 1, expected 0"),
        ({"bad_statuses": 2}, "bad_statuses is 2, expected 0"),
        ({"lost_tokens": 64.0}, "lost_tokens is 64.0, expected 0"),
        ({"answers": 0}, "answers is 0, expected some: give it more minutes"),
        ({"memory_mb": [1000, 1080, 1080]}, "memory_mb grew from 1000 to 1080"),
    ],
)
def test_faults_are_named(change: dict[str, Any], fault: str | None) -> None:
    found = faults(GOOD | change)
    assert len(found) == (fault is not None)
    assert all(one.startswith(str(fault)) for one in found)
