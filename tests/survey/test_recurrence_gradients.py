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
from tamiz_ops.scan_reference import ScanSizes

STEP = 1e-4


def named(name: str, value: np.ndarray, constant: bool) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(value) if constant else None)


def draw(random: np.random.Generator, *shape: int) -> np.ndarray:
    return random.standard_normal(shape)


def check(
    op: str,
    runs: dict[str, np.ndarray | None],
    constants: dict[str, np.ndarray | None],
    state: tuple[int, int] | None,
    attributes: dict[str, Any],
    width: int,
) -> None:
    """Compares gradients at what a run computes with differences of the float64 reference.

    State and mask are the last inputs, or without `state` among the constants.
    """
    given = {name: run for name, run in runs.items() if run is not None}
    random, tokens = np.random.default_rng(1), next(iter(given.values())).shape[1]
    rest = [] if state is None else [np.zeros((1, *state)), np.ones((1, tokens), np.int64)]
    factors = draw(random, 1, tokens, width)

    def loss(inputs: list[np.ndarray | None]) -> float:
        y = reference.run(op, [*inputs, *constants.values(), *rest], **attributes)[0]
        return float((y * factors).sum())

    inputs = [
        None if value is None else named(name, value.astype(np.float32), name in constants)
        for name, value in {**runs, **constants}.items()
    ]
    node = ir.node(op, inputs, attributes, domain="tamiz")
    assert wanted(node) == list(given)
    held = {name: value.astype(np.float32) for name, value in given.items()}
    found = back(node, held, [factors.astype(np.float32), None])
    for (name, run), gradient in zip(runs.items(), found, strict=False):
        if run is None:
            assert gradient is None
            continue
        assert gradient is not None
        assert gradient.shape == run.shape
        for _ in range(12):
            at = tuple(int(random.integers(size)) for size in gradient.shape)
            sides = []
            for sign in (1, -1):
                moved = run.copy()
                moved[at] += sign * STEP
                sides.append(loss(list({**runs, name: moved}.values())))
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
    check("GatedDeltaNet", {**runs}, {**constants}, (2, sizes.size), attributes, 12)


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
    check(
        "Mamba2", {**runs}, chosen, state, {"groups": 2, "epsilon": 1e-5, **attributes}, sizes.inner
    )


@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_selective_scan(tokens: int) -> None:
    random, sizes = np.random.default_rng(0), ScanSizes(6, 3)
    widths = {"x": 6, "dt": 6, "b": 3, "c": 3, "z": 6}
    runs = {name: draw(random, 1, tokens, width) for name, width in widths.items()}
    constants = {"rate": -np.exp(draw(random, 3, 6)), "skip": draw(random, 6)}
    check("SelectiveScan", {**runs}, {**constants}, (sizes.parts, sizes.layout.size), {}, 6)


@pytest.mark.parametrize("gated", [True, False])
def test_a_short_convolution(gated: bool) -> None:
    random, kept = np.random.default_rng(0), ("b", "c", "x") if gated else ("x",)
    runs = {name: draw(random, 1, 9, 4) if name in kept else None for name in ("b", "c", "x")}
    constants = {
        "weight": draw(random, 3, 4),
        "past": np.zeros((1, 18, 4)),
        "attention_mask": np.ones((1, 9)),
        "sequences": None,
        "bias": None if gated else draw(random, 4),
    }
    check("ShortConv", runs, constants, None, {"silu": int(not gated)}, 4)


def test_a_sigmoid() -> None:
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    node = ir.node("Sigmoid", [named("x", x, False)])
    (found,) = back(node, {"x": x}, [np.ones_like(x)])
    y = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found, y * (1 - y), rtol=1e-5)
