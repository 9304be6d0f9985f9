"""A product rounds its outputs for the one product that reads them; bits as one by one."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.block_weights import weight
from kit.fused_layer import assert_same_bits

ISAS = tamiz_ops.cpu()["isas"]
K, N = 100, 40
#: Outputs of the first product: with 17 rows as bytes larger than as floats; less than a task, and
#: more than the largest one.
HIDDEN = (33, 200, 430)


def shared(n: int, k: int) -> np.ndarray:
    """An int8 weight whose scales come in fours."""
    rng = np.random.default_rng([n, k])
    scales = rng.uniform(0.001, 0.02, (n, -(-k // 128))).astype(np.float16)
    groups = np.ascontiguousarray(np.repeat(scales, 4, axis=1)[:, : -(-k // 32)])
    return tamiz_ops.pack_int8(rng.integers(-127, 128, (n, k), dtype=np.int8), groups)


def packed(n: int, k: int, inputs: int) -> np.ndarray:
    return shared(n, k) if inputs == 128 else weight(8, n, k)[0]


def attributes(n: int, k: int, inputs: int, bits: int = 8) -> dict[str, Any]:
    return {"bits": 8, "n": n, "k": k, "activation_bits": bits, "scale_inputs": inputs}


def line(of: dict[str, Any], ports: str) -> str:
    return f"BlockMatMul {' '.join(f'{name}={value}' for name, value in of.items())} : {ports}"


def check(
    rows: int, hidden: int, first: int, second: int, isa=None, activation="gelu", threads=2, bits=8
) -> None:
    """Values of the program: 0 x, 1 and 2 weights, 3 a bias; then what is between, and y."""
    given = [
        random(rows, K, scale=2),
        packed(hidden, K, first),
        packed(N, hidden, second),
        random(hidden, seed=2),
    ]
    up, down = attributes(hidden, K, first), attributes(N, hidden, second, bits)
    lines, last = [line(up, "0 1 - 3 -> 4")], 4
    if activation:
        lines, last = [*lines, f"SwiGLU activation={activation} : 4 - -> 5"], 5
    program = "\n".join([*lines, line(down, f"{last} 2 -> {last + 1}")])
    how: dict[str, Any] = {"isa": isa, "threads": threads, "outputs": [last + 1]}
    found = tamiz_ops.run("Fused", given, program=program, **how)
    x, w, v, bias = given
    [between] = tamiz_ops.run("BlockMatMul", [x, w, None, bias], isa=isa, **up)
    if activation:
        [between] = tamiz_ops.run("SwiGLU", [between, None], isa=isa, activation=activation)
    assert_same_bits(found, tamiz_ops.run("BlockMatMul", [between, v], isa=isa, **down))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("first", [32, 128])
@pytest.mark.parametrize("second", [32, 128])
def test_scales_of_inputs(isa, hidden, first, second) -> None:
    for rows in (1, 15, 16, 17, 300):
        check(rows, hidden, first, second, isa)


@pytest.mark.parametrize("activation", ["", "relu2", "silu"])
def test_activations(activation) -> None:
    check(40, HIDDEN[-1], 128, 128, activation=activation)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(threads) -> None:
    check(300, HIDDEN[-1], 128, 32, threads=threads)


@pytest.mark.parametrize("bits", [16, 32])
def test_inputs_of_more_bits_are_rounded_by_their_product(bits) -> None:
    check(40, HIDDEN[1], 128, 32, bits=bits)


def test_what_others_read_stays_float32() -> None:
    """An output of the node; two readers; a reader that masks."""
    x, w = random(40, K), packed(N, K, 32)
    v, mask = packed(24, N, 32), (random(40, 2, seed=3) < 0.5).astype(np.uint8)
    up, down = attributes(N, K, 32), attributes(24, N, 32)
    [between] = tamiz_ops.run("BlockMatMul", [x, w], **up)
    [y] = tamiz_ops.run("BlockMatMul", [between, v], **down)
    [masked] = tamiz_ops.run("BlockMatMul", [between, v, mask], **down)

    def run(*lines: str, outputs: list[int]) -> list[np.ndarray]:
        program = "\n".join([line(up, "0 1 -> 4"), *lines])
        return tamiz_ops.run("Fused", [x, w, v, mask], program=program, outputs=outputs)

    plain = line(down, "4 2 -> 5")
    assert_same_bits(run(plain, outputs=[4, 5]), [between, y])
    assert_same_bits(run(plain, line(down, "4 2 3 -> 6"), outputs=[5, 6]), [y, masked])
    assert_same_bits(run(line(down, "4 2 3 -> 5"), outputs=[5]), [masked])
