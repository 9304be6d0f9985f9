"""Deltas and their packer, the hash, and ProcSparseMatMul on every instruction set."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session, value
from tamiz_ops.deltas import splitmix64

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
BASE, SEED = 0.003, 7


class Made:
    """Random deltas: the arguments of the op, and the weight by its definition."""

    def __init__(self, bits, n, k, density, existing=0.7, base=BASE, seed=0):
        rng = np.random.default_rng([seed, bits, n, k, int(100 * density)])
        tiles, groups = -(-n // 16), -(-k // 32)
        low, high, kind = (0, 16, np.uint8) if bits == 4 else (-127, 128, np.int8)
        quants = rng.integers(low, high, (n, k), dtype=kind)
        scales = rng.uniform(0.001, 0.02, (n, groups)).astype(np.float16)
        minima = rng.uniform(-0.2, 0.1, (n, groups)).astype(np.float16) if bits == 4 else None
        self.stored = rng.random((n, k)) < density
        self.exists = rng.random((tiles, groups)) < existing
        self.deltas, self.starts = tamiz_ops.pack_deltas(
            self.stored, self.exists, quants, scales, minima
        )
        self.attributes = {"bits": bits, "n": n, "k": k, "base": base, "seed": SEED}
        self.values = quants * spread(scales, k) + (0 if minima is None else spread(minima, k))
        self.noise = np.float64(np.float32(base)) * tamiz_ops.hash_weights(n, k, SEED)
        self.there = np.repeat(np.repeat(self.exists, 16, 0)[:n], 32, 1)[:, :k]

    def unpacked(self) -> np.ndarray:
        return tamiz_ops.unpack_deltas(self.deltas, self.starts, **self.attributes)

    def run(self, x, mask=None, bias=None, *, isa, threads=2, **attributes) -> np.ndarray:
        inputs = [x, self.deltas, self.starts, mask, bias]
        attributes = {**self.attributes, **attributes}
        return tamiz_ops.run("ProcSparseMatMul", inputs, isa=isa, threads=threads, **attributes)[0]


def spread(groups, k) -> np.ndarray:
    return np.repeat(groups.astype(np.float64), 32, axis=-1)[..., :k]


def test_splitmix64_is_the_published_generator() -> None:
    assert int(splitmix64(0, np.array([0]))[0]) == 0xE220A8397B1DCDAF
    assert [int(z) for z in splitmix64(1234567, np.arange(5))] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_hash_of_rows_and_columns() -> None:
    """By its definition, and the same whatever the size of the matrix."""
    got = tamiz_ops.hash_weights(35, 70, seed=11)
    for row, column in ((0, 0), (1, 5), (2, 8), (17, 33), (34, 69)):
        word = int(splitmix64(11, np.array([(row // 2 << 32) + column // 8]))[0])
        byte = word >> 8 * (row % 2 * 4 + column % 4) & 255
        nibble = byte >> 4 if column % 8 >= 4 else byte & 15
        assert got[row, column] == 2 * nibble - 15
    np.testing.assert_array_equal(got[:20, :33], tamiz_ops.hash_weights(20, 33, seed=11))
    # of 0xE220A8397B1DCDAF, from the low byte on: low nibbles, then high ones
    golden = [[15, 11, 11, 7, 5, 9, -13, -1], [3, 1, -15, -11, -9, 5, -11, 13]]
    assert tamiz_ops.hash_weights(2, 8).tolist() == golden


def test_the_hash_is_uniform() -> None:
    got = tamiz_ops.hash_weights(256, 256, seed=3).astype(np.float64)
    _, counts = np.unique(got, return_counts=True)
    assert len(counts) == 16
    assert np.abs(counts / 4096 - 1).max() < 0.08  # five standard deviations
    assert abs(np.corrcoef(got[0::2].ravel(), got[1::2].ravel())[0, 1]) < 0.03


@settings(max_examples=60)
@given(
    bits=st.sampled_from([4, 8]),
    n=st.integers(1, 40),
    k=st.integers(1, 100),
    density=st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.8, 1.0]),
    existing=st.sampled_from([0.0, 0.5, 1.0]),
    seed=st.integers(0, 1000),
)
def test_records_come_back(bits, n, k, density, existing, seed) -> None:
    made = Made(bits, n, k, density, existing, seed=seed)
    got = made.unpacked()
    stored = made.stored & made.there
    np.testing.assert_array_equal(got[stored], made.values[stored])
    np.testing.assert_array_equal(got[~made.there], 0)
    others = made.there & ~made.stored
    alike = (got == np.where(others, made.noise, got)) | (got == made.values)
    assert alike[others].all()  # where all of a record is stored the value is, too
    full = 4 + (320 if bits == 4 else 544)
    assert len(made.deltas) <= made.exists.sum() * full + tamiz_ops.DELTA_PADDING


def test_every_form_is_used_where_it_is_smallest() -> None:
    def sizes(density) -> tuple[int, int]:
        made = Made(8, 16, 32, density, 1.0)
        return len(made.deltas) - tamiz_ops.DELTA_PADDING - 4, int(made.stored.sum())

    size, count = sizes(0.02)
    assert size == 32 + 3 * count
    size, count = sizes(0.5)
    assert size == 32 + 64 + count
    assert sizes(0.99)[0] == 544


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (100, 576), (70, 1100)])
@pytest.mark.parametrize("density", [0.02, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("base", [0.0, BASE])
def test_product(bits, n, k, density, base) -> None:
    """Within the rounding of x to 16 bits; the same bits on every instruction set."""
    made = Made(bits, n, k, density, base=base)
    weight = made.unpacked()
    for rows in (1, 3, 9, 130):
        x, bias = random(rows, k), random(n, seed=1)
        groups = -(-k // 32)
        padded = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, groups * 32 - k)))
        steps = spread(padded.reshape(rows, groups, 32).max(-1), k) / 32512
        # |values|, |minima| and |hash| are summed apart: bounded by the largest of each
        terms = np.abs(weight) + 0.5
        limit = 0.505 * steps @ np.abs(weight).T
        limit += (3 * groups + 4) * 2**-24 * (np.abs(x) @ terms.T + np.abs(bias))
        expected = x @ weight.T + bias
        results = [made.run(x, None, bias, isa=isa) for isa in ISAS]
        assert np.all(np.abs(results[0] - expected) <= limit)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [1, 8, 32, 64])
def test_a_mask_narrows_what_exists(bits, block) -> None:
    """rebuild ∩ mask: a masked input counts as 0, whether its block exists or not."""
    n, k = 50, 200
    made = Made(bits, n, k, 0.6)
    for rows in (1, 5):
        rng = np.random.default_rng(block)
        mask = (rng.random((rows, -(-k // block))) < 0.5).astype(np.uint8)
        x = random(rows, k)
        clean = np.where(np.repeat(mask, block, axis=1)[:, :k], x, 0).astype(np.float32)
        for isa in ISAS:
            np.testing.assert_array_equal(
                made.run(x, mask, isa=isa, block=block), made.run(clean, isa=isa)
            )


def test_bits_do_not_depend_on_threads_or_other_rows() -> None:
    n, k = 300, 600
    made = Made(4, n, k, 0.6)
    x = random(133, k)
    expected = made.run(x, isa="scalar", threads=1)
    for isa in ISAS:
        for threads in (1, 3):
            np.testing.assert_array_equal(made.run(x, isa=isa, threads=threads), expected)
        for row in (0, 9, 132):
            np.testing.assert_array_equal(made.run(x[row], isa=isa), expected[row])


def test_metrics_count_the_bytes_of_records_that_the_mask_keeps() -> None:
    n, k = 32, 96
    made = Made(4, n, k, 1.0, 1.0, base=0.0)
    nodes = [node("ProcSparseMatMul", ["x", "d", "s", "m"], ["y"], "mm", **made.attributes)]
    constants = {"d": made.deltas, "s": made.starts}
    runs = session(model(nodes, ["x", value("m", np.uint8)], ["y"], constants))
    runs.run(None, {"x": random(1, k), "m": np.array([[1, 0, 1]], np.uint8)})
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["proc.bytes_stored"] == 2 * 3 * 324
    assert counted["proc.bytes_read"] == 2 * (2 * 324 + 4)


def damaged(change) -> Any:
    made = Made(8, 20, 64, 0.5, 1.0)
    deltas, starts = made.deltas.copy(), made.starts.copy()
    change(deltas, starts)
    made.deltas, made.starts = deltas, starts
    return made


def put(array, index, what) -> None:
    array[index] = what


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "change",
    [
        lambda d, s: put(s, 0, -1),
        lambda d, s: put(s, 2, len(d)),
        lambda d, s: put(s, 1, s[1] - 1),
        lambda d, s: put(s, 1, s[2] + 8),
        lambda d, s: put(d, 0, 2),  # a group that the weight does not have
        lambda d, s: put(d, 2, d[2] + 1),  # a byte more
        lambda d, s: put(d, 3, d[3] ^ 128),  # another form
        lambda d, s: put(d, slice(36, 100), 255),  # more bits than values
    ],
)
def test_damaged_records_are_refused(isa, change) -> None:
    made = damaged(change)
    with pytest.raises(ValueError, match="are damaged"):
        made.run(random(1, 64), isa=isa, threads=1)


@settings(max_examples=200)
@given(at=st.integers(0, 700), what=st.integers(0, 255), seed=st.integers(0, 20))
def test_no_byte_of_a_record_can_do_harm(at, what, seed) -> None:
    """Whatever a byte becomes, the op computes something or refuses; it does not crash."""
    made = Made(4 if seed % 2 else 8, 20, 64, 0.3, 1.0, seed=seed)
    deltas = made.deltas.copy()
    deltas[at % (len(deltas) - tamiz_ops.DELTA_PADDING)] = what
    made.deltas = deltas
    for isa in ISAS:
        try:
            assert made.run(random(1, 64), isa=isa, threads=1).shape == (1, 20)
        except ValueError as error:
            assert "are damaged" in str(error)  # noqa: PT017


GOOD = Made(4, 20, 40, 0.5)
X = random(2, 40)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X[:, :39], GOOD.deltas, GOOD.starts], {}, "x has shape [2, 39], expected k = 40"),
        ([X, GOOD.deltas[:9], GOOD.starts], {}, "deltas has 9 bytes, expected 64 or more"),
        ([X, GOOD.deltas, GOOD.starts[1:]], {}, "starts has shape [2], expected [3]"),
        ([X, GOOD.deltas[None], GOOD.starts], {}, "expected 1 dimensions"),
        ([X, GOOD.deltas, GOOD.starts], {"bits": 3}, "attribute 'bits' is 3, expected 4 or 8"),
        ([X, GOOD.deltas, GOOD.starts], {"base": np.nan}, "attribute 'base' is not finite"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("ProcSparseMatMul", inputs, **{**GOOD.attributes, **attributes})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stored": np.ones((20, 39), bool)}, "stored is [20, 39]"),
        ({"exists": np.ones((2, 3), bool)}, "exists [2, 3], expected"),
        ({"quants": np.full((20, 40), 16, np.uint8)}, "quants holds 16"),
    ],
)
def test_the_packer_names_what_does_not_fit(change, message) -> None:
    good = {
        "quants": np.zeros((20, 40), np.uint8),
        "stored": np.ones((20, 40), bool),
        "exists": np.ones((2, 2), bool),
        "scales": np.ones((20, 2), np.float16),
        "minima": np.ones((20, 2), np.float16),
    }
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.pack_deltas(**{**good, **change})
