"""Inputs of one call of `Attention`, run by the kernel and by the reference."""

import numpy as np

import tamiz_ops
from tamiz_ops import reference

TOLERANCE = 2e-6
#: With keys and values of bytes: a weight may be rounded to the other side, by 1/255 of the largest
#: of its block, times an element of a value, which is below 3 with few exceptions.
ROUNDED_STEP = 3 / 255


def assert_rounded(got, expected) -> None:
    """Elements of attention over bytes: all but a few are exact, and these are a step away."""
    error = np.abs(got - expected)
    assert error.max(initial=0) <= ROUNDED_STEP
    assert (error > TOLERANCE).mean() <= 0.1


class Case:
    """Inputs of one call, with a cache of exact length."""

    def __init__(self, batch=1, tokens=1, past=0, heads=(3, 1), dim=64, rotary=None, seed=0):
        self.rng = np.random.default_rng(seed)
        self.tokens, self.past, self.dim = tokens, past, dim
        self.heads = {"num_heads": heads[0], "kv_heads": heads[1]}
        self.q = self.random(batch, tokens, heads[0] * dim)
        self.k = self.random(batch, tokens, heads[1] * dim)
        self.v = self.random(batch, tokens, heads[1] * dim)
        self.past_key = self.random(batch, heads[1], past, dim)
        self.past_value = self.random(batch, heads[1], past, dim)
        self.mask = np.ones((batch, past + tokens), np.int64)
        self.positions = np.tile(np.arange(past, past + tokens), (batch, 1))
        rotated = dim if rotary is None else rotary
        half = rotated // 2
        frequencies = 10000.0 ** (-np.arange(half) / max(half, 1))
        self.frequencies = frequencies.astype(np.float32) if half else None

    def random(self, *shape) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(np.float32)

    @property
    def inputs(self) -> list[np.ndarray | None]:
        return [self.q, self.k, self.v, self.past_key, self.past_value, self.mask, self.positions,
                self.frequencies]  # fmt: skip

    def run(self, isa=None, threads=1, **attributes) -> list[np.ndarray]:
        return tamiz_ops.run(
            "Attention", self.inputs, out=[True] * 3, isa=isa, threads=threads,
            **self.heads, **attributes,
        )  # fmt: skip

    def reference(self, **attributes) -> list[np.ndarray]:
        return reference.run("Attention", self.inputs, **self.heads, **attributes)

    def run_in_place(self, capacity, fill=np.nan, **options) -> list[np.ndarray]:
        """Runs with past and present in one buffer, `fill` where the cache is empty."""
        buffers = []
        for past in (self.past_key, self.past_value):
            shape = (past.shape[0], past.shape[1], capacity, self.dim)
            buffers.append(np.full(shape, fill, np.float32))
            buffers[-1][:, :, : self.past] = past
        inputs = [*self.inputs[:3], *buffers, *self.inputs[5:]]
        return tamiz_ops.run("Attention", inputs, out=[True, *buffers], **self.heads, **options)
