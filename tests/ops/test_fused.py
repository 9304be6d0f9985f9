"""A Fused node gives the bits of its stages run one by one."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.block_weights import weight
from kit.fused_layer import (
    HEADS,
    INPUTS,
    KV_HEADS,
    OUTPUTS,
    PAST,
    PROGRAM,
    TOKENS,
    F,
    assert_same_bits,
    layer_inputs,
    layer_session,
)
from kit.ops_graphs import model, node, session, value


def one_by_one(inputs, isa) -> list[np.ndarray]:
    def run(op, *tensors, **attributes) -> list[np.ndarray]:
        return tamiz_ops.run(op, tensors, isa=isa, **attributes)

    i = inputs
    h, total = run("RMSNorm", i["x"], i["norm"], i["residual"], epsilon=1e-6)
    attention = [h] + [i[name] for name in INPUTS[3:10]]
    heads = {"num_heads": HEADS, "kv_heads": KV_HEADS}
    y, key, new_value = run("Attention", *attention, **heads)[:3]
    gated = run("SwiGLU", h, i["up"])[0]
    normed = run("RMSNorm", y, i["norm"], total)[0]
    return [run("SwiGLU", normed, gated)[0], key, new_value, total]


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_arrays(isa, threads) -> None:
    inputs = layer_inputs()
    arrays = [inputs[name] for name in INPUTS]
    found = tamiz_ops.run(
        "Fused", arrays, isa=isa, threads=threads, program=PROGRAM, outputs=OUTPUTS
    )
    assert_same_bits(found, one_by_one(inputs, isa))


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
def test_session(isa, monkeypatch) -> None:
    monkeypatch.setenv("TAMIZ_ISA", isa)
    inputs = layer_inputs()
    constants = ["norm", "frequencies"]
    feeds = {name: array for name, array in inputs.items() if name not in constants}
    assert_same_bits(layer_session(constants).run(None, feeds), one_by_one(inputs, isa))


def test_stages_and_nodes_give_the_same_graph() -> None:
    """The fused node against a graph of fine-grained nodes in the same session."""
    sizes = f"num_heads={HEADS} kv_heads={KV_HEADS}"
    program = f"RMSNorm : 0 2 1 -> 10 11\nAttention {sizes} : 10 3 4 5 6 7 8 9 -> 12 13 14"
    nodes = [
        node("RMSNorm", ["x", "norm", "residual"], ["h", "sum"]),
        node("Attention", ["h", *INPUTS[3:10]], ["y", "key", "new"], num_heads=4, kv_heads=2),
        node("Fused", INPUTS[:10], ["fy", "fkey", "fnew"], program=program, outputs=[12, 13, 14]),
    ]
    inputs = {name: array for name, array in layer_inputs().items() if name != "up"}
    graph_inputs = [value(name, array.dtype) for name, array in inputs.items()]
    made = session(model(nodes, graph_inputs, ["y", "key", "new", "fy", "fkey", "fnew"]))
    found = made.run(None, inputs)
    assert_same_bits(found[3:], found[:3])


def test_the_last_inputs_and_outputs_may_be_stacks() -> None:
    """Two values of one shape and one more, in and out."""
    rng = np.random.default_rng(2)
    a, b, c, d = rng.standard_normal((4, 3, 33)).astype(F)
    four, five = (tamiz_ops.run("SwiGLU", pair)[0] for pair in ((a, b), (d, d)))
    expected = [five, np.stack([four, tamiz_ops.run("SwiGLU", [four, c])[0]]), four[None]]
    program = "SwiGLU : 0 1 -> 4\nSwiGLU : 4 2 -> 5\nSwiGLU : 3 3 -> 6\nSwiGLU : 0 1 -> 7"
    attributes: dict[str, Any] = {"program": program, "outputs": [6, 4, 5, 7], "stacks": [2, 1]}
    inputs = {"a": a, "stack": np.stack([b, c]), "last": d[None]}
    assert_same_bits(tamiz_ops.run("Fused", list(inputs.values()), **attributes), expected)

    made = node("Fused", list(inputs), ["y", "whole", "one"], **attributes)
    run = session(model([made], list(inputs), ["y", "whole", "one"]))
    assert_same_bits(run.run(None, inputs), expected)


def test_members_of_a_stack_are_appended_in_place() -> None:
    """Caches of two layers in one buffer, bound as past and as present."""
    inputs = layer_inputs(capacity=PAST + TOKENS)
    heads = f"num_heads={HEADS} kv_heads={KV_HEADS}"
    program = f"Attention {heads} : 0 1 2 6 7 3 4 5 -> 8 9 10"
    names = ["x", "k", "v", "mask", "positions", "frequencies", "caches"]
    attributes: dict[str, Any] = {"program": program, "outputs": [8, 9, 10], "stacks": [2]}
    made = node("Fused", names, ["y", "presents"], **attributes)
    values = [value(name, inputs[name].dtype) for name in names[:-1]] + [value("caches", F)]
    run = session(model([made], values, ["y", "presents"]))
    caches = np.stack([inputs["past_key"], inputs["past_value"]])
    binding = run.io_binding()
    for name in names[:-1]:
        binding.bind_cpu_input(name, inputs[name])
    for bind, name in ((binding.bind_input, "caches"), (binding.bind_output, "presents")):
        bind(name, "cpu", 0, F, caches.shape, caches.ctypes.data)
    binding.bind_output("y")
    run.run_with_iobinding(binding)
    one = [inputs[name] for name in ("x", "k", "v", "past_key", "past_value", *names[3:-1])]
    y, key, new_value = tamiz_ops.run("Attention", one, num_heads=HEADS, kv_heads=KV_HEADS)[:3]
    assert_same_bits([binding.get_outputs()[-1].numpy(), *caches], [y, key, new_value])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, r"a stack has shape \[3, 3, 33\], expected 2 in its first dimension"),
        ({"stacks": [0]}, "attribute 'stacks' has 0, expected 1 to 1048576"),
        ({"stacks": [2, 2, 2]}, "attribute 'stacks' lists 3 stacks, the node has 2 inputs"),
        ({"outputs": [3]}, "attribute 'outputs' lists 1 values, the node has 1 outputs, the last"),
    ],
)
def test_stacks_that_do_not_fit(change, told) -> None:
    program = "SwiGLU : 0 1 -> 3\nSwiGLU : 3 2 -> 4\nSwiGLU : 4 4 -> 5"
    attributes: dict[str, Any] = {"program": program, "outputs": [3, 4, 5], "stacks": [2], **change}
    with pytest.raises(ValueError, match=told):
        tamiz_ops.run("Fused", [np.ones((3, 33), F), np.ones((3, 3, 33), F)], **attributes)


def test_outputs_of_a_stack_have_one_shape() -> None:
    program = "SwiGLU : 0 0 -> 3\nSwiGLU : 1 1 -> 4"
    attributes: dict[str, Any] = {"program": program, "outputs": [3, 4], "stacks": [2]}
    arrays = [np.ones((2, 4), F), np.ones((2, 2, 5), F)]
    with pytest.raises(ValueError, match=r"shape \[2, 4\] and \[2, 5\], expected one shape"):
        tamiz_ops.run("Fused", arrays, **attributes)


def test_values_that_nobody_wants() -> None:
    """An output of the node that no one connects, and a stage output that no one reads."""
    program = "SwiGLU : 0 1 -> 2\nSwiGLU : 2 0 -> 3\nSwiGLU : 2 1 -> 4"
    made = node("Fused", ["a", "b"], ["", "y"], program=program, outputs=[3, 4])
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 4, 33)).astype(F)
    (found,) = session(model([made], ["a", "b"], ["y"])).run(None, {"a": a, "b": b})
    inner = tamiz_ops.run("SwiGLU", [a, b])[0]
    assert_same_bits([found], tamiz_ops.run("SwiGLU", [inner, b]))


def test_memory_of_dead_temporaries_is_taken_again() -> None:
    """A chain long enough that its temporaries take each other's place, of changing sizes."""
    stages = 12
    program = "\n".join(f"SwiGLU : {0 if i == 0 else i} 0 -> {i + 1}" for i in range(stages))
    x = np.random.default_rng(2).standard_normal((2, 7)).astype(F)
    expected = x
    for _ in range(stages):
        expected = tamiz_ops.run("SwiGLU", [expected, x])[0]
    for _ in range(2):
        found = tamiz_ops.run("Fused", [x], program=program, outputs=[stages])
        assert_same_bits(found, [expected])


