"""Columns that the attention mask hides are no positions: what comes later is the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import tamiz_ops
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import load

IDS = np.random.default_rng(0).integers(2, 262, 100).tolist()


def check_masked_columns(dense: Path, out: Path, techniques: dict[str, dict[str, Any]]) -> None:
    """A bare session: 5 hidden columns behind a prompt of 90 change nothing in later steps."""
    plugins = load()
    build(dense, out, choose(plugins.techniques(), techniques), plugins, Options(max_dppl=None))
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(str(out / "model.onnx"), options)
    for plain, hidden in zip(_last_steps(session, 0), _last_steps(session, 5), strict=True):
        np.testing.assert_allclose(hidden, plain, rtol=0, atol=1e-4 * np.abs(plain).max())


def _last_steps(session: ort.InferenceSession, holes: int) -> Iterator[np.ndarray]:
    """Logits of three tokens after a prompt of 90 and so many columns that the mask hides."""
    states = {}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            shape = [n if isinstance(n, int) else int("past" not in n) for n in value.shape]
            states[value.name] = np.zeros(shape, np.float32)
    mask = np.ones((1, 0), np.int64)
    for begin, tokens, shown in ((0, 90, 1), (90, holes, 0), *((i, 1, 1) for i in range(90, 93))):
        if not tokens:
            continue
        positions = np.arange(begin, begin + tokens)[None]
        mask = np.concatenate([mask, np.full_like(positions, shown)], axis=1)
        given = {"attention_mask": mask, "position_ids": positions}
        given["input_ids"] = np.array([IDS[begin : begin + tokens]])
        logits, *presents = session.run(None, {**given, **states})
        states = dict(zip(states, presents, strict=True))
        if tokens == 1:
            yield logits[0, -1]
