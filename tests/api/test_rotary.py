"""Frequencies of rotary tables, and tables of frequencies."""

from __future__ import annotations

import numpy as np
import pytest

from kit.graph_parts import SIZE, tables
from tamiz.api import rotary_frequencies, rotary_tables


@pytest.mark.parametrize("base", [1e4, 1e6])
@pytest.mark.parametrize("positions", [2, 100, 32768])
def test_frequencies_are_those_that_a_table_was_made_of(base: float, positions: int) -> None:
    made = tables(positions, base, rotated=64)
    factor = np.float32(1.25)
    found, scale = rotary_frequencies(factor * made["cos"], factor * made["sin"])
    assert scale == 1.25
    expected = (1 / base ** (np.arange(0, 64, 2) / 64)).astype(np.float32)
    again = np.arange(positions, dtype=np.float32)[:, None] * found
    np.testing.assert_allclose(np.cos(again), made["cos"], atol=2e-6)
    if positions > 1000:
        np.testing.assert_array_equal(found[:16], expected[:16])


def test_frequencies_of_float16_tables() -> None:
    made = {name: table.astype(np.float16) for name, table in tables(256).items()}
    found, _ = rotary_frequencies(made["cos"], made["sin"])
    np.testing.assert_allclose(found, 1 / 1e4 ** (np.arange(0, SIZE, 2) / SIZE), rtol=1e-3)


@pytest.mark.parametrize(
    ("cos", "sin"),
    [
        (np.ones((4, 8)), np.ones((4, 8))),
        (-np.ones((4, 8)), np.zeros((4, 8))),
        (np.ones((4, 8)), np.zeros((3, 8))),
        (np.ones(8), np.zeros(8)),
    ],
)
def test_other_tables_are_refused(cos: np.ndarray, sin: np.ndarray) -> None:
    with pytest.raises(ValueError, match="rotary tables"):
        rotary_frequencies(cos.astype(np.float32), sin.astype(np.float32))


def test_tables_of_frequencies() -> None:
    made = tables(100)
    frequency, factor = rotary_frequencies(2 * made["cos"], 2 * made["sin"])
    for found, wanted in zip(rotary_tables(frequency, 100, factor), made.values(), strict=True):
        np.testing.assert_allclose(found, 2 * wanted, atol=4e-6)