@pytest.mark.parametrize(
    ("program", "outputs", "expected"),
    [
        ("", [2], "attribute 'program' has no stage"),
        ("SwiGLU 0 1 -> 2", [2], "program line 1: '0' is not <attribute>=<value>"),
        ("SwiGLU", [2], "program line 1: ':' is missing before the inputs"),
        ("SwiGLU : 0 1", [2], "program line 1: '->' is missing before the outputs"),
        ("Gelu : 0 -> 2", [2], "program line 1: 'Gelu' is not an op that can be fused"),
        ("Fused : 0 -> 2", [2], "program line 1: 'Fused' is not an op that can be fused"),
        ("SwiGLU : 0 x -> 2", [2], "program line 1: 'x' is not an integer"),
        ("SwiGLU : 0 2 -> 2", [2], "line 1: input 2 is not a value yet, expected 0 to 1"),
        ("SwiGLU : 0 -3 -> 2", [2], "line 1: input -3 is not a value yet"),
        ("SwiGLU : 0 1 -> 3", [3], "program line 1: output 3 is out of order, expected 2"),
        ("SwiGLU : 0 1 -> 2\nSwiGLU : 0 1 -> 2", [2], "line 2: output 2 is out of order"),
        ("RMSNorm : 0 -> 2", [2], r"line 1 \(RMSNorm\): input weight is missing"),
        ("RMSNorm : 0 - -> 2", [2], r"line 1 \(RMSNorm\): input weight is missing"),
        ("SwiGLU : 0 1 -> -", [2], "'outputs' has 2, which no stage computes"),
        ("SwiGLU : 0 1 0 -> 2", [2], r"line 1 \(SwiGLU\): has 3 inputs, expected at most 2"),
        (
            "SwiGLU gamma=1 : 0 1 -> 2",
            [2],
            "line 1: unknown attribute 'gamma', SwiGLU has: activation",
        ),
        ("RMSNorm epsilon=tiny : 0 1 -> 2", [2], "line 1: 'tiny' is not a number"),
        ("Attention num_heads=1.5 : 0 -> 2", [2], "line 1: '1.5' is not an integer"),
        ("Attention num_heads=1 : 0 -> 2", [2], "line 1: attribute 'kv_heads' is missing"),
        ("SwiGLU : 0 1 -> 2", [0], "attribute 'outputs' has 0, which no stage computes"),
        ("SwiGLU : 0 1 -> 2", [3], "attribute 'outputs' has 3, which no stage computes"),
        ("SwiGLU : 0 1 -> 2\nSwiGLU : 0 1 -> 3", [2, 2], "attribute 'outputs' has 2 twice"),
    ],
)
def test_bad_programs(program, outputs, expected) -> None:
    x = np.zeros((2, 4), F)
    with pytest.raises(ValueError, match=expected):
        tamiz_ops.run("Fused", [x, x], program=program, outputs=outputs)


