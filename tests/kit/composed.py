"""A bundle that the command line planned and built, and the reference to compose beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit.llama_reference import Array, Llama
from tamiz.api.technique import FitError
from tamiz.calibration.calibration import Calibration
from tamiz.planning.choice import Choice
from tamiz.plugins import load
from tamiz.runtime.model import Model
from tamiz.survey.survey import Survey

PROMPT = [(7 * i * i + 3 * i) % 250 for i in range(40)]
DECODED = [(11 * i + 5) % 250 for i in range(20)]
#: Activations are rounded to 16 bits; of the largest logit.
TOLERANCE = 2e-3
#: Random weights are no trained ones: nothing is refused for its error.
POLICY = {"version": 1, "defaults": {"gating": {}}}


def needs(*techniques: str) -> None:
    if missing := sorted(set(techniques) - set(load().techniques())):
        pytest.skip(f"not installed: {', '.join(missing)}")


@dataclass
class Composed:
    """A bundle that the command line planned and built, and the reference to compose beside it."""

    path: Path
    plan: dict[str, Any]
    llama: Llama
    found: Survey

    def order(self, site: str) -> list[str]:
        """Techniques at a site, in the order of the plan."""
        return next(list(s["techniques"]) for s in self.plan["sites"] if s["site"] == site)

    def constants(self, suffix: str) -> list[Array]:
        """Constants of the built graph by the end of their name, in order of the layers."""
        values = ir.load(self.path / "model.onnx").graph.initializers
        return [values[n].const_value.numpy() for n in sorted(values) if n.endswith(suffix)]

    def use_weights_of(
        self, technique: str, known: Calibration | None = None, **fields: Any
    ) -> None:
        """Puts Ŵ of the technique's own fit where the reference has W."""
        declared = load().techniques()[technique]
        assert declared.dequantize is not None
        choice = Choice(declared, declared.config(**fields))
        for site in self.found.sites:
            if choice.acts_at(site):
                weight = np.ascontiguousarray(self.llama.weights[site.id], np.float32)
                try:
                    seen = known.statistics(site.id) if known else None
                    fit = declared.fit(site, weight, seen, choice.config)
                except FitError:
                    continue
                self.llama.weights[site.id] = declared.dequantize(site, fit).astype(np.float64)

    def check(self, tolerance: float = TOLERANCE) -> None:
        """The bundle computes what the reference does; prompt at once, then token by token."""
        sequence = Model.load(self.path, threads=2).sequence()
        rows = [sequence.read(PROMPT).copy(), *(sequence.step(t).copy() for t in DECODED)]
        expected = self.llama.logits(PROMPT + DECODED)[len(PROMPT) - 1 :]
        atol = tolerance * np.abs(expected[np.isfinite(expected)]).max()
        np.testing.assert_allclose(rows, expected, rtol=0, atol=atol)


Compose = Callable[..., Composed]


def strongest(share: float, block: int, first: int = 4) -> Callable[[Array], Array]:
    """Of every token the share of its blocks with the largest norms; the first tokens whole."""

    def mask(x: Array) -> Array:
        blocks = x.reshape(len(x), -1, block)
        norms = np.sqrt((blocks**2).sum(-1))
        order = np.argsort(-norms, axis=1, kind="stable")
        kept = np.zeros(norms.shape, bool)
        np.put_along_axis(kept, order[:, : round(share * norms.shape[1])], True, axis=1)
        kept[:first] = True
        return (blocks * kept[..., None]).reshape(x.shape)

    return mask
