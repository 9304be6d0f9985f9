"""Rotary attention with a key/value cache, on every instruction set, against the float64 reference.

Values are of unit size and an output is a mean of them, so tolerances are absolute.
"""

import itertools
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import TOLERANCE, Case
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]


def check(case, isa, tolerance=TOLERANCE, **attributes) -> None:
    got = case.run(isa, threads=2, **attributes)
    expected = case.reference(**attributes)
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=tolerance)
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(got[2], expected[2].astype(np.float32))


# ---- the reference itself ----


def test_reference_equals_a_plain_masked_softmax() -> None:
    case = Case(batch=2, tokens=5, past=4, heads=(4, 2), dim=8)
    case.mask[1, :3] = 0
    y, keys, values = case.reference(scale=0.3)
    angle = case.positions[..., None].astype(np.float32) * case.frequencies
    turn = np.exp(1j * angle.astype(np.float64))[:, :, None]

    def rotate(x) -> np.ndarray:
        pairs = x.reshape(2, 5, -1, 8).astype(np.float64)
        turned = (pairs[..., :4] + 1j * pairs[..., 4:]) * turn
        return np.concatenate([turned.real, turned.imag], -1).transpose(0, 2, 1, 3)

    new_values = case.v.reshape(2, 5, 2, 8).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(keys, np.concatenate([case.past_key, rotate(case.k)], 2), atol=1e-12)
    np.testing.assert_array_equal(values, np.concatenate([case.past_value, new_values], 2))
    scores = 0.3 * rotate(case.q) @ np.repeat(keys, 2, axis=1).transpose(0, 1, 3, 2)
    hidden = np.triu(np.ones((5, 9)), 5)[None, None] + (case.mask == 0)[:, None, None]
    weight = np.exp(np.where(hidden, -np.inf, scores))
    expected = weight / weight.sum(-1, keepdims=True) @ np.repeat(values, 2, axis=1)
    np.testing.assert_allclose(y, expected.transpose(0, 2, 1, 3).reshape(2, 5, 32), atol=1e-12)