def test_bad_program_names_the_node_when_the_model_loads() -> None:
    bad = node("Fused", ["x"], ["y"], "layer3", program="SwiGLU : 0 1 -> 2", outputs=[2])
    with pytest.raises(Exception, match=r"tamiz\.Fused node 'layer3': program line 1: input 1"):
        session(model([bad], ["x"], ["y"]))


def test_outputs_have_to_match_the_node() -> None:
    bad = node("Fused", ["x"], ["y", "z"], "layer3", program="SwiGLU : 0 0 -> 1", outputs=[1])
    with pytest.raises(Exception, match="'outputs' lists 1 values, the node has 2 outputs"):
        session(model([bad], ["x"], ["y", "z"]))


def test_errors_of_a_stage_name_its_line() -> None:
    program = "SwiGLU : 0 0 -> 2\nRMSNorm : 2 1 -> 3 -"
    good = node("Fused", ["x", "w"], ["y"], "layer3", program=program, outputs=[3])
    made = session(model([good], ["x", value("w", F)], ["y"]))
    sentence = r"tamiz\.Fused node 'layer3': line 2 \(RMSNorm\): weight has 3 elements, expected"
    with pytest.raises(Exception, match=sentence):
        made.run(None, {"x": np.zeros((2, 4), F), "w": np.zeros(3, F)})


def test_errors_of_a_stage_name_its_part() -> None:
    program = "layers.0:\nSwiGLU : 0 0 -> 2\nlayers.1:\nRMSNorm : 2 1 -> 3 -"
    x, weight = np.zeros((2, 4), F), np.zeros(3, F)
    sentence = r"layers\.1, line 4 \(RMSNorm\): weight has 3 elements, expected"
    with pytest.raises(ValueError, match=sentence):
        tamiz_ops.run("Fused", [x, weight], program=program, outputs=[3])


