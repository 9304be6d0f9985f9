"""Recipes: combinations of techniques by name, defined once in ``tamiz/data/recipes.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "data" / "recipes.json"


@dataclass(frozen=True)
class Recipe:
    """A combination of techniques that was measured as a whole.

    Attributes:
        name: What ``--recipe`` takes.
        summary: What the combination does, in one line.
        pays: In which situation the combination is the right one.
        techniques: Fields to set by technique; techniques that are not named keep their default.
        max_dppl: The budget of the whole model; None for the default of ``--max-dppl``.
        min_cosine: The budget of an encoder; None for the default of ``--min-cosine``.
        autotune: Whether several configurations are tried at a site where ``--autotune`` is not
            given.
    """

    name: str
    summary: str
    pays: str
    techniques: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    max_dppl: float | None = None
    min_cosine: float | None = None
    autotune: bool = False


@cache
def recipes() -> dict[str, Recipe]:
    """All recipes by name."""
    entries = json.loads(FILE.read_text("utf-8"))
    return {name: Recipe(name, **entry) for name, entry in entries.items()}
