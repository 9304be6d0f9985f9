"""Masks of a built graph as equations: what they leave of a site's input, and a judge of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kit.llama_reference import Array
from kit.unfused import Stage


@dataclass
class Judge:
    """Compares masks of the graph with what the equations say.

    Attributes:
        elements: How many were compared.
        differing: How many differ.
        farthest: Largest distance of a differing score from the threshold, of the largest score.
    """

    elements: int = 0
    differing: int = 0
    farthest: float = 0.0

    def __call__(self, scores: Array, candidates: Array, stage: Stage, found: Array) -> None:
        """One token: `scores` of all inputs, of which `candidates` may be chosen."""
        level = stage.attributes.get("threshold", stage.attributes.get("theta", 0.0))
        if keep := stage.attributes.get("keep", 0):
            level = max(level, np.sort(np.where(candidates, scores, -1))[-keep])
            assert found.sum() == min(keep, candidates.sum())
        assert not (found & ~candidates).any()
        differs = found != (candidates & (scores >= level))
        self.elements += len(found)
        self.differing += int(differs.sum())
        if differs.any():
            distance = np.abs(scores - level)[differs].max() / scores.max()
            self.farthest = max(self.farthest, float(distance))


@dataclass
class Selection:
    """The input of one site as its stages leave it: W x̂ is what the graph computes.

    KWTA:          z = x − μ,  kept where ‖z of the block‖ s ≥ t,  x̂ = μ + (z where kept, else 0)
    event-driven:  e = μ + α (x̂ before − μ),  chosen where ‖(x − e) s of the block‖ ≥ θ,
                   x̂ = chosen ? x : e
    both:          chosen among the kept, in z

    Attributes:
        judge: Told of every choice.
        masks: Of the stages, by name.
        prompt: Tokens that are read at once.
        kwta: The stage at the site, if there is one.
        event: The same.
    """

    judge: Judge
    masks: dict[str, Array]
    prompt: int
    kwta: Stage | None = None
    event: Stage | None = None

    def __call__(self, x: Array) -> Array:
        center = self.kwta.constants.get("center", 0.0) if self.kwta else 0.0
        z = x - center
        kept = np.ones(z.shape, bool)
        if self.kwta is not None:
            kept = self.masks[str(self.kwta.mask)]
            block = self.kwta.attributes["block"]
            norms = np.sqrt(np.square(z.reshape(len(z), -1, block)).sum(axis=2))
            scores = norms * self.kwta.constants.get("weight", 1.0)
            for t in range(self.kwta.attributes["first"], len(z)):
                self.judge(scores[t], np.ones(scores.shape[1], bool), self.kwta, kept[t])
            kept = np.repeat(kept, block, axis=1)
        left = z * kept if self.event is None else self._moved(z, kept)
        return center + left

    def _moved(self, z: Array, kept: Array) -> Array:
        assert self.event is not None
        mean = self.event.constants.get("mean", np.zeros(z.shape[1]))
        width = self.event.attributes.get("together", 1)
        chosen, effective = self.masks[str(self.event.mask)], z.copy()
        for t in range(self.prompt, len(z)):
            expected = mean + self.event.attributes["alpha"] * (effective[t - 1] - mean)
            scores = np.abs(z[t] - expected) * self.event.constants["scale"] * kept[t]
            blocks = np.sqrt(np.square(scores).reshape(-1, width).sum(axis=1))
            some, found = (flags.reshape(-1, width).any(axis=1) for flags in (kept[t], chosen[t]))
            self.judge(blocks, some, self.event, found)
            np.testing.assert_array_equal(chosen[t], kept[t] & np.repeat(found, width))
            effective[t] = np.where(chosen[t], z[t], expected)
        return effective
