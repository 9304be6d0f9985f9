import math

import pytest

from tamiz.building.fit.gate import judge
from tamiz.planning.policy import Gating


@pytest.mark.parametrize(
    ("metrics", "reason"),
    [
        ({"rel_l2": 0.2, "cos_mean_w": 0.98}, None),
        ({"rel_l2": 0.21}, "rel_l2 is 0.2100, the gate accepts at most 0.2"),
        ({"cos_mean_w": 0.97}, "cos_mean_w is 0.9700, the gate accepts at least 0.98"),
        (
            {"cos_mean_w": 0.99, "cos_p05_w": 0.9},
            "cos_p05_w is 0.9000, the gate accepts at least 0.95",
        ),
        ({"cos_mean_w": 0.9, "cos_mean_x_w": 0.99}, None),
        ({"rel_l2": math.nan}, "rel_l2 is nan, the gate accepts finite metrics"),
        ({"cos_mean_w": math.nan}, "cos_mean_w is nan, the gate accepts finite metrics"),
        ({}, None),
    ],
)
def test_the_gate_without_a_policy(metrics: dict[str, float], reason: str | None) -> None:
    assert judge(metrics, Gating()).refusal == reason


def test_a_policy_asks_for_what_it_names_only() -> None:
    gating = Gating("cos_x", 0.5, None, None)
    assert judge({"rel_l2": 0.9, "cos_mean_x": 0.6, "cos_p05_x": -1}, gating).refusal is None
    assert judge({"cos_mean_x": 0.4, "cos_mean_w": 0.9}, gating).refusal is not None


@pytest.mark.parametrize(
    ("metric", "known", "judged"),
    [
        ("cos_xw", ("w", "x", "x_w"), "x_w"),
        ("cos_xw", ("w", "x"), "w"),
        ("cos_x", ("w", "x", "x_w"), "x"),
        ("cos_x", ("w",), "w"),
        ("cos_w", ("w", "x"), "w"),
        ("cos_xw", (), None),
    ],
)
def test_fallbacks_of_a_metric(metric: str, known: tuple[str, ...], judged: str | None) -> None:
    metrics = {f"cos_mean_{name}": 1.0 for name in known}
    assert judge(metrics, Gating(metric)).metric == judged
