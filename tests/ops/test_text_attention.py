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
    "bias": {"reach": 30},
    "all": {"scale": 0.3, "rotary": True, "reach": 200},
}


def inputs(batch: int, tokens: int) -> list[np.ndarray]:
    random = np.random.default_rng(tokens)
    return [random.standard_normal((batch, tokens, HEADS * DIM), np.float32) for _ in range(3)]


def bias(reach: int) -> np.ndarray:
    random = np.random.default_rng(reach)
    return random.standard_normal((HEADS, 2 * reach + 1), np.float32)


def run(qkv, mask, begins, options, isa, threads=1, of=tamiz_ops.run) -> np.ndarray:
    attributes = {k: v for k, v in options.items() if k == "scale"}
    frequency = (1000.0 ** -np.linspace(0, 1, DIM // 4)).astype(np.float32)
    given = [
        *qkv,
        mask,
        begins,
        frequency if "rotary" in options else None,
        bias(options["reach"]) if "reach" in options else None,
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
        qkv = inputs(3, tokens)
        found = run(qkv, mask, None, options, isa)
        expected = run(qkv, mask, None, options, isa, of=reference.run)
        np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_text_has_the_same_bits_alone_padded_and_beside_others(options, isa: str) -> None:
    texts = [inputs(1, tokens) for tokens in LENGTHS]
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


@pytest.mark.parametrize(("begins", "reason"), [
    ([0, 0, 3, 3], "text_begins is 3 at token 2, expected 2 or what the token before has"),
    ([1, 1, 1, 1], "text_begins is 1 at token 0, expected 0"),
    ([0, 0, 2], "text_begins has 3 elements, expected 1, or the tokens"),
])  # fmt: skip
def test_texts_that_do_not_follow_each_other(begins: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        run(inputs(1, 4), np.ones((1, 4), np.int64), np.array(begins), {}, None)
