"""Weights of queries behind the rotation, on every instruction set.

A norm of heads behind the rotation, w · x / |x|, has the same |x| before it, and of the weights of
queries and keys only the product counts.
"""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import (
    TOLERANCE,
    CaseWith,
    assert_equal_in_cuts,
    check_bytes,
    check_filter,
    check_pages,
)
from tamiz_ops.attention_reference import rotate

ISAS = tamiz_ops.cpu()["isas"]
#: The input's number.
WEIGHT = 16


class WeightCase(CaseWith):
    """A case with a weight of each element of a query."""

    number = WEIGHT

    def draw(self) -> np.ndarray:
        return 1 + self.random(self.dim) / 4


def check(case: WeightCase, isa: str, **attributes: Any) -> None:
    got, expected = case.run(isa, threads=2, **attributes), case.reference(**attributes)
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=1e-6)


def test_the_reference_has_norms_behind_the_rotation() -> None:
    """softmax(norm(rotate(q)) · norm(rotate(k))) v, written out."""
    case = WeightCase(tokens=3, heads=(2, 1), dim=8)
    of_keys = case.random(8)
    q, k = (x.reshape(1, 3, -1, 8) for x in (case.q, case.k))

    def size(x: np.ndarray) -> np.ndarray:
        root: np.ndarray = np.sqrt(np.square(x.astype(np.float64)).mean(-1, keepdims=True) + 1e-5)
        return root

    turned = [rotate(x, case.positions, case.frequencies, 1.0) for x in (q, k)]
    normed = [x / size(x) * w for x, w in zip(turned, (case.own, of_keys), strict=True)]
    scores = np.einsum("bihd,bjgd->hij", *normed) * 8**-0.5
    weights = np.exp(np.where(np.tri(3, dtype=bool), scores, -np.inf))
    weights /= weights.sum(-1, keepdims=True)
    expected = np.einsum("hij,jd->ihd", weights, case.v[0]).reshape(1, 3, 16)
    case.q, case.k = ((x / size(x)).reshape(1, 3, -1) for x in (q, k))
    case.own = case.own * of_keys
    np.testing.assert_allclose(case.reference()[0], expected, atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 13, 70])
@pytest.mark.parametrize("past", [0, 150, 700])
@pytest.mark.parametrize(("heads", "dim"), [((8, 2), 64), ((3, 1), 20), ((1, 1), 7)])
@pytest.mark.parametrize("rotary", [0, 4])
def test_steps_and_prompts(isa, tokens, past, heads, dim, rotary) -> None:
    check(WeightCase(tokens=tokens, past=past, heads=heads, dim=dim, rotary=rotary), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("choice", [{"window": 30}, {"softcap": 1.5}, {"scale": 0.3}])
def test_batches_masks_and_windows(isa, tokens, choice) -> None:
    case = WeightCase(batch=3, tokens=tokens, past=300, heads=(6, 2), dim=32)
    case.mask[1, :70] = 0
    check(case, isa, **choice)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_cache_of_bytes_has_means_and_scales_of_keys(isa, tokens) -> None:
    case = WeightCase(tokens=tokens, past=200, heads=(6, 2), dim=64, rotary=0)
    case.others = {9: case.random(2, 64), 14: np.full((2, 64), 2, np.float32)}
    check_bytes(case, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_filter_keeps_the_keys_that_weighted_queries_meet(isa) -> None:
    check_filter(WeightCase(tokens=1, past=400, heads=(2, 1), dim=64, rotary=0), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cut", [1, 13, 100])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(isa, cut) -> None:
    assert_equal_in_cuts(WeightCase, isa, cut)


@pytest.mark.parametrize("isa", ISAS)
def test_pages_of_several_sequences(isa) -> None:
    check_pages(WeightCase, isa)


def test_a_weight_of_another_width_is_one_clear_sentence() -> None:
    case = WeightCase(heads=(4, 2), dim=16)
    case.own = case.random(8)
    with pytest.raises(ValueError, match=r"query_weight has shape \[8\], expected \[16\]") as error:
        tamiz_ops.run("Attention", case.inputs, out=[True] * 3, **case.heads)
    assert "\n" not in str(error.value)
