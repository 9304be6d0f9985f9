"""Attention over keys and values that the cache keeps in 8 bits, against the float64 reference."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import ROUNDED_STEP, TOLERANCE, Case, assert_rounded
from tamiz_ops import reference
from tamiz_ops.cache_rows import pack_rows, unpack_rows

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]


class ByteCase(Case):
    """A case whose past is rows of bytes."""

    def __init__(self, **options):
        super().__init__(**options)
        self.past_key, self.past_value = pack_rows(self.past_key), pack_rows(self.past_value)
        self.words = self.dim // 4 + 1

    def run(self, isa=None, threads=1, **attributes) -> list[np.ndarray]:
        return super().run(isa, threads, cache_bits=8, **attributes)

    def reference(self, **attributes) -> list[np.ndarray]:
        return super().reference(cache_bits=8, **attributes)


def bits(rows) -> np.ndarray:
    return np.ascontiguousarray(rows, np.float32).view(np.int32)


def check(case, isa, **attributes) -> None:
    """The rows of values are the same bits; a rotated element may be rounded to the other side."""
    got = case.run(isa, threads=2, **attributes)
    expected = case.reference(**attributes)
    np.testing.assert_array_equal(bits(got[2]), bits(expected[2]))
    keys, expected_keys = unpack_rows(got[1]), unpack_rows(expected[1])
    step = expected[1][..., -1:].astype(np.float64)
    assert (np.abs(keys - expected_keys) <= 1.001 * step).all()
    others = (np.abs(keys - expected_keys) > 0.5 * step).sum()
    assert others <= 2 * (case.frequencies is not None)
    if others:
        np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=ROUNDED_STEP)
    else:
        assert_rounded(got[0], expected[0])


# ---- rows ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [4, 20, 64, 72, 256, 512])
def test_a_row_is_the_nearest_bytes_and_their_scale(isa, dim) -> None:
    case = ByteCase(tokens=7, dim=dim, rotary=0)
    case.k[0, 1] = 0.0
    case.k[0, 2] *= 1e-40  # so small that the scale would be no normal float
    case.k[0, 3] *= 1e37
    case.k[0, 4, 0], case.k[0, 5, 1] = np.nan, -np.inf
    stored = case.run(isa)[1]
    rows = case.k.reshape(7, dim)
    np.testing.assert_array_equal(bits(stored)[0, 0], bits(pack_rows(rows)))
    finite = np.isfinite(rows).all(axis=1)
    found, scale = unpack_rows(stored)[0, 0], stored[0, 0, :, -1]
    assert np.isnan(found[~finite]).all()
    assert (np.abs(found - rows)[finite] <= np.maximum(0.5001 * scale[finite, None], 2e-36)).all()
    assert scale[[1, 2]].tolist() == [0, 0]


# ---- what is computed ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (17, 1)])
@pytest.mark.parametrize("dim", [4, 20, 64, 80, 128])
@pytest.mark.parametrize("tokens", [1, 5, 37])
def test_heads_and_head_sizes(isa, heads, dim, tokens) -> None:
    check(ByteCase(tokens=tokens, past=70, heads=heads, dim=dim, rotary=0), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 4, 40])
@pytest.mark.parametrize("past", [0, 1, 64, 129, 1365])
def test_past_lengths_and_rotary(isa, tokens, past) -> None:
    check(ByteCase(tokens=tokens, past=past, heads=(9, 3), dim=16), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 8, 60])
@pytest.mark.parametrize("window", [0, 50])
def test_batch_holes_and_window(isa, tokens, window) -> None:
    case = ByteCase(batch=3, tokens=tokens, past=300, heads=(6, 2), dim=40, rotary=0)
    case.mask[:] = case.rng.random(case.mask.shape) < 0.5
    check(case, isa, window=window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("ternary", [0, 1])
def test_a_filter_chooses_as_it_does_without_bytes(isa, ternary) -> None:
    """Sketches are of the keys as they come, so the same keys are chosen from either cache."""
    choice: dict[str, Any] = {"keep": 32, "recent": 8, "ternary": ternary, "epsilon": 0.5 * ternary}
    case = ByteCase(past=600, heads=(6, 2), rotary=0)
    floats = Case(past=600, heads=(6, 2), rotary=0)
    words = 2 * (1 + ternary) + 1
    sketches = np.zeros((1, 2, 600, words), np.float32)
    before = Case(tokens=600, heads=(6, 2), rotary=0)
    before.k = floats.past_key.transpose(0, 2, 1, 3).reshape(1, 600, -1)
    inputs = [*before.inputs, np.zeros((1, 2, 0, words), np.float32)]
    sketches = tamiz_ops.run("Attention", inputs, **case.heads, **choice)[3]
    kept = {}
    for name, each, options in (("bytes", case, {"cache_bits": 8}), ("floats", floats, {})):
        how = {**case.heads, **choice, **options}
        kept[name] = tamiz_ops.run("Attention", [*each.inputs, sketches], isa=isa, **how)
        expected = reference.run("Attention", [*each.inputs, sketches], **how)
        if options:
            assert_rounded(kept[name][0], expected[0])
        else:
            np.testing.assert_allclose(kept[name][0], expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(bits(kept["bytes"][3]), bits(kept["floats"][3]))
    np.testing.assert_allclose(kept["bytes"][0], kept["floats"][0], rtol=0, atol=0.05)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 13, 40])
@pytest.mark.parametrize("past", [0, 2, 61, 300])
@pytest.mark.parametrize("dim", [4, 68, 128])
def test_equal_weights_are_exact(isa, tokens, past, dim) -> None:
    """Queries of 0 weigh all keys alike, and equal scales leave nothing to round."""
    case = ByteCase(tokens=tokens, past=past, heads=(6, 2), dim=dim, rotary=0)
    case.q[:] = 0
    unit = case.rng.integers(-127, 128, (1, 2, past, dim)).astype(np.float32)
    unit[..., 0] = 127
    case.past_value = pack_rows(unit)
    new = case.rng.integers(-127, 128, (1, tokens, 2, dim)).astype(np.float32)
    new[..., 0] = 127
    case.v = new.reshape(case.v.shape)
    got, expected = case.run(isa)[0], case.reference()[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=127 * TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("past", [1, 30, 200])
def test_decode_after_prefill_equals_prefill_of_the_whole(isa, past) -> None:
    whole = ByteCase(tokens=past + 1, heads=(6, 2))
    expected = whole.run(isa)
    step = ByteCase(tokens=1, past=past, heads=(6, 2))
    step.q, step.k, step.v = (x[:, past:] for x in (whole.q, whole.k, whole.v))
    step.past_key, step.past_value = (x[:, :, :past] for x in expected[1:])
    got = step.run(isa)
    np.testing.assert_allclose(got[0], expected[0][:, past:], rtol=0, atol=TOLERANCE)
    for found, wanted in zip(got[1:], expected[1:], strict=True):
        np.testing.assert_array_equal(bits(found), bits(wanted))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tokens", "past"), [(1, 3000), (3, 700), (200, 500)])
def test_results_do_not_depend_on_the_threads(isa, tokens, past) -> None:
    case = ByteCase(batch=2, tokens=tokens, past=past, heads=(9, 3), dim=32)
    expected = case.run(isa, threads=1)
    for threads in (2, 3):
        for got, wanted in zip(case.run(isa, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(bits(got), bits(wanted))


# ---- keys whose channels are of unlike sizes ----


class UnlikeCase(ByteCase):
    """Keys with large channels around a large mean, and the constants that even them out."""

    def __init__(self, smooth=True, **options):
        super().__init__(rotary=0, **options)
        kv_heads = self.heads["kv_heads"]
        self.scale = np.exp2(self.rng.integers(-3, 7, (kv_heads, self.dim))).astype(np.float32)
        self.mean = 2 * self.scale * self.random(kv_heads, self.dim)
        self.past_key = pack_rows(self.random(*self.past_key.shape[:3], self.dim))
        self.k = ((self.k.reshape(-1, kv_heads, self.dim) * self.scale) + self.mean).reshape(
            self.k.shape
        )
        self.q /= np.repeat(self.scale, self.heads["num_heads"] // kv_heads, axis=0).ravel()
        self.smooth = smooth

    @property
    def inputs(self) -> list[np.ndarray | None]:
        if not self.smooth:
            return super().inputs
        return [*super().inputs, None, self.mean, None, None, None, None, self.scale]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 37])
@pytest.mark.parametrize("softcap", [0.0, 5.0])
def test_smoothed_keys_equal_the_reference(isa, tokens, softcap) -> None:
    check(UnlikeCase(tokens=tokens, past=130, heads=(6, 2), dim=40), isa, softcap=softcap)


@pytest.mark.parametrize("isa", ISAS)
def test_sketches_are_of_keys_as_they_come(isa) -> None:
    how: dict[str, Any] = {"keep": 32, "recent": 8, "cache_bits": 8}
    sketches = np.zeros((1, 2, 0, 3), np.float32)
    for tokens, past in ((600, 0), (1, 600)):
        case = UnlikeCase(tokens=tokens, past=past, heads=(6, 2))
        inputs = case.inputs
        inputs[8] = sketches
        got = tamiz_ops.run("Attention", inputs, isa=isa, **case.heads, **how)
        expected = reference.run("Attention", inputs, **case.heads, **how)
        assert_rounded(got[0], expected[0])
        for found, wanted in zip(got[1:4], expected[1:], strict=True):
            np.testing.assert_array_equal(bits(found), bits(wanted))
        sketches = got[3]


@pytest.mark.parametrize("isa", ISAS)
def test_smoothed_keys_lose_much_less(isa) -> None:
    errors = []
    for smooth in (True, False):
        case = UnlikeCase(tokens=60, heads=(6, 2), smooth=smooth)
        exact = Case(tokens=60, heads=(6, 2), rotary=0)
        exact.q, exact.k, exact.v = case.q, case.k, case.v
        errors.append(np.abs(case.run(isa)[0] - exact.run(isa)[0]).max())
    assert errors[0] < 0.03
    assert errors[1] > 20 * errors[0]


def test_constants_of_keys_are_checked() -> None:
    case = UnlikeCase(tokens=2)
    good = case.inputs
    for at, name in ((9, "key_mean"), (14, "key_scale")):
        bad = list(good)
        bad[at] = np.zeros((2, 64), np.float32)
        with pytest.raises(ValueError, match=rf"'?{name}'? has shape"):
            tamiz_ops.run("Attention", bad, cache_bits=8, **case.heads)
    floats = [*Case(tokens=2).inputs, *good[8:]]
    with pytest.raises(ValueError, match="key_scale is given and cache_bits is 32, expected 8"):
        tamiz_ops.run("Attention", floats, **case.heads)


# ---- the two modes of the cache ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 50])
@pytest.mark.parametrize("same", [True, False])
def test_shared_buffer_equals_exact_length_bit_for_bit(isa, tokens, same) -> None:
    case = ByteCase(batch=2, tokens=tokens, past=130, heads=(6, 2), dim=32)
    exact = case.run(isa)
    buffers = []
    for past in (case.past_key, case.past_value):
        buffers.append(np.full((2, 2, 256, case.words), np.nan, np.float32))
        buffers[-1][:, :, : case.past] = past
    inputs = [*case.inputs[:3], *buffers, *case.inputs[5:]]
    out = [True, *(buffers if same else [True, True])]
    shared = tamiz_ops.run("Attention", inputs, out=out, isa=isa, cache_bits=8, **case.heads)
    np.testing.assert_array_equal(shared[0], exact[0])
    for buffer, present in zip(shared[1:], exact[1:], strict=True):
        np.testing.assert_array_equal(bits(buffer[:, :, : present.shape[2]]), bits(present))


# ---- what is not finite ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 30])
@pytest.mark.parametrize("state", ["past_key", "past_value"])
def test_a_damaged_row_shows_unless_it_is_hidden(isa, tokens, state) -> None:
    case = ByteCase(tokens=tokens, past=150)
    case.mask[0, 64] = 0
    expected = case.run(isa)[0]
    damaged = getattr(case, state)
    damaged[0, :, 64] = pack_rows(np.full((1, 64), np.inf, np.float32))
    np.testing.assert_array_equal(case.run(isa)[0], expected)
    case.mask[0, 64] = 1
    assert np.isnan(case.run(isa)[0]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_rows_of_zeros(isa, tokens) -> None:
    case = ByteCase(tokens=tokens, past=100, rotary=0)
    case.k[:] = 0
    case.past_key[:] = 0
    case.v[:, :, :64] = 0
    check(case, isa)


# ---- bad input ----


@pytest.mark.parametrize(
    ("dim", "attribute", "message"),
    [
        (6, 8, "the head size is 6, expected a multiple of 4 up to 512 where cache_bits is 8"),
        (516, 8, "the head size is 516, expected a multiple of 4 up to 512 where cache_bits is 8"),
        (8, 4, "cache_bits is 4, expected 8 or 32"),
        (8, 8, r"past_key has shape \[1, 1, 2, 8\], expected \[1, 1, 2, 3\] .*head size / 4 \+ 1"),
    ],
)
def test_errors_are_one_clear_sentence(dim, attribute, message) -> None:
    case = Case(past=2, dim=dim)
    with pytest.raises(ValueError, match=message) as error:
        case.run(cache_bits=attribute)
    assert "\n" not in str(error.value)
