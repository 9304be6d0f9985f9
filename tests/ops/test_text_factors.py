"""TextAttention with factors of 16 bits: what is rounded, by how much, and the bits of a text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tamiz_ops
from tamiz_ops import reference

Floats = NDArray[np.float32]

HEADS, DIM = 2, 64  # so that queries are scaled by a power of two
#: Of a row, one tile and several of them, odd and even, one range of keys and more.
LENGTHS = (1, 5, 13, 33, 48, 63, 140)
OPTIONS: dict[str, dict[str, int]] = {
    "plain": {},
    "bias": {"bias": 30},
    "rotary": {"rotary": 1},
    "near": {"reach": 9},
    "causal": {"causal": 1},
    "grouped": {"kv_heads": 1, "bias": 200},
    "c2p": {"c2p": 40},
}
ISAS = tamiz_ops.cpu()["isas"]
ROUNDING = [isa for isa in ISAS if tamiz_ops.cpu()["features"].get("avx512bf16")]
ROUNDING = [isa for isa in ROUNDING if isa in ("amx", "avx512")]
UNIT = 2.0**-8  # largest relative error of bfloat16


def to_bfloat16(x: Floats) -> Floats:
    """x with 8 significant bits, rounded to nearest, ties to even."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def factors(tokens: int, kv_heads: int = HEADS, batch: int = 1) -> list[Floats]:
    random = np.random.default_rng(tokens)
    widths = (HEADS * DIM, kv_heads * DIM, kv_heads * DIM)
    return [random.standard_normal((batch, tokens, width), np.float32) for width in widths]


def run(
    qkv: list[Floats],
    options: dict[str, int],
    isa: str | None,
    mask: NDArray[np.int64] | None = None,
    begins: NDArray[np.int64] | None = None,
    bits: int = 16,
    threads: int = 1,
) -> Floats:
    """y of the op, or where `isa` is None of the reference in float64."""
    attributes = {k: v for k, v in options.items() if k in ("reach", "causal", "kv_heads")}
    frequency = (1000.0 ** -np.linspace(0, 1, DIM // 4)).astype(np.float32)
    reach = options.get("bias", 0)
    bias = np.random.default_rng(reach).standard_normal((HEADS, 2 * reach + 1), np.float32)
    columns = options.get("c2p", 0)
    random = np.random.default_rng(columns)
    table = random.standard_normal((HEADS, DIM, columns), np.float32)
    given = [
        *(*qkv, mask, begins),
        frequency if "rotary" in options else None,
        bias if reach else None,
        *((table, None, random.integers(0, columns, 101)) if columns else ()),
    ]
    given_to: dict[str, Any] = {"num_heads": HEADS, "factor_bits": bits, **attributes}
    if isa is None:
        (y,) = reference.run("TextAttention", given, **given_to)
    else:
        (y,) = tamiz_ops.run("TextAttention", given, isa=isa, threads=threads, **given_to)
    found: Floats = y
    return found


def same_bits(a: Floats, b: Floats) -> bool:
    return a.shape == b.shape and bool((a.view(np.int32) == b.view(np.int32)).all())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", set(OPTIONS) - {"rotary"})
def test_of_factors_that_are_rounded_only_the_softmax_loses(name: str, isa: str) -> None:
    options = OPTIONS[name]
    for tokens in LENGTHS:
        qkv = [to_bfloat16(x) for x in factors(tokens, options.get("kv_heads", HEADS))]
        expected = run(qkv, options, None)
        sizes = run([*qkv[:2], np.abs(qkv[2])], options, None)
        error = np.abs(run(qkv, options, isa) - expected)
        assert (error <= UNIT * sizes + 2e-5).all()


@pytest.mark.parametrize("isa", ROUNDING)
def test_queries_keys_and_values_are_rounded_to_nearest(isa: str) -> None:
    for tokens in LENGTHS:
        qkv = factors(tokens)
        qkv[0][0, 0, :3] = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8], np.float32)  # ties
        rounded = [to_bfloat16(x) for x in qkv]
        found = run(qkv, {}, isa)
        assert same_bits(found, run(rounded, {}, isa))
        assert not same_bits(found, run(qkv, {}, isa, bits=32))


