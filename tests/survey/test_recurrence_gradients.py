"""Gradients of recurrences and of a sigmoid beside differences of their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tamiz.survey.backward.run import back, wanted
from tamiz_ops import reference
from tamiz_ops.mamba_reference import Mamba2Sizes
from tamiz_ops.recurrence_reference import DeltaNetSizes

STEP = 1e-4


def named(name: str, value: np.ndarray, constant: bool) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(value) if constant else None)


def draw(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape)


def check(
    op: str,
    runs: dict[str, np.ndarray],
    constants: dict[str, np.ndarray | None],
    state: tuple[int, int],
    attributes: dict[str, Any],
    width: int,
) -> None:
    """Compares gradients at what a run computes with differences of the float64 reference."""
    random, tokens = np.random.default_rng(1), next(iter(runs.values())).shape[1]
    rest = [np.zeros((1, *state)), np.ones((1, tokens), np.int64)]
    factors = draw(random, 1, tokens, width)

    def loss(inputs: list[np.ndarray]) -> float:
        y = reference.run(op, [*inputs, *constants.values(), *rest], **attributes)[0]
        return float((y * factors).sum())

    inputs = [named(name, value, False) for name, value in runs.items()]
    inputs += [
        None if value is None else named(name, value.astype(np.float32), True)
        for name, value in constants.items()
    ]
    node = ir.node(op, inputs, attributes, domain="tamiz")
    assert wanted(node) == list(runs)
    held = {name: value.astype(np.float32) for name, value in runs.items()}
    found = back(node, held, [factors.astype(np.float32), None])
    for index, (name, gradient) in enumerate(zip(runs, found, strict=False)):
        assert gradient is not None
        assert gradient.shape == runs[name].shape
        for _ in range(12):
            at = tuple(int(random.integers(size)) for size in gradient.shape)
            sides = []
            for sign in (1, -1):
                moved = [run.copy() for run in runs.values()]
                moved[index][at] += sign * STEP
                sides.append(loss(moved))
            expected = (sides[0] - sides[1]) / (2 * STEP)
            assert gradient[at] == pytest.approx(expected, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_gated_delta_net(tokens: int, tiled: int) -> None:
    random, sizes = np.random.default_rng(0), DeltaNetSizes(2, 4, 4, 3, 3)
    widths = {"qkv": sizes.width, "z": 12, "b": 4, "a": 4}
    runs = {name: draw(random, 1, tokens, width) for name, width in widths.items()}
    constants = {
        "taps": draw(random, 3, sizes.width),
        "rate": -np.exp(draw(random, 4)),
        "bias": draw(random, 4),
        "weight": draw(random, 3),
    }
    attributes = {"key_heads": 2, "epsilon": 1e-5, "tiled": tiled}
    check("GatedDeltaNet", runs, {**constants}, (2, sizes.size), attributes, 12)


@pytest.mark.parametrize(
    ("attributes", "without"),
    [
        ({}, ()),
        ({"norm_first": 1}, ()),
        ({}, ("weight", "conv_bias")),
        ({"dt_min": 0.4, "dt_max": 1.2}, ()),
    ],
)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_selective_state_space(tokens: int, attributes, without) -> None:
    random, sizes = np.random.default_rng(0), Mamba2Sizes(4, 2, 3, 4, 3)
    runs = {"projected": draw(random, 1, tokens, sizes.width)}
    constants = {
        "taps": draw(random, 3, sizes.channels),
        "rate": -np.exp(draw(random, 4)),
        "dt_bias": draw(random, 4),
        "skip": draw(random, 4),
        "conv_bias": draw(random, sizes.channels),
        "weight": draw(random, sizes.inner),
    }
    chosen = {name: None if name in without else value for name, value in constants.items()}
    state = sizes.parts, sizes.layout.size
    check("Mamba2", runs, chosen, state, {"groups": 2, "epsilon": 1e-5, **attributes}, sizes.inner)


def test_a_sigmoid() -> None:
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    node = ir.node("Sigmoid", [named("x", x, False)])
    (found,) = back(node, {"x": x}, [np.ones_like(x)])
    y = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found, y * (1 - y), rtol=1e-5)
