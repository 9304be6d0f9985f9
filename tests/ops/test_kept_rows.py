"""Attention whose values are its keys, and attention to what another one keeps.

A latent (DeepSeek-V2) is key and value of a token; layers of Gemma 3n read the cache of a layer
before them. References: the op's own in float64, and the op with a row for each value.
"""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import TOLERANCE, Case, assert_rounded
from tamiz_ops import reference
from tamiz_ops.cache_rows import pack_rows

ISAS = tamiz_ops.cpu()["isas"]
#: Tokens and keys before them: a prompt, a continued one, a step, a step of many keys.
CASES = [(7, 0), (5, 9), (1, 6), (1, 700)]


def latents(tokens: int, past: int, dim: int = 48, batch: int = 2) -> Case:
    return Case(batch=batch, tokens=tokens, past=past, heads=(6, 1), dim=dim, rotary=16)


def alone(case: Case, past: np.ndarray | None = None) -> list[np.ndarray | None]:
    """The inputs without values."""
    key = case.past_key if past is None else past
    return [case.q, case.k, None, key, None, *case.inputs[5:]]


def run(inputs: list[np.ndarray | None], *presents: Any, **options: Any) -> list[np.ndarray]:
    heads = {"num_heads": 6, "kv_heads": inputs[3].shape[1]}  # type: ignore[union-attr]
    out = [True, *(presents or (True,))]
    return tamiz_ops.run("Attention", inputs, out=out, **{**heads, **options})


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tokens", "past"), CASES)
def test_values_that_are_keys_equal_the_reference(isa: str, tokens: int, past: int) -> None:
    case = latents(tokens, past)
    case.mask[1, : past // 2] = 0
    y, present = run(alone(case), isa=isa, threads=2)
    expected = reference.run("Attention", alone(case), num_heads=6, kv_heads=1)
    assert len(expected) == 2
    np.testing.assert_allclose(y, expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(present, expected[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tokens", "past"), CASES)
def test_values_that_are_keys_have_the_bits_of_values_stored_beside_them(
    isa: str, tokens: int, past: int
) -> None:
    """The elements that do not rotate are the same in both rows."""
    case = latents(tokens, past)
    case.v, case.past_value = case.k, case.past_key.copy()
    twice = case.run(isa)
    once = run(alone(case), isa=isa)
    of_heads = (2, tokens, 6, 48)
    np.testing.assert_array_equal(
        once[0].reshape(of_heads)[..., 16:], twice[0].reshape(of_heads)[..., 16:]
    )
    np.testing.assert_array_equal(once[1], twice[1])


def test_values_that_are_keys_may_be_bytes() -> None:
    case = latents(1, 90, batch=1)
    past = pack_rows(case.past_key)
    found = run(alone(case, past), cache_bits=8)
    attributes = {"num_heads": 6, "kv_heads": 1, "cache_bits": 8}
    expected = reference.run("Attention", alone(case, past), **attributes)
    assert_rounded(found[0], expected[0])
    # A mean of keys belongs to sketches: a key that is a value keeps it.
    mean = np.ones((1, 48), np.float32)
    centred = run([*alone(case, past), None, mean], cache_bits=8)
    np.testing.assert_array_equal(centred[0], found[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize(("tokens", "past"), CASES)
def test_attention_to_the_keys_of_another_has_the_bits_of_its_own(
    isa: str, window: int, tokens: int, past: int
) -> None:
    case = Case(batch=2, tokens=tokens, past=past, heads=(6, 2), dim=32)
    case.mask[1, : past // 2] = 0
    options = {"isa": isa, "window": window, "sinks": 0, "threads": 2}
    y, keys, values = case.run(**options)
    other = [case.q, None, None, keys, values, *case.inputs[5:]]
    (found,) = run(other, None, None, **options)[:1]
    np.testing.assert_array_equal(found, y)
    attributes = {"num_heads": 6, "kv_heads": 2, "window": window, "sinks": 0}
    (expected,) = reference.run("Attention", other, **attributes)
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE)


def test_attention_to_the_keys_of_another_reads_a_buffer_and_pages() -> None:
    case = Case(tokens=3, past=70, heads=(6, 2), dim=32)
    y, keys, values = case.run()
    buffers = [np.full((1, 2, 192, 32), np.nan, np.float32) for _ in range(2)]
    for buffer, rows in zip(buffers, (keys, values), strict=True):
        buffer[:, :, :73] = rows
    other = [case.q, None, None, *buffers, *case.inputs[5:]]
    np.testing.assert_array_equal(run(other, None, None)[0], y)
    for buffer, rows in zip(buffers, (keys, values), strict=True):
        buffer[:, :, 64:73], buffer[:, :, 128:] = rows[:, :, 64:], rows[:, :, :64]
    sequences = np.array([[70, 3, 2, 1]])
    paged = [*other, *[None] * 5, sequences]
    np.testing.assert_allclose(run(paged, None, None)[0], y, rtol=0, atol=TOLERANCE)
    expected = reference.run("Attention", paged, num_heads=6, kv_heads=2)
    np.testing.assert_allclose(expected[0], y, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("change", "presents", "message"),
    [
        ({1: None}, (None, None), "k is omitted, expected neither v, past_sketch nor past_event"),
        ({1: None, 2: None}, (True, None), "k is omitted, expected no present"),
        ({1: None, 2: None}, (None, None), "past_key holds 9 keys, expected at least 14 where k"),
        ({2: None}, (True, True), "v, past_value and present_value are given in part"),
        ({4: None}, (True, True), "v, past_value and present_value are given in part"),
        ({}, (True, None), "v, past_value and present_value are given in part"),
        ({}, (None, True), "present_key is omitted, expected it with k"),
    ],
)
def test_what_does_not_fit_is_refused(
    change: dict[int, Any], presents: tuple[Any, ...], message: str
) -> None:
    case = latents(5, 9)
    inputs = list(case.inputs)
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        run(inputs, *presents)


def test_key_scales_are_refused_where_values_are_keys() -> None:
    case = latents(1, 9, batch=1)
    inputs = [*alone(case, pack_rows(case.past_key)), *[None] * 6, np.ones((1, 48), np.float32)]
    with pytest.raises(ValueError, match="expected none where the values are the keys"):
        run(inputs, cache_bits=8)