# ---- shapes ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(3, 3), (9, 3), (8, 1), (1, 1), (17, 1)])
@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256, 20, 7, 1])
@pytest.mark.parametrize("tokens", [1, 37])
def test_heads_and_head_sizes(isa, heads, dim, tokens) -> None:
    check(Case(tokens=tokens, past=70, heads=heads, dim=dim, rotary=dim // 2 * 2), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(3, 1), (2, 2)])
def test_every_small_number_of_tokens(isa, heads) -> None:
    for tokens in range(1, 71):
        check(Case(tokens=tokens, past=tokens * 7 % 130, heads=heads, dim=24), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 4, 5, 64])
@pytest.mark.parametrize(
    "past", [0, 1, 63, 64, 65, 127, 128, 255, 256, 257, 1000, 1363, 1365, 2730, 4095]
)
def test_past_lengths_across_the_borders_of_key_ranges(isa, tokens, past) -> None:
    check(Case(tokens=tokens, past=past, heads=(9, 3), dim=16), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_prefill_of_a_long_chunk_after_a_long_past(isa) -> None:
    check(Case(tokens=300, past=900, heads=(6, 2), dim=64), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("batch", [2, 7])
@pytest.mark.parametrize("tokens", [1, 3, 33])
def test_batches(isa, batch, tokens) -> None:
    check(Case(batch=batch, tokens=tokens, past=90, heads=(4, 2), dim=32), isa)


@pytest.mark.parametrize("isa", ISAS)
def test_no_tokens_at_all(isa) -> None:
    case = Case(tokens=0, past=3, dim=16)
    got = case.run(isa)
    assert got[0].shape == (1, 0, 48)
    np.testing.assert_array_equal(got[1], case.past_key)


# ---- rotary ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rotary", [0, 2, 16, 20, 40])
@pytest.mark.parametrize("tokens", [1, 40])
def test_partial_rotary(isa, rotary, tokens) -> None:
    case = Case(tokens=tokens, past=50, heads=(2, 1), dim=40, rotary=rotary)
    check(case, isa, rotary_scale=1.25)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("position", [0, 1, 8000, 131072, 1_000_000, -5])
def test_far_positions(isa, position) -> None:
    case = Case(tokens=20, heads=(1, 1), dim=64)
    case.positions += position
    rotated = case.run(isa)[1]
    np.testing.assert_allclose(rotated, case.reference()[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_scale(isa) -> None:
    check(Case(tokens=9, past=20, dim=48), isa, scale=0.05)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 20])
def test_large_scores_do_not_overflow(isa, tokens) -> None:
    case = Case(tokens=tokens, past=100, dim=32)
    case.q *= 300  # scores of thousands: nearly one-hot, so errors of a score count in full
    check(case, isa, tolerance=2e-3)


# ---- the two modes of the cache ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 6, 50])
def test_shared_buffer_equals_exact_length_bit_for_bit(isa, tokens) -> None:
    case = Case(batch=2, tokens=tokens, past=130, heads=(6, 2), dim=32)
    exact = case.run(isa)
    shared = case.run_in_place(capacity=256, isa=isa)
    np.testing.assert_array_equal(shared[0], exact[0])
    for buffer, present in zip(shared[1:], exact[1:], strict=True):
        np.testing.assert_array_equal(buffer[:, :, : present.shape[2]], present)
        assert np.isnan(buffer[:, :, present.shape[2] :]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("in_place", [(False, False), (True, False), (False, True)])
def test_a_past_that_is_not_the_present_is_copied(isa, in_place) -> None:
    case = Case(batch=2, tokens=2, past=2100, heads=(2, 2), dim=32)
    exact = case.run(isa)
    pasts = []
    for past in (case.past_key, case.past_value):
        pasts.append(np.full((2, 2, 2200, 32), np.nan, np.float32))
        pasts[-1][:, :, :2100] = past
    out: list[Any] = [
        True,
        *(past if same else True for past, same in zip(pasts, in_place, strict=True)),
    ]
    inputs = [*case.inputs[:3], *pasts, *case.inputs[5:]]
    got = tamiz_ops.run("Attention", inputs, out=out, isa=isa, threads=2, **case.heads)
    np.testing.assert_array_equal(got[0], exact[0])
    for present, expected in zip(got[1:], exact[1:], strict=True):
        np.testing.assert_array_equal(present[:, :, :2102], expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("past", [1, 30, 200])
def test_decode_after_prefill_equals_prefill_of_the_whole(isa, past) -> None:
    whole = Case(tokens=past + 1, heads=(6, 2), dim=64)
    expected = whole.run(isa)
    step = Case(tokens=1, past=past, heads=(6, 2), dim=64)
    step.q, step.k, step.v = (x[:, past:] for x in (whole.q, whole.k, whole.v))
    step.past_key, step.past_value = (x[:, :, :past] for x in expected[1:])
    got = step.run(isa)
    np.testing.assert_allclose(got[0], expected[0][:, past:], rtol=0, atol=TOLERANCE)
    np.testing.assert_array_equal(got[1], expected[1])


# ---- the attention mask ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 40])
def test_left_padding_in_a_batch_equals_single_runs(isa, tokens) -> None:
    pads = [0, 17, 90]
    batch = Case(batch=3, tokens=tokens, past=100, heads=(6, 2), dim=32)
    for b, pad in enumerate(pads):
        batch.mask[b, :pad] = 0
        batch.positions[b] -= pad
        batch.past_key[b, :, :pad] = np.nan
        batch.past_value[b, :, :pad] = np.nan
    got = batch.run(isa, threads=2)
    for b, pad in enumerate(pads):
        single = Case(tokens=tokens, past=100 - pad, heads=(6, 2), dim=32)
        single.q, single.k, single.v = (x[b : b + 1] for x in batch.inputs[:3])
        single.past_key = batch.past_key[b : b + 1, :, pad:]
        single.past_value = batch.past_value[b : b + 1, :, pad:]
        expected = single.run(isa)
        np.testing.assert_allclose(got[0][b], expected[0][0], rtol=0, atol=TOLERANCE)
        np.testing.assert_array_equal(got[1][b, :, pad:], expected[1][0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 8, 60])
@pytest.mark.parametrize("density", [0.02, 0.5, 0.97])
def test_holes(isa, tokens, density) -> None:
    case = Case(batch=2, tokens=tokens, past=300, heads=(3, 1), dim=40)
    case.mask[:] = case.rng.random(case.mask.shape) < density
    check(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 70])
def test_a_query_without_visible_key_gives_zeros(isa, tokens) -> None:
    case = Case(batch=2, tokens=tokens, past=10, dim=32)
    case.mask[0] = 0
    case.mask[1, : 10 + tokens // 2] = 0
    got = case.run(isa)
    np.testing.assert_array_equal(got[0][0], 0)
    check(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_garbage_in_hidden_keys_never_leaks(isa, tokens) -> None:
    case = Case(tokens=tokens, past=150, dim=64)
    case.mask[0, [0, 3, 64, 100]] = 0
    expected = case.run(isa)
    for cache in (case.past_key, case.past_value):
        cache[0, :, [0, 3, 64, 100]] = np.nan
    got = case.run_in_place(capacity=200, isa=isa)
    np.testing.assert_array_equal(got[0], expected[0])


# ---- threads ----


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("tokens", "past"), [(1, 100), (1, 3000), (3, 700), (200, 500)])
def test_results_do_not_depend_on_the_threads(isa, tokens, past) -> None:
    case = Case(batch=2, tokens=tokens, past=past, heads=(9, 3), dim=32)
    expected = case.run(isa, threads=1)
    for threads in (2, 3, 8):
        for got, wanted in zip(case.run(isa, threads=threads), expected, strict=True):
            np.testing.assert_array_equal(got, wanted)


# ---- bad input ----


def broken(**changes) -> Case:
    case = Case(batch=2, tokens=3, past=4, heads=(4, 2), dim=8)
    for name, changed in changes.items():
        setattr(case, name, changed)
    return case


ZEROS = np.zeros
BAD = [
    ({"q": ZEROS((3, 32), np.float32)}, r"q has shape \[3, 32\], expected 3 dimensions"),
    ({"q": ZEROS((2, 3, 30), np.float32)}, "q has 30 columns, expected a multiple of num_heads"),
    ({"k": ZEROS((2, 3, 32), np.float32)}, r"k has shape \[2, 3, 32\], expected \[2, 3, 16\]"),
    ({"v": ZEROS((2, 2, 16), np.float32)}, r"v has shape \[2, 2, 16\], expected \[2, 3, 16\]"),
    ({"past_key": ZEROS((2, 2, 8), np.float32)}, "past_key has shape .* expected 4 dimensions"),
    ({"past_key": ZEROS((2, 4, 4, 8), np.float32)}, r"past_key has shape \[2, 4, 4, 8\], expected"),
    ({"past_value": ZEROS((2, 2, 5, 8), np.float32)}, r"past_value .* expected \[2, 2, 4, 8\]"),
    ({"mask": np.ones((2, 2), np.int64)}, "attention_mask has 2 columns, expected at least .* 3"),
    ({"mask": np.ones((2, 6), np.int64)}, r"past_key holds 4 keys, expected 3 .* at least 6"),
    ({"mask": np.ones((1, 7), np.int64)}, r"attention_mask has shape \[1, 7\], expected \[2, 7\]"),
    ({"mask": np.ones((2, 7), np.float32)}, "attention_mask is float32, expected int64"),
    ({"positions": ZEROS((2, 3), np.int32)}, "position_ids is int32, expected int64"),
    ({"positions": ZEROS((2, 4), np.int64)}, r"position_ids has shape \[2, 4\], expected \[2, 3\]"),
    ({"frequencies": ZEROS(5, np.float32)}, "inverse_frequency has 5 elements, expected at most"),
    ({"heads": {"num_heads": 4, "kv_heads": 3}}, "num_heads is 4 and kv_heads is 3, expected"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_errors_are_one_clear_sentence(changes, message) -> None:
    with pytest.raises(ValueError, match=message) as error:
        broken(**changes).run()
    assert "\n" not in str(error.value)


def test_a_buffer_that_cannot_be_appended_in_place_is_refused() -> None:
    case = Case(batch=2, tokens=1, past=4, heads=(2, 2), dim=8)
    memory = [np.zeros(2 * 2 * 5 * 8, np.float32) for _ in range(2)]
    pasts = [m[: 2 * 2 * 4 * 8].reshape(2, 2, 4, 8) for m in memory]
    presents = [m.reshape(2, 2, 5, 8) for m in memory]
    inputs = [*case.inputs[:3], *pasts, *case.inputs[5:]]
    with pytest.raises(ValueError, match="past and present share memory but past holds 4 keys"):
        tamiz_ops.run("Attention", inputs, out=[True, *presents], **case.heads)


# ---- inside a fused node ----


@pytest.mark.parametrize("isa", ISAS)
def test_a_fused_node_gives_the_same_bits(isa) -> None:
    case = Case(tokens=3, past=200, heads=(3, 1), dim=16)
    residual = case.random(1, 3, 48)
    weight = case.random(48)
    program = (
        "Attention num_heads=3 kv_heads=1 : 0 1 2 3 4 5 6 7 -> 10 11 12\n"
        "RMSNorm epsilon=1e-6 : 10 9 8 -> 13 14\n"
        "SwiGLU : 13 14 -> 15"
    )
    inputs = [*case.inputs, residual, weight]
    fused: dict[str, Any] = {"program": program, "outputs": [15, 11, 12]}
    got = tamiz_ops.run("Fused", inputs, isa=isa, threads=2, **fused)
    y, key, value = case.run(isa)
    norm, total = tamiz_ops.run("RMSNorm", [y, weight, residual], isa=isa, epsilon=1e-6)
    (single,) = tamiz_ops.run("SwiGLU", [norm, total], isa=isa)
    for have, want in itertools.zip_longest(got, [single, key, value]):
        np.testing.assert_array_equal(have, want)
    expected = reference.run("Fused", inputs, **fused)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-4, atol=2e-5)


# ---- inside ONNX Runtime ----


@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_appends_in_place_to_a_bound_buffer(threads) -> None:
    case = Case(batch=2, tokens=2, past=100, heads=(6, 2), dim=32)
    names = ["q", "k", "v", "past_key", "past_value", "mask", "positions", "frequencies"]
    outputs = ["y", "key", "value"]
    arrays = dict(zip(names, case.inputs, strict=True))
    for name in ("past_key", "past_value"):
        past, arrays[name] = arrays[name], np.full((2, 2, 128, 32), np.nan, np.float32)
        arrays[name][:, :, :100] = past
    made = session(
        model(
            [node("Attention", names, outputs, **case.heads)],
            [value(name, array.dtype, array.shape) for name, array in arrays.items()],
            outputs,
        ),
        threads,
    )
    binding = made.io_binding()

    def place(name) -> tuple[Any, ...]:
        array = arrays[name]
        return "cpu", 0, array.dtype, array.shape, array.ctypes.data

    for name in names:
        binding.bind_input(name, *place(name))
    binding.bind_output("y")
    binding.bind_output("key", *place("past_key"))
    binding.bind_output("value", *place("past_value"))
    made.run_with_iobinding(binding)
    expected = case.run()
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), expected[0])
    for name, present in zip(["past_key", "past_value"], expected[1:], strict=True):
        np.testing.assert_array_equal(arrays[name][:, :, :102], present)
        assert np.isnan(arrays[name][:, :, 102:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("window", [2, 8, 30])
def test_a_window_counts_visible_keys(isa, tokens, window) -> None:
    """Hidden keys between a prompt and what follows change nothing: as if they were not there."""
    plain, holes = (Case(tokens=tokens, past=past, heads=(6, 2)) for past in (12, 17))
    for name in ("q", "k", "v", "positions"):
        setattr(holes, name, getattr(plain, name))
    for name in ("past_key", "past_value"):
        past, hidden = getattr(plain, name), plain.random(1, 2, 5, 64)
        setattr(holes, name, np.concatenate([past[:, :, :7], hidden, past[:, :, 7:]], axis=2))
    holes.mask[0, 7:12] = 0
    for sinks in (0, 3):
        how = {"window": window, "sinks": sinks}
        expected = plain.run(isa, **how)[0]
        np.testing.assert_allclose(holes.run(isa, **how)[0], expected, rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(holes.reference(**how)[0], expected, rtol=0, atol=TOLERANCE)
