"""The text of a program means the same to who writes it, who reads it and the op that runs it."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from tamiz_ops.program import Stage, read_program, write_program

F = np.float32
NORM: dict[str, Any] = {"epsilon": float(F(1e-5))}
SWIGLU: dict[str, Any] = {}
#: A norm of x + residual, whose sum nobody wants, and a product of its output by itself.
STAGES = [
    Stage("RMSNorm", NORM, ["x", "weight", "residual"], ["normed", None], "layers.0"),
    Stage("SwiGLU", SWIGLU, ["normed", "normed"], ["gated"], "layers.1"),
    Stage("RMSNorm", NORM, ["gated", "weight", None], ["y", "sum"], "layers.1"),
]
INPUTS, OUTPUTS = ["x", "weight", "residual"], ["y"]
PROGRAM = """\
layers.0:
RMSNorm epsilon=9.99999975e-06 : 0 1 2 -> 3 -
layers.1:
SwiGLU : 3 3 -> 4
RMSNorm epsilon=9.99999975e-06 : 4 1 - -> 5 6"""


def test_values_are_numbered_and_parts_begin_with_their_name() -> None:
    assert write_program(INPUTS, STAGES, OUTPUTS) == {"program": PROGRAM, "outputs": [5]}


def test_values_of_stacks_come_last() -> None:
    written = write_program(INPUTS, STAGES, ["y", "normed", "gated"], stacks=[2])
    assert written == {"program": PROGRAM, "outputs": [5, 3, 4], "stacks": [2]}


def test_reading_gives_what_was_written() -> None:
    stages = read_program(PROGRAM)
    assert [(s.op, s.part) for s in stages] == [(s.op, s.part) for s in STAGES]
    assert [s.inputs for s in stages] == [[0, 1, 2], [3, 3], [4, 1, None]]
    assert [s.outputs for s in stages] == [[3, None], [4], [5, 6]]
    assert [F(s.attributes["epsilon"]) for s in stages[::2]] == [F(1e-5)] * 2
    assert write_program(range(3), stages, [5]) == {"program": PROGRAM, "outputs": [5]}


def test_the_op_runs_what_was_written() -> None:
    rng = np.random.default_rng(0)
    x, weight, residual = (rng.standard_normal(shape, F) for shape in ((2, 8), 8, (2, 8)))
    normed, _ = tamiz_ops.run("RMSNorm", [x, weight, residual], **NORM)
    (gated,) = tamiz_ops.run("SwiGLU", [normed, normed])
    expected, _ = tamiz_ops.run("RMSNorm", [gated, weight, None], **NORM)
    program = write_program(INPUTS, STAGES, OUTPUTS)
    (found,) = tamiz_ops.run("Fused", [x, weight, residual], **program)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("BlockMatMul", {"bits": 4, "k": 32, "n": 16}),
        ("KwtaMask", {"block": 1, "threshold": float(F(1) / 3)}),
        ("KwtaMask", {"threshold": float(F(-2e-30)), "offset": 3.0}),
        ("SeedDeltaMatMul", {"base": "xor-circulant", "bits": 8}),
        ("Attention", {"epsilon": 1.0, "num_heads": 2}),
    ],
)
def test_attributes_keep_their_types_and_their_bits(op, attributes) -> None:
    (stage,) = read_program(write_program([], [Stage(op, attributes, [], [])], [])["program"])
    assert {name: type(value) for name, value in stage.attributes.items()} == {
        name: type(value) for name, value in attributes.items()
    }
    for name, value in attributes.items():
        read = stage.attributes[name]
        assert F(read) == F(value) if isinstance(value, float) else read == value


def test_one_stage_of_a_program_is_a_program() -> None:
    last = read_program(PROGRAM)[-1]
    alone = write_program([4, 1], [last], last.outputs[:1])
    line = "RMSNorm epsilon=9.99999975e-06 : 0 1 - -> 2 3"
    assert alone == {"program": f"layers.1:\n{line}", "outputs": [2]}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("SwiGLU 0 1 -> 2", "':' is missing before the inputs"),
        ("SwiGLU : 0 1", "'->' is missing before the outputs"),
        ("Gelu : 0 -> 2", "'Gelu' is not an op that can be fused"),
        ("Fused : 0 -> 2", "'Fused' is not an op that can be fused"),
        ("SwiGLU : 0 x -> 2", "'x' is not the number of a value"),
        ("SwiGLU : 0 -3 -> 2", "'-3' is not the number of a value"),
        ("SwiGLU gamma : 0 1 -> 2", "'gamma' is not <attribute>=<value>"),
        ("SwiGLU gamma=1 : 0 1 -> 2", "unknown attribute 'gamma' of SwiGLU"),
        ("RMSNorm epsilon=tiny : 0 1 -> 2", "'epsilon=tiny' is not of type float"),
        ("Attention num_heads=1.5 : 0 -> 2", "'num_heads=1.5' is not of type int"),
    ],
)
def test_a_bad_line_is_refused_in_one_sentence(line, reason) -> None:
    text = f"layers.0:\n\nSwiGLU : 0 1 -> 2\n{line}"
    with pytest.raises(ValueError, match=r"^program line 4: ") as error:
        read_program(text)
    assert str(error.value) == f"program line 4: {reason}"
    with pytest.raises(ValueError, match="program line 4: "):  # the op refuses it, too
        tamiz_ops.run("Fused", [np.zeros((1, 1), F)] * 2, program=text, outputs=[2])


@pytest.mark.parametrize("name", ["a\nSwiGLU : 0 0 -> 9", "x:\n\f\ny", "\x1b[31m", "a\rb\u2028c"])
def test_a_name_of_a_part_stays_on_its_line(name) -> None:
    stages = [Stage("SwiGLU", SWIGLU, ["x", "x"], ["y"], name)]
    written = write_program(["x"], stages, ["y"])
    assert len(written["program"].splitlines()) == 2
    assert len(read_program(written["program"])) == 1
    tamiz_ops.run("Fused", [np.ones((1, 8), F)], **written)
