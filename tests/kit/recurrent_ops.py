"""Sequences for the ops with a recurrence, made of random numbers, and their slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import tamiz_ops
from tamiz_ops import reference
from tamiz_ops.cache_rows import PAGE
from tamiz_ops.mamba_reference import Mamba2Sizes
from tamiz_ops.recurrence_reference import DeltaNetSizes
from tamiz_ops.scan_reference import ScanSizes

Array = np.ndarray[Any, Any]
SLOTS = 5


def draw(random: np.random.Generator, *shape: int) -> Array:
    """Numbers of mean 0 and variance 1."""
    return random.standard_normal(shape).astype(np.float32)


class RecurrentCase:
    """One sequence of an op, or several of one length: what comes in, and the weights."""

    op: str

    def __init__(
        self,
        rows: list[Array],
        weights: list[Array | None],
        parts: tuple[int, int],
        attributes: dict[str, Any],
    ) -> None:
        self.rows, self.weights, self.attributes = rows, weights, attributes
        self.mask = np.ones(rows[0].shape[:2], np.int64)
        self.state = np.zeros((len(self.mask), *parts), np.float32)

    def inputs(self, begin: int, end: int, state: Array) -> list[Array | None]:
        part = [np.ascontiguousarray(x[:, begin:end]) for x in self.rows]
        return [*part, *self.weights, state, np.ascontiguousarray(self.mask[:, :end])]

    def run(self, begin: int, end: int, state: Array, **options: Any) -> tuple[Array, Array]:
        """y, and the state after the run; the state before it is not changed."""
        inputs = self.inputs(begin, end, state)
        y, present = tamiz_ops.run(self.op, inputs, **self.attributes, **options)
        return y, present

    def exact(self, begin: int, end: int, state: Array) -> tuple[Array, Array]:
        """What `run` returns, of the float64 reference."""
        y, present = reference.run(self.op, self.inputs(begin, end, state), **self.attributes)
        return y, present

    def in_place(self, begin: int, end: int, state: Array) -> Array:
        inputs = self.inputs(begin, end, state)
        y: Array = tamiz_ops.run(self.op, inputs, out=[True, state], **self.attributes)[0]
        return y

    def whole(self) -> Array:
        return self.run(0, self.mask.shape[1], self.state)[0]

    def new_pool(self) -> Array:
        """Slots; what belongs to no sequence must not be read."""
        return np.full((SLOTS, *self.state.shape[1:]), np.nan, np.float32)


class DeltaCase(RecurrentCase):
    """Of `GatedDeltaNet`."""

    op = "GatedDeltaNet"
    SIZES = DeltaNetSizes(key_heads=2, value_heads=4, d_k=8, d_v=21, taps=4)

    def __init__(
        self, tokens: int, batch: int = 1, sizes: DeltaNetSizes = SIZES, seed: int = 0
    ) -> None:
        random, heads = np.random.default_rng(seed), sizes.value_heads
        widths = (sizes.width, heads * sizes.d_v, heads, heads)
        constants = np.random.default_rng(77)  # of the layer, whatever the sequence
        weights: list[Array | None] = [
            draw(constants, sizes.taps, sizes.width) * np.float32(0.7),
            -np.exp(draw(constants, heads)),
            draw(constants, heads),
            draw(constants, sizes.d_v),
        ]
        super().__init__(
            [draw(random, batch, tokens, width) for width in widths],
            weights,
            (sizes.key_heads, sizes.size),
            {"key_heads": sizes.key_heads, "epsilon": 1e-5},
        )


class Mamba2Case(RecurrentCase):
    """Of `Mamba2`."""

    op = "Mamba2"
    SIZES = Mamba2Sizes(heads=6, groups=2, d_head=21, d_state=8, taps=4)

    def __init__(
        self, tokens: int, batch: int = 1, sizes: Mamba2Sizes = SIZES, seed: int = 0
    ) -> None:
        random, heads = np.random.default_rng(seed), sizes.heads
        constants = np.random.default_rng(78)  # of the layer, whatever the sequence
        weights: list[Array | None] = [
            draw(constants, sizes.taps, sizes.channels) * np.float32(0.7),
            -np.exp(draw(constants, heads)),
            draw(constants, heads),
            draw(constants, heads),
            draw(constants, sizes.channels),
            draw(constants, sizes.inner),
        ]
        super().__init__(
            [draw(random, batch, tokens, sizes.width)],
            weights,
            (sizes.parts, sizes.layout.size),
            {"groups": sizes.groups, "epsilon": 1e-5},
        )


class ScanCase(RecurrentCase):
    """Of `SelectiveScan`."""

    op = "SelectiveScan"
    SIZES = ScanSizes(channels=85, d_state=5)

    def __init__(
        self, tokens: int, batch: int = 1, sizes: ScanSizes = SIZES, seed: int = 0
    ) -> None:
        random, constants = np.random.default_rng(seed), np.random.default_rng(79)
        channels, d_state = sizes.channels, sizes.d_state
        widths = (channels, channels, d_state, d_state, channels)
        super().__init__(
            [draw(random, batch, tokens, width) for width in widths],
            [-np.exp(draw(constants, d_state, channels)), draw(constants, channels)],
            (sizes.parts, sizes.layout.size),
            {},
        )


#: A sequence in a call: the case, its first token, the one behind its last, its slot.
Part = tuple[RecurrentCase, int, int, int]


def in_slots(parts: Sequence[Part], pool: Array, step: bool = False) -> list[Array]:
    """y of parts of several sequences in one call."""
    pages = max(-(-end // PAGE) for *_, end, _ in parts)
    table = np.zeros((len(parts), 2 + pages), np.int64)
    for row, (_, begin, end, _) in zip(table, parts, strict=True):
        row[:2] = begin, -1 if step else end - begin
    slots = np.array([slot for *_, slot in parts], np.int64)
    case = parts[0][0]
    rows = [
        np.concatenate([case.rows[n][:, begin:end] for case, begin, end, _ in parts], axis=1)
        for n in range(len(case.rows))
    ]
    mask = np.ones(rows[0].shape[:2], np.int64)
    inputs = [*rows, *case.weights, pool, mask, table, slots]
    y = tamiz_ops.run(case.op, inputs, out=[True, pool], **case.attributes)[0]
    return np.split(y, np.cumsum([end - begin for _, begin, end, _ in parts])[:-1], axis=1)
