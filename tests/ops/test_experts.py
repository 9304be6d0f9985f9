"""ExpertRouter, ExpertMatMul and ExpertSum on every instruction set against NumPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.block_weights import weight
from kit.gguf_blocks import OF_GGUF, random_blocks
from tamiz_ops import formats, reference

ISAS = tamiz_ops.cpu()["isas"]
EXPERTS, TOP = 7, 3


def chosen(*shape: int, seed: int = 0) -> np.ndarray:
    """Different experts for each token; the last one is never taken."""
    rng = np.random.default_rng(seed)
    keys = rng.random((*shape, EXPERTS - 1))
    return np.argsort(keys, axis=-1)[..., :TOP].astype(np.int32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 2, 37])
@pytest.mark.parametrize("k", [5, 33, 64, 200])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"normalize": 1, "scale": 2.5},
        {"score": "softmax_of_chosen"},
        {"score": "sigmoid", "normalize": 1},
    ],
)
def test_router(isa, rows, k, settings) -> None:
    x, w = random(rows, k), random(EXPERTS, k, seed=1)
    bias = random(EXPERTS, seed=2) if settings.get("score") == "sigmoid" else None
    attributes = {"experts": EXPERTS, "top": TOP, **settings}
    got = tamiz_ops.run(
        "ExpertRouter", [x, w, bias], out=[True, True, None], isa=isa, threads=2, **attributes
    )
    expected = reference.run("ExpertRouter", [x, w, bias], **attributes)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=2e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 37])
@pytest.mark.parametrize("score", ["softmax_of_chosen", "sigmoid"])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("groups", [(1, 1), (4, 2), (4, 4), (12, 5)])
def test_a_router_with_an_offset_factors_and_groups(isa, rows, score, biased, groups) -> None:
    x, w = random(rows, 40), random(12, 40, seed=1)
    bias, factors = (random(12, seed=seed) if biased else None for seed in (2, 4))
    offset = random(12, seed=3)
    attributes = {"experts": 12, "top": 4, "score": score, "normalize": 1}
    attributes |= dict(zip(("groups", "top_groups"), groups, strict=True))
    inputs = [x, w, bias, offset, factors]
    got = tamiz_ops.run(
        "ExpertRouter", inputs, out=[True, True, None], isa=isa, threads=2, **attributes
    )
    expected = reference.run("ExpertRouter", inputs, **attributes)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], rtol=2e-5)


def test_experts_are_of_the_groups_with_the_largest_sums_of_two() -> None:
    """The largest score is in a group that is not chosen (DeepSeek-V3, section 2.1.2)."""
    x, w = np.ones((1, 1), np.float32), np.array([[9, 0, 0], [5, 5, 0], [1, 2, 3]], np.float32)
    attributes: dict[str, Any] = {"experts": 9, "top": 3, "groups": 3, "top_groups": 1}
    for score in ("sigmoid", "softmax_of_chosen"):
        inputs = [x, w.reshape(9, 1), None, np.zeros(9, np.float32)]
        how = {**attributes, "score": score}
        got = tamiz_ops.run("ExpertRouter", inputs, out=[True, True, None], **how)[0]
        assert got.tolist() == [[3, 4, 5]]


@pytest.mark.parametrize("isa", ISAS)
def test_the_share_of_a_shared_expert_is_the_last_score(isa) -> None:
    x, w = random(3, 40), random(EXPERTS + 1, 40, seed=1)
    got = tamiz_ops.run("ExpertRouter", [x, w], isa=isa, experts=EXPERTS, top=TOP)
    expected = reference.run("ExpertRouter", [x, w], experts=EXPERTS, top=TOP)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[2], expected[2], rtol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_equal_scores_choose_the_first_and_nan_the_last(isa) -> None:
    x = np.ones((1, 1), np.float32)
    w = np.array([[1.0], [3.0], [np.nan], [3.0], [2.0]], np.float32)
    for score in ("softmax_of_chosen", "sigmoid"):
        (got, *_) = tamiz_ops.run(
            "ExpertRouter", [x, w], out=[True, True, None], isa=isa, experts=5, top=5, score=score
        )
        np.testing.assert_array_equal(got, [[1, 3, 4, 0, 2]])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("attributes", [{"bits": 4}, {"bits": 8, "activation_bits": 8}])
@pytest.mark.parametrize("rows", [1, 3, 40])
@pytest.mark.parametrize("own", [False, True])
def test_product(isa, attributes, rows, own) -> None:
    n, k = EXPERTS * 48, 96
    packed, _ = weight(attributes["bits"], n, k, 16)
    ids, bias = chosen(rows), random(n, seed=3)
    x = random(rows, TOP, k) if own else random(rows, k)
    sizes: dict[str, Any] = {"n": n, "k": k, "experts": EXPERTS, **attributes}
    (got,) = tamiz_ops.run("ExpertMatMul", [x, packed, ids, bias], isa=isa, threads=2, **sizes)
    (expected,) = reference.run("ExpertMatMul", [x, packed, ids, bias], **sizes)
    assert got.shape == (rows, TOP, 48)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 5, 600])
@pytest.mark.parametrize("activation_bits", [16, 8])
def test_bits_are_those_of_a_product_with_the_expert_alone(isa, rows, activation_bits) -> None:
    k, each = 64, 32
    packed, _ = weight(4, EXPERTS * each, k, 16)
    x, ids = random(2, rows, k), chosen(2, rows)
    sizes: dict[str, Any] = {"bits": 4, "k": k, "activation_bits": activation_bits}
    (got,) = tamiz_ops.run(
        "ExpertMatMul",
        [x, packed, ids],
        isa=isa,
        threads=2,
        n=EXPERTS * each,
        experts=EXPERTS,
        **sizes,
    )
    for e in range(EXPERTS):
        tiles = packed[e * each // 16 : (e + 1) * each // 16]
        (alone,) = tamiz_ops.run("BlockMatMul", [x, tiles], isa=isa, n=each, **sizes)
        for j in range(TOP):
            taken = ids[..., j] == e
            np.testing.assert_array_equal(got[taken, j], alone[taken])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["q4_k", "q8_0", "affine4_32z", "f16"])
@pytest.mark.parametrize("counts", [(15, 16, 0, 17, 1), (1, 0, 300, 16, 33), (0, 0, 0, 0, 16)])
def test_inputs_of_8_bits_in_groups_of_any_size(isa, name, counts) -> None:
    """A token has the bits that it has alone, beside groups that are larger or smaller than 16."""
    format, n, k = formats.find_format(name), len(counts) * 48, 256
    packed = np.random.default_rng(5).integers(0, 60, format.packed_shape(n, k), np.uint8)
    taken = np.random.default_rng(6).permutation(np.repeat(np.arange(len(counts)), counts))
    x, ids, bias = random(len(taken), k), taken[:, None].astype(np.int32), random(n, seed=3)
    sizes: dict[str, Any] = {"format": name, "k": k, "activation_bits": 8}
    experts: dict[str, Any] = {"isa": isa, "n": n, "experts": len(counts)}
    inputs = [x, packed, ids, bias]
    (got,) = tamiz_ops.run("ExpertMatMul", inputs, threads=2, **experts, **sizes)
    for e in range(len(counts)):
        tiles, of_expert = packed[e * 3 : (e + 1) * 3], bias[e * 48 : (e + 1) * 48]
        for row in np.flatnonzero(taken == e)[:20]:
            given = [x[row : row + 1], tiles, None, of_expert]
            (alone,) = tamiz_ops.run("BlockMatMul", given, isa=isa, n=48, **sizes)
            np.testing.assert_array_equal(got[row], alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 3, 40, 200])
@pytest.mark.parametrize("own", [False, True])
def test_inputs_of_32_bits_are_not_rounded(isa, rows, own) -> None:
    """As `BlockMatMul` with the expert alone, bit for bit, and nearer to float64 than 16 bits."""
    n, k = EXPERTS * 48, 96
    packed, _ = weight(8, n, k, 16)
    ids, bias = chosen(rows), random(n, seed=3)
    x = random(rows, TOP, k) if own else random(rows, k)
    sizes: dict[str, Any] = {"bits": 8, "k": k, "activation_bits": 32}
    inputs = [x, packed, ids, bias]
    (got,) = tamiz_ops.run(
        "ExpertMatMul", inputs, isa=isa, threads=2, n=n, experts=EXPERTS, **sizes
    )
    (expected,) = reference.run("ExpertMatMul", inputs, n=n, experts=EXPERTS, **sizes)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=3e-6 * np.abs(expected).max())
    for e in range(EXPERTS):
        tiles = packed[e * 3 : (e + 1) * 3]
        given = [x, tiles, None, bias[e * 48 : (e + 1) * 48]]
        (alone,) = tamiz_ops.run("BlockMatMul", given, isa=isa, n=48, **sizes)
        for j in range(TOP):
            taken = ids[:, j] == e
            of_token = alone[taken, j] if own else alone[taken]
            np.testing.assert_array_equal(got[taken, j], of_token)


@pytest.mark.parametrize("format", [f.name for f in OF_GGUF])
def test_every_format_of_gguf(format) -> None:
    n, k = EXPERTS * 16, 256
    found = formats.find_format(format)
    packed = formats.pack_blocks(found, random_blocks(found, n, k, plain=True), k)
    sizes: dict[str, Any] = {"n": n, "k": k, "experts": EXPERTS, "format": format}
    x, ids = random(9, k), chosen(9)
    (got,) = tamiz_ops.run("ExpertMatMul", [x, packed, ids], **sizes)
    (expected,) = reference.run("ExpertMatMul", [x, packed, ids], **sizes)
    np.testing.assert_allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [1, 40, 333])
@pytest.mark.parametrize("rows", [1, 90])
def test_sum(isa, width, rows) -> None:
    x, weights = random(rows, TOP, width), random(rows, TOP, seed=1)
    shared, share = random(rows, width, seed=2), random(rows, 1, seed=3)
    for inputs in ([x, weights], [x, weights, shared], [x, weights, shared, share]):
        (got,) = tamiz_ops.run("ExpertSum", inputs, isa=isa, threads=2)
        (expected,) = reference.run("ExpertSum", inputs)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "message"),
    [
        (
            "ExpertRouter",
            [random(2, 8), random(4, 8)],
            {"experts": 4, "top": 5},
            "attribute 'top' is 5, expected at most 'experts', 4",
        ),
        (
            "ExpertRouter",
            [random(2, 8), random(6, 8)],
            {"experts": 6, "top": 3, "groups": 3},
            "'groups' and 'top_groups' are 3 and 1, expected a divisor of 'experts', 6, and groups",
        ),
        (
            "ExpertRouter",
            [random(2, 8), random(5, 8), None, random(5)],
            {"experts": 4, "top": 1},
            r"offset has shape \[5\], expected \[4\]",
        ),
        (
            "ExpertRouter",
            [random(2, 8), random(5, 8), None, None, random(3)],
            {"experts": 4, "top": 1},
            r"factors has shape \[3\], expected \[4\]",
        ),
        (
            "ExpertRouter",
            [random(2, 8), random(4, 7)],
            {"experts": 4, "top": 1},
            r"weight has shape \[4, 7\], expected \[5, 8\]",
        ),
        (
            "ExpertRouter",
            [random(2, 8), random(4, 8)],
            {"experts": 4, "top": 1, "score": "best"},
            "score is 'best', expected softmax, softmax_of_chosen or sigmoid",
        ),
        (
            "ExpertMatMul",
            [random(2, 32), weight(4, 32, 32, 16)[0], np.zeros((2, 1), np.int32)],
            {"bits": 4, "n": 32, "k": 32, "experts": 4},
            "attribute 'n' is 32, expected a multiple of 16 for each of 4 experts",
        ),
        (
            "ExpertMatMul",
            [random(2, 32), weight(4, 32, 32, 16)[0], np.full((2, 1), 2, np.int32)],
            {"bits": 4, "n": 32, "k": 32, "experts": 2},
            "chosen has expert 2, expected 0 to 1",
        ),
        (
            "ExpertSum",
            [random(2, 3, 8), random(2, 2)],
            {},
            r"weights has shape \[2, 2\], expected \[2, 3\]",
        ),
    ],
)
def test_errors_are_one_clear_sentence(op, inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run(op, inputs, **attributes)
