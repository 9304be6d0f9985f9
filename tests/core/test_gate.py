import math

import pytest

from tamiz.gate import refusal


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"rel_l2": 0.2, "cos_mean_w": 0.98}, None),
        ({"rel_l2": 0.21}, "rel_l2 is 0.2100, the gate accepts at most 0.2"),
        ({"cos_mean_w": 0.97}, "cos_mean_w is 0.9700, the gate accepts at least 0.98"),
        ({"rel_l2": math.nan}, "rel_l2 is nan, the gate accepts at most 0.2"),
        ({"cos_mean_w": math.nan}, "cos_mean_w is nan, the gate accepts at least 0.98"),
        ({}, None),
    ],
)
def test_the_gate(metrics: dict[str, float], reason: str | None) -> None:
    assert refusal(metrics) == reason
