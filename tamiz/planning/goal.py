"""What a build has to reach: limits of loss, size and speed, and what it may choose from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a build should have the most of, within its limits.
Prefer = Literal["speed", "size", "quality"]


@dataclass(frozen=True)
class Goal:
    """What a build within limits has to reach.

    Attributes:
        max_dppl: Largest Δppl; None for no limit.
        max_kl: Largest mean KL divergence from the reference, in nats per token.
        min_cosine: Least mean cosine between embeddings of an encoder and of the reference.
        max_bytes: Most bytes of all constants of the model.
        min_tok_s: Least predicted tokens per second of a decode step.
        prefer: What is made as good as the limits allow.
        allow: Names of the techniques to choose from; ``bits`` stands for all weight formats.
        force: Names of techniques that act wherever they can, also where they do not pay.
        context: Tokens that a predicted decode step attends to.
        points: Losses of a frontier, from the limit of KL on; 0 for a build.
        samples: How many points of a frontier are measured.
        measured: Whether what a technique saves is measured as well; else predictions decide.
    """

    max_dppl: float | None = None
    max_kl: float | None = None
    min_cosine: float | None = None
    max_bytes: int | None = None
    min_tok_s: float | None = None
    prefer: Prefer = "speed"
    allow: tuple[str, ...] = ("bits",)
    force: tuple[str, ...] = ()
    context: int = 128
    points: int = 0
    samples: int = 0
    measured: bool = True
