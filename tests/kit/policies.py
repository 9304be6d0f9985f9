"""A policy's surroundings: two techniques that nothing runs, and the sites of 30 layers."""

import json
from pathlib import Path
from typing import Any

from pydantic import Field

from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import (
    Autotune,
    Claim,
    Fit,
    Mode,
    Resource,
    Technique,
    TechniqueConfig,
)
from tamiz.planning.policy import Policy, Rules, read_policy


class SeedConfig(TechniqueConfig):
    k: int = Field(64, ge=1, le=4096, description="Entries of the residual.")
    block: int = 32


def unused(*_: Any) -> Fit:
    raise AssertionError("planning runs nothing")


def technique(name: str, **changes: Any) -> Technique:
    declared: dict[str, Any] = {
        "name": name,
        "version": "1",
        "summary": name,
        "config": SeedConfig,
        "site_kinds": frozenset({SiteKind.LINEAR, SiteKind.HEAD}),
        "claims": (Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
        "fit": unused,
        "rewrite": unused,
    }
    return Technique(**(declared | changes))


SEEDED = technique(
    "seeded",
    policy_keys={"K": "k", "block": "block"},
    autotune=Autotune("k", lambda site, config: [{"k": 64}]),
)
TECHNIQUES = {"base": technique("base", default=True), "seeded": SEEDED}
SITES = [
    *(
        Site(f"layers.{n}.{t}", SiteKind.LINEAR, f"{n}{t}", n, t, f"w{n}{t}", 8, 8)
        for n in range(30)
        for t in ("ffn_gate", "ffn_up", "ffn_down", "attn_q")
    ),
    Site("output", SiteKind.HEAD, "head", None, "output", "w", 8, 8),
]


def write(folder: Path, value: Any) -> Path:
    path = folder / "policy.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path


def read(folder: Path, value: Any) -> Policy:
    return read_policy(write(folder, value), TECHNIQUES, SITES)


def rules(policy: Policy, site: str) -> Rules:
    return policy.rules(next(s for s in SITES if s.id == site), Rules())
