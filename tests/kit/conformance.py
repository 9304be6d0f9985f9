"""The installed techniques, and what the contract of `tamiz.testing` cannot know about them."""

import os

from tamiz.plugins import load
from tamiz.testing import Case

#: What the kit cannot know; a technique that is not here is tried as it is.
CASES = [
    Case("block-quant", full_budget={}),
    Case(
        "event-driven",
        config={"budget_ms": 1000.0, "anywhere": True},
        full_budget={"select": "topk", "topk": 1.0, "anywhere": True},
    ),
    Case("head-shortlist", config={"keep": 64}, full_budget={"keep": 10**6}),
    Case(
        "event-attention",
        config={"theta": 0.5, "least_keys": 0, "age_max": 4, "gap_tol": 10.0},
        full_budget={"theta": 0.0, "least_keys": 0, "gap_tol": 10.0},
    ),
    Case("proc-sparse", full_budget={"shed_eps": 0}),
    Case("seed-delta", config={"target": "all"}),
    Case("kwta", config={"k": 0.7}, full_budget={"k": 1.0}),
    Case("key-filter", config={"keep": 8}, full_budget={"keep": 1000}),
    Case(
        "state-pack",
        config={"keep": 8, "recent": 8, "density": 1.0},
        full_budget={"keep": 1000},
    ),
    Case("ternary", config={"max_error": 1.0}),
    Case(
        "state-pack-mlp",
        full_budget={"density": 0.0},
        beside={"ternary": {"max_error": 1.0}},
    ),
    Case(
        "state-pack-mask",
        config={"eps": 0.1, "density": 1.0},
        full_budget={"eps": 0.0, "density": 1.0},
    ),
    Case(
        "state-pack-signs",
        config={"recall": 0.9, "density": 1.0},
        activation="relu",
    ),
    Case("tensor-train", config={"rank": 8}, full_budget={"cores": 1}),
    Case("window-attention", config={"tokens": 16}, full_budget={"tokens": 1000}),
]


def cases() -> list[Case]:
    """The installed techniques; where TAMIZ_TEST_ONLY is set, those of its first plugin."""
    known = {case.technique: case for case in CASES}
    own = os.environ.get("TAMIZ_TEST_ONLY", "").partition(",")[0]
    found = [t.name for p in load().installed if own in ("", p.name) for t in p.techniques]
    return [known.get(name, Case(name)) for name in sorted(found)]