@pytest.mark.parametrize("isa", ROUNDING)
def test_rotated_queries_and_keys_are_rounded(isa: str) -> None:
    qkv = factors(140)
    expected = run(qkv, {"rotary": 1}, None)
    error = np.linalg.norm(run(qkv, {"rotary": 1}, isa) - expected)
    assert 1e-4 < error / np.linalg.norm(expected) < UNIT


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa not in ROUNDING])
def test_other_levels_round_nothing(isa: str) -> None:
    qkv = factors(63)
    assert same_bits(run(qkv, {}, isa), run(qkv, {}, isa, bits=32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", OPTIONS)
def test_a_text_has_the_same_bits_alone_padded_and_beside_others(name: str, isa: str) -> None:
    options = OPTIONS[name]
    texts = [factors(tokens, options.get("kv_heads", HEADS)) for tokens in LENGTHS]
    alone = [run(text, options, isa) for text in texts]
    for order in ([0, 1, 2, 3, 4, 5, 6], [6, 1, 5, 0, 3], [2, 2, 4]):
        joined = [np.concatenate([texts[i][part] for i in order], axis=1) for part in range(3)]
        lengths = [LENGTHS[i] for i in order]
        begins = np.repeat(np.cumsum(lengths) - lengths, lengths).astype(np.int64)
        expected = np.concatenate([alone[i] for i in order], axis=1)
        for threads in (1, 3):
            found = run(joined, options, isa, begins=begins, threads=threads)
            assert same_bits(found, expected)
    longest = max(LENGTHS)
    padded = [
        np.concatenate([np.pad(t[part], ((0, 0), (0, longest - n), (0, 0)), constant_values=3.0)
                        for t, n in zip(texts, LENGTHS, strict=True)])
        for part in range(3)
    ]  # fmt: skip
    mask = (np.arange(longest) < np.array(LENGTHS)[:, None]).astype(np.int64)
    found = run(padded, options, isa, mask=mask, threads=3)
    for row, n, expected in zip(found, LENGTHS, alone, strict=True):
        assert same_bits(row[None, :n], expected)


@pytest.mark.parametrize("isa", ISAS)
def test_with_keys_hidden_before_others_nothing_is_rounded(isa: str) -> None:
    qkv = factors(63, batch=3)
    mask = np.ones((3, 63), np.int64)
    mask[0, :9] = mask[1, 20] = mask[2, 40:] = 0
    found, floats = (run(qkv, {}, isa, mask=mask, bits=bits) for bits in (16, 32))
    assert same_bits(found[:2], floats[:2])
    assert same_bits(found[2], floats[2]) == (isa not in ROUNDING)


@pytest.mark.parametrize("isa", ISAS)
def test_a_head_of_another_size_is_not_rounded(isa: str) -> None:
    random = np.random.default_rng(0)
    qkv = [random.standard_normal((1, 40, 3 * 20), np.float32) for _ in range(3)]
    sixteen, floats = (
        tamiz_ops.run("TextAttention", qkv, num_heads=3, factor_bits=bits, isa=isa)[0]
        for bits in (16, 32)
    )
    assert same_bits(sixteen, floats)


@pytest.mark.parametrize("isa", ISAS)
def test_texts_without_a_key_are_0(isa: str) -> None:
    mask = np.zeros((1, 33), np.int64)
    assert not run(factors(33), {}, isa, mask=mask).any()


def test_another_number_of_bits_is_refused() -> None:
    with pytest.raises(ValueError, match="factor_bits is 8, expected 16 or 32"):
        run(factors(3), {}, ISAS[0], bits=8)