def test_input_of_another_type_inside_a_program() -> None:
    good = node("Fused", ["x", "w"], ["y"], program="SwiGLU : 0 1 -> 2", outputs=[2])
    made = session(model([good], ["x", value("w", np.uint8)], ["y"]))
    with pytest.raises(Exception, match=r"\(SwiGLU\): input up is uint8, expected float32"):
        made.run(None, {"x": np.zeros((2, 4), F), "w": np.zeros((2, 4), np.uint8)})


@pytest.mark.parametrize("isa", tamiz_ops.cpu()["isas"])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_products_that_share_what_they_make_of_x(isa, threads) -> None:
    """Inputs 0..4: x, another x, mask, weights [64, 48] of 8 and of 4 bits; all in one wave."""
    rng = np.random.default_rng(3)
    x, other = rng.standard_normal((2, 1, 48)).astype(F)
    mask = (rng.random((1, 6)) < 0.5).astype(np.uint8)
    inputs = [x, other, mask, weight(8, 64, 48)[0], weight(4, 64, 48)[0]]
    sizes = "k=48 n=64"
    stages = [
        ("8", "", "0 3 - -"),
        ("4", "", "0 4 - -"),
        ("4", "", "1 4 - -"),
        ("8", "block=8", "0 3 2 -"),
        ("4", "block=8", "0 4 2 -"),
        ("8", "", "1 3 - -"),
    ]
    lines = [
        f"BlockMatMul bits={bits} {sizes} {block} : {read} -> {5 + i}"
        for i, (bits, block, read) in enumerate(stages)
    ]
    found = tamiz_ops.run(
        "Fused", inputs, isa=isa, threads=threads, program="\n".join(lines), outputs=[*range(5, 11)]
    )
    expected = []
    for bits, block, read in stages:
        arrays = [None if word == "-" else inputs[int(word)] for word in read.split()]
        blocks: dict[str, Any] = {"block": 8} if block else {}
        expected += tamiz_ops.run(
            "BlockMatMul", arrays, isa=isa, bits=int(bits), k=48, n=64, **blocks
        )
    assert_same_bits(found, expected)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_that_stay_together(threads) -> None:
    """Many rounds of many tasks, some with one task between them."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((64, 1024)).astype(F)
    packed = weight(8, 1024, 1024)[0]
    lines, last = [], 0
    for i in range(8):
        lines.append(f"BlockMatMul bits=8 k=1024 n=1024 : {last} 1 - - -> {2 + 2 * i}")
        lines.append(f"SwiGLU : {2 + 2 * i} 0 -> {3 + 2 * i}")
        last = 3 + 2 * i
    program = "\n".join(lines)
    one, many = (
        tamiz_ops.run("Fused", [x, packed], threads=t, program=program, outputs=[last])
        for t in (1, threads)
    )
    assert_same_bits(many, one)


@pytest.mark.parametrize("blank", ["\f", "\v", " \f\t", "\r"])
def test_lines_of_blanks(blank) -> None:
    x = np.ones((2, 4), F)
    program = f"{blank}\nSwiGLU : 0 0 -> 1\n{blank}"
    found = tamiz_ops.run("Fused", [x], program=program, outputs=[1])
    assert_same_bits(found, tamiz_ops.run("SwiGLU", [x, x]))
    with pytest.raises(ValueError, match="attribute 'program' has no stage"):
        tamiz_ops.run("Fused", [x], program=blank, outputs=[1])


@pytest.mark.parametrize("count", [-(2**63), -1, 0, 2**20 + 1, 2**63 - 1])
def test_stacks_of_impossible_size(count) -> None:
    x = np.ones((2, 4), F)
    attributes: dict[str, Any] = {"program": "SwiGLU : 0 1 -> 2", "outputs": [2], "stacks": [count]}
    with pytest.raises(ValueError, match=f"'stacks' has {count}, expected 1 to 1048576"):
        tamiz_ops.run("Fused", [x, x], **attributes)
    fused = node("Fused", ["x", "y"], ["z"], **attributes)
    with pytest.raises(Exception, match=f"'stacks' has {count}, expected 1 to 1048576"):
        session(model([fused], ["x", "y"], ["z"]))
