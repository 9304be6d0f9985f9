"""TextAttention beside its reference, and the same bits of a text in any company."""

from __future__ import annotations

import numpy as np
import pytest

import tamiz_ops
from tamiz_ops import reference

HEADS, DIM = 3, 20
#: Texts of a row: few rows, one tile and several of them, one range of keys and more.
LENGTHS = (1, 5, 13, 40, 140)
OPTIONS = {
    "plain": {},
    "scale": {"scale": 0.3},
    "rotary": {"rotary": True},
    "bias": {"bias": 30},
    "all": {"scale": 0.3, "rotary": True, "bias": 200},
    "near": {"reach": 3},
    "far": {"reach": 64, "rotary": True, "bias": 30},
    "c2p": {"relative": {"c2p"}, "scale": 0.3},
    "p2c": {"relative": {"p2c"}, "reach": 20},
    "c2p and p2c": {"relative": {"c2p", "p2c"}},
    "causal": {"causal": 1},
    "causal, near": {"causal": 1, "reach": 9, "rotary": True, "kv_heads": 1},
    "grouped": {"kv_heads": 1, "relative": {"c2p", "p2c"}},
}
ATTRIBUTES = ("scale", "reach", "causal", "kv_heads")
#: Columns of tables of positions: some vectors of them and a part of one.
COLUMNS = 75


def inputs(batch: int, tokens: int, kv_heads: int = HEADS) -> list[np.ndarray]:
    random = np.random.default_rng(tokens)
    widths = (HEADS * DIM, kv_heads * DIM, kv_heads * DIM)
    return [random.standard_normal((batch, tokens, width), np.float32) for width in widths]


def bias(reach: int) -> np.ndarray:
    random = np.random.default_rng(reach)
    return random.standard_normal((HEADS, 2 * reach + 1), np.float32)


def positions(names: set[str]) -> list[np.ndarray | None]:
    """c2p, p2c and their buckets: in no order, and some distances have the same."""
    if not names:
        return [None] * 3
    random = np.random.default_rng(len(names))
    shape = (HEADS, DIM, COLUMNS)
    tables = [random.standard_normal(shape, np.float32) / 2 for _ in range(2)]
    given = [t if each in names else None for each, t in zip(("c2p", "p2c"), tables, strict=True)]
    return [*given, random.integers(0, COLUMNS, 2 * 50 + 1)]


def run(qkv, mask, begins, options, isa, threads=1, of=tamiz_ops.run) -> np.ndarray:
    attributes = {k: v for k, v in options.items() if k in ATTRIBUTES}
    frequency = (1000.0 ** -np.linspace(0, 1, DIM // 4)).astype(np.float32)
    given = [
        *qkv,
        mask,
        begins,
        frequency if "rotary" in options else None,
        bias(options["bias"]) if "bias" in options else None,
        *positions(options.get("relative", set())),
    ]
    if of is tamiz_ops.run:
        attributes |= {"isa": isa, "threads": threads}
    (found,) = of("TextAttention", given, num_heads=HEADS, **attributes)
    y: np.ndarray = found
    return y


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_what_the_reference_computes(options, isa: str) -> None:
    for tokens in LENGTHS:
        mask = np.ones((3, tokens), np.int64)
        mask[1, tokens // 2 + 1 :] = 0
        mask[2, : tokens // 3] = 0
        qkv = inputs(3, tokens, options.get("kv_heads", HEADS))
        found = run(qkv, mask, None, options, isa)
        expected = run(qkv, mask, None, options, isa, of=reference.run)
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_text_has_the_same_bits_alone_padded_and_beside_others(options, isa: str) -> None:
    texts = [inputs(1, tokens, options.get("kv_heads", HEADS)) for tokens in LENGTHS]
    alone = [
        run(text, np.ones((1, n), np.int64), np.zeros(1, np.int64), options, isa)
        for text, n in zip(texts, LENGTHS, strict=True)
    ]
    for order in ([0, 1, 2, 3, 4], [4, 1, 3, 0, 2], [2, 2, 1]):
        joined = [np.concatenate([texts[i][part] for i in order], axis=1) for part in range(3)]
        lengths = [LENGTHS[i] for i in order]
        begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
        mask = np.ones((1, sum(lengths)), np.int64)
        for threads in (1, 3):
            found = run(joined, mask, begins, options, isa, threads)
            expected = np.concatenate([alone[i] for i in order], axis=1)
            assert (found.view(np.int32) == expected.view(np.int32)).all()
        assert np.allclose(
            found, run(joined, mask, begins, options, isa, of=reference.run), atol=2e-5
        )
    for text, n, expected in zip(texts, LENGTHS, alone, strict=True):
        padded = [np.pad(x, ((0, 0), (0, 9), (0, 0)), constant_values=3.0) for x in text]
        mask = np.ones((1, n + 9), np.int64)
        mask[0, n:] = 0
        found = run(padded, mask, None, options, isa)[:, :n]
        assert (found.view(np.int32) == expected.view(np.int32)).all()


@pytest.mark.parametrize("shape", [(HEADS, 4), (HEADS + 1, 5)])
def test_a_bias_of_another_shape_is_refused(shape: tuple[int, int]) -> None:
    given = [*inputs(1, 4), np.ones((1, 4), np.int64), None, None, np.zeros(shape, np.float32)]
    with pytest.raises(ValueError, match=r"distance_bias has shape .*, expected \[3, an odd"):
        tamiz_ops.run("TextAttention", given, num_heads=HEADS)


TABLE = np.zeros((HEADS, DIM, 4), np.float32)


@pytest.mark.parametrize(("given", "reason"), [
    ([TABLE, None, None], "expected buckets with c2p or p2c"),
    ([None, None, np.zeros(3, np.int64)], "expected buckets with c2p or p2c"),
    ([TABLE, TABLE[..., 1:], np.zeros(3, np.int64)], r"p2c has shape .* expected \[3, 20, 4\]"),
    ([TABLE, None, np.zeros(4, np.int64)], "buckets has 4 elements, expected an odd number"),
    ([TABLE, None, np.array([0, 4, 0])], "buckets has 4, expected 0 to 3"),
    ([TABLE, None, np.array([0, -1, 0])], "buckets has -1, expected 0 to 3"),
])  # fmt: skip
def test_tables_of_positions_that_do_not_fit(given: list[np.ndarray | None], reason: str) -> None:
    first = [*inputs(1, 4), np.ones((1, 4), np.int64), None, None, None]
    with pytest.raises(ValueError, match=reason):
        tamiz_ops.run("TextAttention", [*first, *given], num_heads=HEADS)


@pytest.mark.parametrize(("option", "reason"), [
    ({"reach": -1}, "reach is -1, expected 0 or more"),
    ({"kv_heads": 2}, "kv_heads is 2, expected a divisor of num_heads 3"),
    ({"kv_heads": 1}, r"k has shape \[1, 4, 60\], expected \[1, 4, 20\]"),
])  # fmt: skip
def test_attributes_that_do_not_fit(option: dict[str, int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run(inputs(1, 4), np.ones((1, 4), np.int64), None, option, None)


@pytest.mark.parametrize(("begins", "reason"), [
    ([0, 0, 3, 3], "text_begins is 3 at token 2, expected 2 or what the token before has"),
    ([1, 1, 1, 1], "text_begins is 1 at token 0, expected 0"),
    ([0, 0, 2], "text_begins has 3 elements, expected 1, or the tokens"),
])  # fmt: skip
def test_texts_that_do_not_follow_each_other(begins: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run(inputs(1, 4), np.ones((1, 4), np.int64), np.array(begins), {}, None)
