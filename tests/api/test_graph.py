"""The edits that techniques make at a site."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tamiz.api.editing import GraphEditor
from tamiz.api.linear import constant_weight, weight_array
from tamiz.api.ports import attribute_of, input_of, output_of
from tamiz.api.site import Site, SiteKind
from tamiz.files.errors import TamizError
from tamiz.interface.metadata import LAYER


def graph(body: str) -> ir.Model:
    text = f"""
    <ir_version: 8, opset_import: ["" : 18]>
    graph (float[B, 4] x) => (float[B, 2] y)
    <float[4, 2] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, float[2] b = {{1, 2}}, float[1] one = {{1}}>
    {{ {body} }}
    """
    model = ir.from_proto(onnx.parser.parse_model(text))
    for index, node in enumerate(model.graph):
        node.name = f"{node.op_type}{index}"
        node.outputs[0].shape = ir.Shape(["B", 2])
    return model


def site(node: str, transposed: bool = False) -> Site:
    return Site("linear.w", SiteKind.LINEAR, node, weight="w", transposed=transposed)


@pytest.mark.parametrize("add", ["y = Add(h, b)", "y = Add(b, h)"])
def test_the_bias_after_a_matmul_belongs_to_the_linear(add: str) -> None:
    model = graph(f"h = MatMul(x, w) {add}")
    linear = GraphEditor(model).linear(site("MatMul0"))
    assert (linear.input.name, linear.weight.name, linear.output.name) == ("x", "w", "y")
    assert linear.bias is model.graph.initializers["b"]


@pytest.mark.parametrize(
    "rest",
    ["y = Add(h, one)", "y = Add(h, h)", "a = Relu(h) y = Add(h, b)", "y = Mul(h, b)"],
    ids=["broadcast", "no constant", "product used elsewhere", "no Add"],
)
def test_other_additions_are_no_bias(rest: str) -> None:
    linear = GraphEditor(graph(f"h = MatMul(x, w) {rest}")).linear(site("MatMul0"))
    assert linear.bias is None
    assert linear.output.name == "h"


def test_the_weight_is_a_view_of_the_mapped_file(tmp_path: Path) -> None:
    ir.save(
        graph("y = MatMul(x, w)"),
        tmp_path / "model.onnx",
        external_data="model.onnx.data",
        size_threshold_bytes=0,
    )
    model = ir.load(tmp_path / "model.onnx")
    linear = GraphEditor(model).linear(site("MatMul0"))
    stored = model.graph.initializers["w"].const_value.numpy()
    array = weight_array(linear, site("MatMul0"))
    assert array.shape == (2, 4)
    assert np.shares_memory(array, stored)
    assert weight_array(linear, site("MatMul0", transposed=True)).shape == (4, 2)


def test_a_site_without_its_node_is_an_error() -> None:
    with pytest.raises(TamizError, match=r"site linear\.w: the graph has no node 'gone'"):
        GraphEditor(graph("y = MatMul(x, w)")).linear(site("gone"))


def test_a_node_without_a_constant_weight_is_an_error() -> None:
    with pytest.raises(TamizError, match=r"node 'MatMul1' \(MatMul\): expected a constant weight"):
        GraphEditor(graph("h = Abs(x) y = MatMul(x, h)")).linear(site("MatMul1"))


def test_only_transposes_and_identities_lead_to_a_weight() -> None:
    model = graph("t = Transpose(w) i = Identity(t) a = Abs(i) y = MatMul(x, a)")
    _, identity, absolute, _ = model.graph
    weight, transposed = constant_weight(identity.outputs[0])
    assert (weight.name, transposed) == ("w", True)
    assert constant_weight(absolute.outputs[0]) is None
    assert constant_weight(model.graph.inputs[0]) is None


def test_replacing_a_linear_keeps_its_output_name_and_layer() -> None:
    model = graph("h = MatMul(x, w) y = Add(b, h)")
    model.graph[0].metadata_props[LAYER] = "7"
    linear = GraphEditor(model).linear(site("MatMul0"))
    packed = GraphEditor(model).constant("w.int4", np.zeros(3, np.uint8))
    inputs = {"x": linear.input, "weight": packed, "bias": linear.bias}
    node = GraphEditor(model).replace(linear, "BlockMatMul", inputs, {"bits": 4})
    assert list(model.graph) == [node]
    assert (node.domain, node.op_type, node.name) == ("tamiz", "BlockMatMul", "MatMul0")
    assert node.metadata_props[LAYER] == "7"
    assert [v.name if v else None for v in node.inputs] == ["x", "w.int4", None, "b"]
    assert model.graph.outputs[0] is node.outputs[0]
    assert (node.outputs[0].name, node.outputs[0].dtype) == ("y", ir.DataType.FLOAT)
    assert model.graph.opset_imports["tamiz"] == 1


def test_replacing_removes_what_only_the_old_node_used() -> None:
    model = graph("a = Abs(x) c = Neg(a) h = Relu(a) y = MatMul(c, w)")
    matmul = model.graph[3]
    GraphEditor(model).replace(matmul, "Other", [model.graph.inputs[0]], {})
    assert [n.op_type for n in model.graph] == ["Abs", "Relu", "Other"]


def test_equal_constants_are_one() -> None:
    editor = GraphEditor(graph("y = MatMul(x, w)"))
    first = editor.constant("packed", np.ones(2, np.float16))
    assert editor.constant("packed", np.ones(2, np.float16)) is first
    assert (first.name, first.dtype, list(first.shape)) == ("packed", ir.DataType.FLOAT16, [2])


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(2, np.float16),
        np.ones(2, np.float32),
        np.ones((2, 1), np.float16),
        np.ones(2, np.int16),
    ],
)
def test_other_contents_are_another_constant(other) -> None:
    editor = GraphEditor(graph("y = MatMul(x, w)"))
    first = editor.constant("packed", np.ones(2, np.float16))
    second = editor.constant("packed", other)
    assert (second.name, second is first) == ("packed.2", False)
    assert editor.constant("packed", other) is second


@pytest.mark.parametrize("name", ["x", "h"])
def test_a_constant_does_not_take_the_name_of_another_value(name) -> None:
    editor = GraphEditor(graph("h = MatMul(x, w) y = Relu(h)"))
    assert editor.constant(name, np.ones(2)).name == f"{name}.2"


def test_a_constant_that_a_run_can_set_is_not_shared() -> None:
    editor = GraphEditor(graph("y = MatMul(x, w)"))
    default = editor.constant("packed", np.ones(2))
    editor.model.graph.inputs.append(default)
    assert editor.constant("packed", np.ones(2)) is not default


def test_a_port_that_the_op_does_not_have_is_an_error() -> None:
    model = graph("y = MatMul(x, w)")
    with pytest.raises(ValueError, match="BlockMatMul has no input 'weights'; it has x, weight,"):
        GraphEditor(model).replace(model.graph[0], "BlockMatMul", {"weights": None}, {})


def test_what_read_a_value_reads_the_one_that_follows_it() -> None:
    model = graph("h = MatMul(x, w) a = Relu(h) y = Mul(h, a)")
    editor, matmul = GraphEditor(model), model.graph[0]
    new = editor.value("")
    node = editor.insert(
        matmul, "total", "Neg", [matmul.outputs[0]], {}, [new], after=True, domain=""
    )
    editor.follow(matmul.outputs[0], new, renamed="before")
    assert (matmul.outputs[0].name, new.name) == ("before", "h")
    assert list(node.inputs) == [matmul.outputs[0]]
    assert [v is new for v in (model.graph[2].inputs[0], model.graph[3].inputs[0])] == [True, True]


def test_a_state_is_an_input_and_an_output_of_the_graph() -> None:
    model = graph("y = MatMul(x, w)")
    editor = GraphEditor(model)
    past = editor.add_past("event.0", ["B", 3])
    inputs = {"dy": model.graph.inputs[0], "past": past}
    node = editor.replace(model.graph[0], "EventSum", inputs, {})
    editor.add_present(node, "present", past, ["B", 3])
    assert [v.name for v in model.graph.inputs] == ["x", "past_event.0"]
    assert [v.name for v in model.graph.outputs] == ["y", "present_event.0"]
    assert model.graph.outputs[1] is output_of(node, "present")
    assert input_of(node, "past") is past
    assert attribute_of(node, "alpha") == 0.0
