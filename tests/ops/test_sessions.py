"""Threads, concurrent runs and key/value buffers in place."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.fused_layer import (
    BATCH,
    DIM,
    INPUTS,
    KV_HEADS,
    OUTPUTS,
    PAST,
    PROGRAM,
    TOKENS,
    assert_same_bits,
    layer_inputs,
    layer_session,
)

pytestmark = pytest.mark.slow

CAPACITY = 32


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_not_change_a_bit(threads) -> None:
    inputs = layer_inputs()
    single = layer_session().run(None, inputs)
    assert_same_bits(layer_session(threads=threads).run(None, inputs), single)


@pytest.mark.parametrize("threads", [1, 2])
def test_concurrent_runs(threads) -> None:
    made = layer_session(threads=threads)
    batches = [layer_inputs(past=1 + seed, capacity=1 + seed, seed=seed) for seed in range(8)]
    expected = [made.run(None, inputs) for inputs in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: made.run(None, batches[i % 8]), range(64)))
    for i, outputs in enumerate(found):
        assert_same_bits(outputs, expected[i % 8])


def test_shared_buffer_is_appended_in_place() -> None:
    inputs = layer_inputs(capacity=CAPACITY)
    exact = dict(inputs)
    for name in ("past_key", "past_value"):
        exact[name] = np.ascontiguousarray(inputs[name][:, :, :PAST])
    y, key, new_value, _ = layer_session().run(None, exact)

    made = layer_session()
    binding = made.io_binding()
    buffers = {}
    for name, array in inputs.items():
        buffers[name] = ort.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, buffers[name])
    binding.bind_ortvalue_output("present_key", buffers["past_key"])
    binding.bind_ortvalue_output("present_value", buffers["past_value"])
    for name in ("y", "sum"):
        binding.bind_output(name)
    made.run_with_iobinding(binding)

    valid = PAST + TOKENS
    assert_same_bits([binding.copy_outputs_to_cpu()[2]], [y])
    for name, expected in (("past_key", key), ("past_value", new_value)):
        buffer = buffers[name].numpy()
        np.testing.assert_array_equal(buffer[:, :, :valid], expected)
        np.testing.assert_array_equal(buffer[:, :, valid:], inputs[name][:, :, valid:])


def test_buffer_in_place_on_arrays() -> None:
    inputs = layer_inputs(capacity=CAPACITY)
    arrays = [inputs[name] for name in INPUTS]
    copied = tamiz_ops.run("Fused", arrays, program=PROGRAM, outputs=OUTPUTS)
    key, new_value = arrays[5], arrays[6]
    out: list[Any] = [True, key, new_value, None]
    found = tamiz_ops.run("Fused", arrays, out=out, program=PROGRAM, outputs=OUTPUTS)
    assert found[1] is key
    assert found[2] is new_value
    assert found[3] is None
    valid = (BATCH, KV_HEADS, PAST + TOKENS, DIM)
    for place in (1, 2):
        kept = found[place][:, :, : PAST + TOKENS]
        assert kept.shape == valid
        np.testing.assert_array_equal(kept, copied[place][:, :, : PAST + TOKENS])
    np.testing.assert_array_equal(found[0], copied[0])


def test_sizes_that_change_from_run_to_run() -> None:
    made = layer_session(threads=2)
    for past in (40, 0, 7):
        inputs = layer_inputs(past=past, capacity=past, seed=past)
        arrays = [inputs[name] for name in INPUTS]
        expected = tamiz_ops.run("Fused", arrays, program=PROGRAM, outputs=OUTPUTS)
        assert_same_bits(made.run(None, inputs), expected)
