"""Inputs of one call of `Attention`, run by the kernel and by the reference."""

from typing import Any

import numpy as np

import tamiz_ops
from tamiz_ops import reference, sketch_reference
from tamiz_ops.cache_rows import PAGE, pack_rows

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


class CaseWith(Case):
    """A case with one input more, `own`, and inputs of techniques by their numbers in `others`.

    A subclass says the number of `own`, and what it is.
    """

    number: int

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.own = self.draw()
        self.others: dict[int, np.ndarray] = {}

    def draw(self) -> np.ndarray:
        raise NotImplementedError

    @property
    def inputs(self) -> list[np.ndarray | None]:
        given = super().inputs
        others = [self.others.get(number) for number in range(len(given), self.number)]
        return [*given, *others, self.own]


def assert_equal_in_cuts(kind: type[CaseWith], isa: str, cut: int, **attributes: Any) -> None:
    """Checks that a prompt has the same bits in runs of `cut` tokens."""
    whole = kind(tokens=300, heads=(4, 2), dim=16)
    expected = whole.run(isa, **attributes)[0]
    case = kind(tokens=300, heads=(4, 2), dim=16)
    for begin in range(0, 300, cut):
        part = slice(begin, begin + cut)
        case.q, case.k, case.v = whole.q[:, part], whole.k[:, part], whole.v[:, part]
        case.mask, case.positions = whole.mask[:, : begin + cut], whole.positions[:, part]
        y, case.past_key, case.past_value = case.run(isa, threads=2, **attributes)
        np.testing.assert_array_equal(y, expected[:, part])


def check_pages(kind: type[CaseWith], isa: str) -> None:
    """Compares two sequences in pages, of which one decodes, with the reference."""
    case = kind(tokens=5, heads=(4, 2), dim=16)
    case.past_key, case.past_value = case.random(2, 1, 2, 4 * PAGE, 16)
    case.positions = np.array([[70, 3, 4, 5, 6]])
    case.others = {13: np.array([[70, -1, 0, 2], [3, 4, 1, 3]])}
    expected = case.reference()[0]
    buffers = [case.past_key.copy(), case.past_value.copy()]
    inputs = [*case.inputs[:3], *buffers, *case.inputs[5:]]
    got = tamiz_ops.run("Attention", inputs, out=[True, *buffers], isa=isa, **case.heads)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def check_bytes(case: CaseWith, isa: str) -> None:
    """Compares a run with a cache of bytes with the reference."""
    case.past_key, case.past_value = pack_rows(case.past_key), pack_rows(case.past_value)
    got, expected = case.run(isa, threads=2, cache_bits=8)[0], case.reference(cache_bits=8)[0]
    assert_rounded(got, expected)


def check_filter(case: CaseWith, isa: str) -> None:
    """Compares a step that attends to the keys that a filter keeps with the reference."""
    case.others = {8: sketch_reference.sketch(case.past_key, None, 1, 0.0)}
    how: dict[str, Any] = {**case.heads, "keep": 40, "recent": 8}
    got = tamiz_ops.run("Attention", case.inputs, out=[True] * 4, isa=isa, **how)[0]
    expected = reference.run("Attention", case.inputs, **how)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)
