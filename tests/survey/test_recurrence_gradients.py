"""Gradients of a gated delta net and of a sigmoid beside differences of their values."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from tamiz.survey.backward.run import back, wanted
from tamiz_ops import reference
from tamiz_ops.recurrence_reference import DeltaNetSizes

STEP = 1e-4


def named(name: str, value: np.ndarray, constant: bool) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(value) if constant else None)


@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_a_gated_delta_net(tokens: int, tiled: int) -> None:
    random = np.random.default_rng(0)
    sizes = DeltaNetSizes(2, 4, 4, 3, 3)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape)

    runs = [draw(1, tokens, width) for width in (sizes.width, 12, 4, 4)]
    constants = [draw(3, sizes.width), -np.exp(draw(4)), draw(4), draw(3)]
    rest = [np.zeros((1, 2, sizes.size)), np.ones((1, tokens), np.int64)]
    attributes = {"key_heads": 2, "epsilon": 1e-5, "tiled": tiled}
    factors = draw(1, tokens, 12)

    def loss(inputs: list[np.ndarray]) -> float:
        y = reference.run("GatedDeltaNet", [*inputs, *constants, *rest], **attributes)[0]
        return float((y * factors).sum())

    names = ["qkv", "z", "b", "a", "taps", "rate", "bias", "weight"]
    values = dict(zip(names, [*runs, *constants], strict=True))
    node = ir.node(
        "GatedDeltaNet",
        [
            named(name, value.astype(np.float32), name in names[4:])
            for name, value in values.items()
        ],
        attributes,
        domain="tamiz",
    )
    assert wanted(node) == names[:4]
    held = {name: values[name].astype(np.float32) for name in names[:4]}
    found = back(node, held, [factors.astype(np.float32), None])
    for index, gradient in enumerate(found[:4]):
        assert gradient is not None
        assert gradient.shape == runs[index].shape
        for _ in range(6):
            at = tuple(int(random.integers(size)) for size in gradient.shape)
            sides = []
            for sign in (1, -1):
                moved = [run.copy() for run in runs]
                moved[index][at] += sign * STEP
                sides.append(loss(moved))
            expected = (sides[0] - sides[1]) / (2 * STEP)
            assert gradient[at] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_a_sigmoid() -> None:
    x = np.linspace(-4, 4, 9, dtype=np.float32)
    node = ir.node("Sigmoid", [named("x", x, False)])
    (found,) = back(node, {"x": x}, [np.ones_like(x)])
    y = 1 / (1 + np.exp(-x.astype(np.float64)))
    np.testing.assert_allclose(found, y * (1 - y), rtol=1e-5)
