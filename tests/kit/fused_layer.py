"""A `Fused` node with two norms, attention and two gates, and its inputs."""

from typing import Any

import numpy as np

from kit.ops_graphs import model, node, session, value

F = np.float32


HEADS, KV_HEADS, DIM, BATCH, TOKENS, PAST = 4, 2, 16, 2, 3, 5


WIDTH = HEADS * DIM


# Inputs 0..10: x residual norm k v past_key past_value mask positions frequencies up
INPUTS = ["x", "residual", "norm", "k", "v", "past_key", "past_value", "mask", "positions"]


INPUTS += ["frequencies", "up"]


PROGRAM = f"""
RMSNorm epsilon=1e-6 : 0 2 1 -> 11 12
Attention num_heads={HEADS} kv_heads={KV_HEADS} : 11 3 4 5 6 7 8 9 -> 13 14 15
SwiGLU : 11 10 -> 16
RMSNorm : 13 2 12 -> 17 -
SwiGLU : 17 16 -> 18
"""


OUTPUTS = [18, 14, 15, 12]


def layer_inputs(past=PAST, capacity=PAST, seed=0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def normal(*shape) -> np.ndarray:
        return rng.standard_normal(shape).astype(F)

    return {
        "x": normal(BATCH, TOKENS, WIDTH),
        "residual": normal(BATCH, TOKENS, WIDTH),
        "norm": normal(WIDTH),
        "k": normal(BATCH, TOKENS, KV_HEADS * DIM),
        "v": normal(BATCH, TOKENS, KV_HEADS * DIM),
        "past_key": normal(BATCH, KV_HEADS, capacity, DIM),
        "past_value": normal(BATCH, KV_HEADS, capacity, DIM),
        "mask": np.ones((BATCH, past + TOKENS), np.int64),
        "positions": np.tile(np.arange(past, past + TOKENS), (BATCH, 1)),
        "frequencies": (10000.0 ** -(np.arange(0, DIM, 2) / DIM)).astype(F),
        "up": normal(BATCH, TOKENS, WIDTH),
    }


def assert_same_bits(found, expected) -> None:
    for first, second in zip(found, expected, strict=True):
        np.testing.assert_array_equal(first, second)


def layer_session(constants=(), threads=1) -> Any:
    inputs = layer_inputs()
    names = ["y", "present_key", "present_value", "sum"]
    made = node("Fused", INPUTS, names, "layer0", program=PROGRAM, outputs=OUTPUTS)
    graph_inputs = [value(n, inputs[n].dtype) for n in INPUTS if n not in constants]
    return session(model([made], graph_inputs, names, {n: inputs[n] for n in constants}), threads)
