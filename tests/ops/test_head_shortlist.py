"""HeadShortlist: exact where BlockMatMul is, estimates elsewhere, in every instruction set."""

import re
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]
N, K, DIMS, SIGN_DIMS = 1000, 100, 40, 60
TILES, REFINED = -(-N // 16), 20


def packed(bits, n, k, seed=0, scale_bits=16) -> np.ndarray:
    rng = np.random.default_rng([seed, bits, n, k])
    if scale_bits == 8:
        quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
        scales = rng.integers(1, 256, (n, -(-k // 32)), dtype=np.uint8)
        units = rng.uniform(0.001, 0.02, n).astype(np.float16)
        return tamiz_ops.pack_int4_in_units(quants, scales, scales, units)
    halves = rng.uniform(0.001, 0.02, (n, -(-k // 32))).astype(np.float16)
    if bits == 8:
        return tamiz_ops.pack_int8(rng.integers(-127, 128, (n, k), dtype=np.int8), halves)
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    return tamiz_ops.pack_int4(quants, halves, (-7.5 * halves).astype(np.float16))


def signs(n, seed) -> np.ndarray:
    rng = np.random.default_rng([n, seed])
    levels = rng.choice([-1, 1], (n, SIGN_DIMS)).astype(np.int8)
    return tamiz_ops.pack_signs(levels, rng.uniform(0.1, 1, n).astype(np.float16))


def inputs(
    x, *, bits=8, sketch_bits=4, mask=None, bias=None, n=N, signed=False
) -> list[np.ndarray | None]:
    dims = DIMS + (SIGN_DIMS if signed else 0)
    project, sketch = packed(8, dims, K, 1), packed(sketch_bits, n, DIMS, 2)
    values = [x, packed(bits, n, K), mask, bias, project, sketch, random(n, seed=3)]
    return [*values, signs(n, 1), signs(n, 2), random(n, seed=6)] if signed else values


def attributes(*, bits=8, n=N, signed=False, **others) -> dict[str, int]:
    sizes = {"sign_dims": SIGN_DIMS, "refined": REFINED} if signed else {}
    return {"bits": bits, "n": n, "k": K, "dims": DIMS, "rows": 4} | sizes | others


def run(values, isa=None, threads=2, **others) -> np.ndarray:
    return tamiz_ops.run("HeadShortlist", values, isa=isa, threads=threads, **others)[0]


def exact(values, *, bits=8, n=N, block=32, isa=None) -> np.ndarray:
    matmul: dict[str, Any] = {"bits": bits, "n": n, "k": K, "block": block}
    return tamiz_ops.run("BlockMatMul", values[:4], isa=isa, **matmul)[0]


def chosen(y, exact_y) -> np.ndarray:
    """Whole tiles of y that are exact, [..., tiles]; an estimate is never exact by chance here."""
    same = np.pad(y == exact_y, [(0, 0)] * (y.ndim - 1) + [(0, -y.shape[-1] % 16)], mode="edge")
    return np.asarray(same.reshape(*y.shape[:-1], -1, 16).all(-1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "sketch_bits"), [(8, 4), (4, 4), (8, 8)])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("tiles", [1, 7, TILES - 1])
@pytest.mark.parametrize("bias", [None, random(N, seed=4)], ids=["no bias", "bias"])
@pytest.mark.parametrize("signed", [False, True])
def test_chosen_tiles_are_exact_and_the_others_estimates(
    isa, bits, sketch_bits, rows, tiles, bias, signed
) -> None:
    x = random(rows, K)
    values = inputs(x, bits=bits, sketch_bits=sketch_bits, bias=bias, signed=signed)
    others = attributes(bits=bits, sketch_bits=sketch_bits, tiles=tiles, signed=signed)
    y = run(values, isa, **others)
    expected = reference.run("HeadShortlist", values, **others)[0]
    # Activations are rounded to 1 part in 65,024 of the largest in their group, twice.
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4 * np.abs(expected).max())
    assert (chosen(y, exact(values, bits=bits)).sum(-1) == tiles).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("estimate", [0, 1])
@pytest.mark.parametrize("tiles", [TILES, TILES + 1, 10**6])
@pytest.mark.parametrize("signed", [False, True])
def test_all_tiles_are_the_dense_head_bit_for_bit(isa, bits, estimate, tiles, signed) -> None:
    values = inputs(random(3, K), bits=bits, bias=random(N, seed=4), signed=signed)
    others = attributes(bits=bits, tiles=tiles, estimate=estimate, signed=signed)
    y = run(values, isa, **others)
    np.testing.assert_array_equal(y, exact(values, bits=bits, isa=isa))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bias", [None, random(N, seed=4)], ids=["no bias", "bias"])
@pytest.mark.parametrize("block", [None, 1])
def test_scales_of_8_bits(isa, bias, block) -> None:
    x = random(1, K)
    mask = np.random.default_rng(5).integers(0, 2, (1, K), dtype=np.uint8) if block else None
    values = inputs(x, bits=4, mask=mask, bias=bias)
    values[1] = packed(4, N, K, scale_bits=8)
    matmul: dict[str, Any] = {"bits": 4, "scale_bits": 8, "n": N, "k": K, "block": block or 32}
    expected = tamiz_ops.run("BlockMatMul", values[:4], isa=isa, **matmul)[0]
    y = run(values, isa, **attributes(bits=4, tiles=7) | matmul)
    assert chosen(y, expected).sum() == 7
    whole = run(values, isa, **attributes(bits=4, tiles=TILES) | matmul)
    np.testing.assert_array_equal(whole, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tiles", [1, 5, 30, TILES - 1])
@pytest.mark.parametrize("signed", [False, True])
def test_other_logits_can_be_minus_infinity(isa, tiles, signed) -> None:
    values = inputs(random(2, K), signed=signed)
    y = run(values, isa, **attributes(tiles=tiles, estimate=0, signed=signed))
    same = chosen(y, exact(values))
    assert (same.sum(-1) == tiles).all()
    assert (y[~np.repeat(same, 16, axis=-1)[:, :N]] == -np.inf).all()
    estimated = run(values, isa, **attributes(tiles=tiles, signed=signed))
    np.testing.assert_array_equal(same, chosen(estimated, exact(values)))


@pytest.mark.parametrize("isa", ISAS)
def test_only_the_refined_tiles_get_finer_estimates(isa) -> None:
    values = inputs(random(2, K), signed=True)
    coarse = run([*values[:8], *zero_refinement()], isa, **attributes(tiles=1, signed=True))
    fine = run(values, isa, **attributes(tiles=1, signed=True))
    exact_tile = chosen(coarse, exact(values)).argmax(-1)[:, None]
    highest = np.pad(coarse, [(0, 0), (0, -N % 16)], constant_values=-np.inf)
    highest = highest.reshape(2, TILES, 16).max(-1)
    np.put_along_axis(highest, exact_tile, np.inf, axis=-1)  # it was first among the refined ones
    order = np.argsort(-highest, axis=-1, kind="stable")
    for row, changed in enumerate(~chosen(fine, coarse)):
        assert (
            set(order[row, 1:REFINED]) <= set(np.flatnonzero(changed)) <= set(order[row, :REFINED])
        )


def zero_refinement() -> tuple[np.ndarray, np.ndarray]:
    levels = np.ones((N, SIGN_DIMS), np.int8)
    return tamiz_ops.pack_signs(levels, np.zeros(N, np.float16)), np.zeros(N, np.float32)


def test_more_rows_than_asked_for_are_exact() -> None:
    values = inputs(random(2, 3, K))
    np.testing.assert_array_equal(run(values, **attributes(tiles=2, rows=5)), exact(values))
    short = run(values, **attributes(tiles=2, rows=6))
    assert (chosen(short, exact(values)).sum(-1) == 2).all()
    empty = inputs(np.empty((2, 0, K), np.float32))
    assert run(empty, **attributes(tiles=2)).shape == (2, 0, N)


@pytest.mark.parametrize("signed", [False, True])
def test_bits_depend_on_nothing_else(signed) -> None:
    """Not on the instruction set, the threads, the other rows."""
    values = inputs(random(4, K), bias=random(N, seed=4), signed=signed)
    others = attributes(tiles=9, signed=signed)
    expected = run(values, "scalar", 1, **others)
    for isa in ISAS:
        for threads in (1, 2, 5):
            np.testing.assert_array_equal(run(values, isa, threads, **others), expected)
        one = run([values[0][2:3], *values[1:]], isa, **others)
        np.testing.assert_array_equal(one, expected[2:3])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("refined", [1, TILES])
def test_signs_meet_what_they_stand_for(isa, refined) -> None:
    """Against the product with the dequantised signs, of inputs that 63 levels hold exactly."""
    rng = np.random.default_rng(0)
    r = rng.integers(-31, 32, SIGN_DIMS).astype(np.float32)
    r[0] = 31
    identity = np.zeros((DIMS + SIGN_DIMS, K), np.int8)
    identity[DIMS:, DIMS:] = np.eye(SIGN_DIMS)
    values = inputs(np.concatenate([np.zeros(DIMS, np.float32), r])[None], signed=True)
    values[4] = tamiz_ops.pack_int8(identity, np.ones((len(identity), 4), np.float16))
    y = run(values, isa, **attributes(tiles=1, signed=True, refined=refined))[0]
    expected = tamiz_ops.dequantize_signs(values[7], N, SIGN_DIMS) @ r + values[6]
    if refined == TILES:
        expected += tamiz_ops.dequantize_signs(values[8], N, SIGN_DIMS) @ r + values[9]
    found = ~np.repeat(chosen(y[None], exact(values))[0], 16)[:N]
    assert found.sum() >= N - 16
    np.testing.assert_allclose(y[found], expected[found], rtol=0, atol=2e-3)


@pytest.mark.parametrize("isa", ISAS)
def test_nothing_but_zeros_adds_nothing(isa) -> None:
    values = inputs(np.zeros((1, K), np.float32), signed=True)
    y = run(values, isa, **attributes(tiles=1, signed=True))[0]
    assert (y == values[6]).sum() >= N - 16 * REFINED
    assert ((y == values[6]) | (y == values[6] + values[9])).sum() >= N - 16


def test_signs_are_packed_and_unpacked() -> None:
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.1, 1, 37).astype(np.float16)
    levels = rng.choice([-1, 1], (37, 70)).astype(np.int8)
    packed = tamiz_ops.pack_signs(levels, scales)
    assert packed.shape == (3, 3 * 64 + 32)
    found = tamiz_ops.dequantize_signs(packed, 37, 70)
    np.testing.assert_array_equal(found, levels * scales[:, None].astype(np.float32))
    for wrong, message in (
        ((3 * levels, scales), "levels holds other values than"),
        ((levels.astype(int), scales), r"levels is int64 \[37, 70\], expected int8"),
        ((levels, scales[1:]), r"scales is float16 \[36\], expected float16 \[37\]"),
    ):
        with pytest.raises(ValueError, match=message):
            tamiz_ops.pack_signs(*wrong)
    with pytest.raises(ValueError, match="packed is uint8"):
        tamiz_ops.dequantize_signs(packed, 37, 170)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_mask_narrows_sketch_and_exact_logits(isa, rows) -> None:
    x = random(rows, K)
    mask = np.random.default_rng(5).integers(0, 2, (rows, K), dtype=np.uint8)
    got = run(inputs(x, mask=mask), isa, **attributes(tiles=9, block=1))
    zeroed = run(inputs((x * mask).astype(np.float32)), isa, **attributes(tiles=9, block=1))
    np.testing.assert_array_equal(got, zeroed)


@pytest.mark.parametrize("isa", ISAS)
def test_of_equal_tiles_the_lower_ones_are_chosen(isa) -> None:
    values = inputs(np.zeros((1, K), np.float32))
    values[6] = np.zeros(N, np.float32)
    values[6][::2] = -0.0  # is 0
    values[6][[500, 501, 900]] = 1
    values[3] = np.full(N, 7, np.float32)  # what is exact
    y = run(values, isa, **attributes(tiles=5))[0]
    assert np.flatnonzero((y == 7).reshape(-1, 8)[:, 0])[::2].tolist() == [0, 2, 4, 62, 112]


@pytest.mark.parametrize("isa", ISAS)
def test_estimates_of_any_size_and_sign_are_ordered(isa) -> None:
    values = inputs(np.zeros((1, K), np.float32), n=96)
    tops = [-np.inf, -1e30, -1e-40, 1e-40, 3.0, np.inf]
    for count in range(1, 7):
        offset = np.full(96, -np.inf, np.float32)
        offset[5::16] = tops
        values[6] = offset
        values[3] = np.full(96, 7, np.float32)
        y = run(values, isa, **attributes(n=96, tiles=count))[0]
        assert (y == 7).reshape(6, 16).all(1).tolist() == [False] * (6 - count) + [True] * count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan(isa, value) -> None:
    x = random(2, K)
    x[0, 7] = value
    for signed in (False, True):
        values = inputs(x, signed=signed)
        others = attributes(tiles=3, signed=signed)
        y = run(values, isa, **others)
        assert np.isnan(y[0]).all()
        np.testing.assert_array_equal(y[1:], run([x[1:], *values[1:]], isa, **others))


@pytest.mark.parametrize("isa", ISAS)
def test_a_tile_with_nan_comes_first(isa) -> None:
    values = inputs(random(1, K))
    values[6][170] = np.nan
    values[6][700] = np.inf
    same = chosen(run(values, isa, **attributes(tiles=1)), exact(values))[0]
    assert np.flatnonzero(same).tolist() == [10]


def test_as_a_stage_of_a_fused_node() -> None:
    values = inputs(random(2, K))
    others = attributes(tiles=6)
    names = ("bits", "n", "k", "dims", "rows", "tiles")
    settings = " ".join(f"{name}={others[name]}" for name in names)
    program = f"HeadShortlist {settings} : 0 1 - - 2 3 4 -> 5"
    fused = tamiz_ops.run(
        "Fused", [v for v in values if v is not None], program=program, outputs=[5]
    )[0]
    np.testing.assert_array_equal(fused, run(values, **others))


@pytest.mark.parametrize("signed", [False, True])
def test_metrics_tell_what_was_read(signed) -> None:
    values = inputs(random(1, K), signed=signed)
    names = ["x", "w", "", "", "p", "s", "o", "r", "f", "g"][: len(values)]
    constants = {name: v for name, v in zip(names, values, strict=True) if name and name != "x"}
    others = attributes(tiles=5, rows=2, signed=signed)
    nodes = [node("HeadShortlist", names, ["y"], "head", **others)]
    runs = session(model(nodes, ["x"], ["y"], constants))
    (y,) = runs.run(None, {"x": values[0]})
    np.testing.assert_array_equal(y, run(values, **others))
    counted = tamiz_ops.metrics(runs)["head"]
    tile_bytes = 4 * 544
    assert counted["head.shortlisted"] == 1
    assert counted["matmul.bytes_dense"] == TILES * tile_bytes
    sketch_bytes = values[4].nbytes + values[5].nbytes
    if signed:
        sketch_bytes += (TILES + REFINED) * (2 * 64 + 32)
    assert counted["matmul.bytes_read"] == sketch_bytes + 5 * tile_bytes
    runs.run(None, {"x": random(3, K)})
    counted = tamiz_ops.metrics(runs)["head"]
    assert counted["head.shortlisted"] == 1
    assert counted["matmul.bytes_read"] == sketch_bytes + (5 + TILES) * tile_bytes


def test_signs_have_the_shape_that_the_attributes_say() -> None:
    values = inputs(random(1, K), signed=True)
    for port, name in ((7, "signs"), (8, "refinement")):
        wrong = list(values)
        wrong[port] = values[port][:, :96]
        message = re.escape(f"{name} has shape [63, 96], expected [63, 160]")
        with pytest.raises(ValueError, match=message):
            run(wrong, **attributes(tiles=3, signed=True))
    with pytest.raises(ValueError, match=re.escape("refined_offset has shape [999]")):
        run([*values[:9], values[9][1:]], **attributes(tiles=3, signed=True))
    for count, name in ((7, "signs"), (8, "refinement"), (9, "refined_offset")):
        with pytest.raises(ValueError, match=f"input {name} is missing: sign_dims is not 0"):
            run(values[:count], **attributes(tiles=3, signed=True))


GOOD = attributes(tiles=3)
VALUES = inputs(random(1, K))


@pytest.mark.parametrize(
    ("position", "changed", "others", "message"),
    [
        (0, random(1, 99), {}, "x has shape [1, 99], expected k = 100"),
        (4, VALUES[4][:1], {}, "project has shape [1, 2176], expected [3, 2176]"),
        (5, VALUES[5][:9], {}, "sketch has shape [9, 640], expected [63, 640]"),
        (6, VALUES[6][1:], {}, "offset has shape [999], expected [1000]"),
        (6, None, {}, "input offset is missing"),
        (6, VALUES[6], {"tiles": 0}, "attribute 'tiles' is 0, expected 1 to"),
        (6, VALUES[6], {"dims": 0}, "attribute 'dims' is 0, expected 1 to"),
        (6, VALUES[6], {"rows": 129}, "attribute 'rows' is 129, expected 1 to 128"),
        (6, VALUES[6], {"sketch_bits": 3}, "attribute 'sketch_bits' is 3, expected 4 or 8"),
        (6, VALUES[6], {"sign_dims": -1}, "attribute 'sign_dims' is -1, expected 0 or more"),
    ],
)
def test_what_does_not_fit_is_named(position, changed, others, message) -> None:
    values = list(VALUES)
    values[position] = changed
    with pytest.raises(ValueError, match=re.escape(message)):
        run(values, **GOOD | others)
