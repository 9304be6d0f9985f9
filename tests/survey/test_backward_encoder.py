"""The backward pass through the ops of an encoder, against differences of onnx's own evaluation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from kit.encoders import write_encoder, write_transformer
from tamiz.api.site import SiteKind
from tamiz.files.bundle import Bundle
from tamiz.plugins import load
from tamiz.runtime.embedding.modules import Modules
from tamiz.runtime.embedding.pooling import Pooling
from tamiz.survey.activations import Activations, Values
from tamiz.survey.backward.node import UnknownOpError
from tamiz.survey.backward.run import back, dependent, wanted
from tamiz.survey.output_loss import CosineDistance, output_loss
from tamiz.survey.sensitivity import TextWeightSensitivity, sensitivities
from tamiz.survey.survey import Survey, survey

RANDOM = np.random.default_rng(0)
#: Constants behind the computed inputs.
OTHER = {
    "Reshape": [[3, 2, 4]],
    "Squeeze": [[0]],
    "Unsqueeze": [[1]],
    "Expand": [[2, 3, 4]],
    "Tile": [[2, 1, 3]],
    "Slice": [[0, 1], [-1, 9], [-1, 1], [1, 2]],
}


def node_of(
    op: str, shapes: list[tuple[int, ...]], constants: list[Any] | None = None, **attributes: Any
) -> tuple[ir.Node, Any]:
    """A node whose inputs are computed, and a function that evaluates it in float64."""
    names = [f"x{i}" for i in range(len(shapes))]
    given = OTHER.get(op, []) if constants is None else constants
    shape = [onnx.numpy_helper.from_array(np.array(c), f"c{i}") for i, c in enumerate(given)]
    read = [*names, *(constant.name for constant in shape)]
    read = read[::-1] if op == "Where" else read
    read = [read[0], *read[:0:-1]] if op == "ScatterElements" else read
    outputs = ["y", "index"] if op == "TopK" else ["y"]
    made = helper.make_node(op, read, outputs, name="n", **attributes)
    inputs = [
        helper.make_tensor_value_info(n, TensorProto.DOUBLE, s)
        for n, s in zip(names, shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph([made], "graph", inputs, [output], shape)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    at = ir.from_proto(model).graph.node(0)
    run: Any = ReferenceEvaluator(model)
    if op == "Erf":  # evaluated in float32
        return at, lambda given: np.vectorize(math.erf)(given["x0"])
    return at, lambda given: run.run(["y"], given)[0]


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Add", [(2, 3, 4), (2, 3, 4)], {}),
        ("Add", [(2, 3, 4), (4,)], {}),
        ("Add", [(2, 1, 4), (3, 1)], {}),
        ("Sub", [(3, 4), (2, 3, 4)], {}),
        ("Mul", [(2, 3, 4), (3, 1)], {}),
        ("Mul", [(2, 3), ()], {}),
        ("Div", [(2, 3, 4), (1, 4)], {}),
        ("MatMul", [(1, 2, 3, 4), (1, 2, 4, 5)], {}),
        ("MatMul", [(2, 3, 4), (4, 5)], {}),
        ("Reshape", [(1, 6, 4)], {}),
        ("Squeeze", [(1, 6, 4)], {}),
        ("Unsqueeze", [(2, 3)], {}),
        ("Flatten", [(2, 3, 4)], {"axis": 1}),
        ("Transpose", [(2, 3, 4)], {"perm": [2, 0, 1]}),
        ("Transpose", [(2, 3, 4)], {}),
        ("Softmax", [(2, 3, 4)], {"axis": -1}),
        ("Softmax", [(2, 3, 4)], {"axis": 1}),
        ("LayerNormalization", [(2, 3, 4), (4,), (4,)], {"axis": -1, "epsilon": 1e-3}),
        ("Erf", [(2, 3)], {}),
        ("Tanh", [(2, 3)], {}),
        ("Relu", [(2, 3)], {}),
        ("Identity", [(2, 3)], {}),
        ("Neg", [(2, 3)], {}),
        ("Expand", [(2, 1, 4)], {}),
        ("Tile", [(2, 3, 2)], {}),
        ("Slice", [(2, 5, 4)], {}),
        ("Concat", [(2, 3), (2, 1), (2, 4)], {"axis": 1}),
        ("Pow", [(2, 3)], {"constants": [3.0]}),
        ("ReduceMean", [(2, 3, 4)], {"constants": [[-1]]}),
        ("ReduceSum", [(2, 3, 4)], {"constants": [[1]], "keepdims": 0}),
        ("ReduceSum", [(2, 3, 4)], {"constants": [[0, -1]], "keepdims": 0}),
        ("ReduceSum", [(2, 3, 4)], {"constants": [[-1]]}),
        ("TopK", [(2, 5)], {"constants": [[3]]}),
        ("TopK", [(4, 3)], {"constants": [[2]], "axis": 0}),
        ("GatherElements", [(2, 4)], {"constants": [[[0, 3, 3], [2, 2, 1]]], "axis": 1}),
        ("ScatterElements", [(2, 4), (2, 2)], {"constants": [[[3, 0], [1, 2]]], "axis": -1}),
        ("Where", [(2, 3), (1, 3)], {"constants": [[[True, False, True], [False, False, True]]]}),
    ],
)
def test_ops(op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any]) -> None:
    at, run = node_of(op, shapes, **attributes)
    values: dict[str, Any] = {f"x{i}": 0.5 + RANDOM.random(shape) for i, shape in enumerate(shapes)}
    y = run(values)
    g = RANDOM.standard_normal(y.shape)
    found = back(at, {name: values[name] for name in wanted(at)}, [g])
    asked = 1 if op == "LayerNormalization" else len(shapes)  # of its weights none is asked for
    for number in range(asked):
        name = f"x{number}"
        index = [value.name for value in at.inputs].index(name)
        step = RANDOM.standard_normal(values[name].shape)
        ends = [run(values | {name: values[name] + way * 1e-5 * step}) for way in (1, -1)]
        expected = float((g * (ends[0] - ends[1])).sum()) / 2e-5
        gradient = found[index]
        assert gradient is not None
        assert gradient.shape == values[name].shape
        # Factors such as 2 / √π are float32.
        assert float((gradient * step).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("sizes", [None, [1, 3, 2]])
def test_parts_of_a_split_that_nothing_reads_change_nothing(sizes: list[int] | None) -> None:
    constants = [] if sizes is None else [onnx.numpy_helper.from_array(np.array(sizes), "sizes")]
    inputs = ["x", *(constant.name for constant in constants)]
    made = helper.make_node("Split", inputs, ["a", "b", "c"], axis=1)
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, (2, 6))
    outputs = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in "abc"]
    graph = helper.make_graph([made], "graph", [x], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    value = RANDOM.standard_normal((2, 6))
    run: Any = ReferenceEvaluator(model)
    a, _, c = run.run(None, {"x": value})
    at = ir.from_proto(model).graph.node(0)
    (found,) = back(at, cast("dict[str, Any]", {"x": value}), [a, None, c])
    first, last = (sizes[0], sizes[2]) if sizes else (2, 2)
    expected = value.copy()
    expected[:, first : 6 - last] = 0
    np.testing.assert_array_equal(found, expected)


def test_unknown_ops_are_named() -> None:
    at, _ = node_of("Ceil", [(2, 3)])
    with pytest.raises(UnknownOpError, match="Ceil n"):
        back(at, {}, [np.ones((2, 3), np.float32)])


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory: pytest.TempPathFactory) -> Survey:
    folder = write_transformer(tmp_path_factory.mktemp("encoders") / "encoder")
    return survey(Bundle.open_dense(folder), load())


def test_masks_do_not_depend_on_sites(surveyed: Survey) -> None:
    nodes = list(surveyed.model.graph)
    found = dependent(nodes, {site.node for site in surveyed.sites if site.weight})
    assert "last_hidden_state" in found
    masks = [node.outputs[0].name for node in nodes if node.op_type in ("Cast", "Sub", "Unsqueeze")]
    assert len(masks) == 3
    assert not found & set(masks)


@pytest.mark.parametrize("modes", [("mean",), ("cls",), ("max", "lasttoken")])
def test_the_gradient_has_the_second_moment_of_the_cosine(modes: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    hidden = random.standard_normal((1, 5, 12)).astype(np.float32)
    pooling, mask = Pooling(modes), np.ones((1, 5), np.int64)
    loss = CosineDistance("last_hidden_state", Modules(pooling))
    drawn = np.array([loss.gradient(hidden, random)[0] for _ in range(20_000)])
    error = 1e-4 * random.standard_normal((5, 12))
    states = hidden.astype(np.float64)
    before, after = (pooling(h, mask)[0] for h in (states, states + error))
    cosine = before @ after / np.linalg.norm(before) / np.linalg.norm(after)
    predicted = 0.5 * np.square((drawn * error).sum(axis=(1, 2))).mean()
    assert predicted == pytest.approx(1 - cosine, rel=0.03)  # three standard errors


@pytest.mark.parametrize(
    ("number", "mode"),
    [(1, ""), (3, ""), (5, ""), (7, ""), (12, ""), (7, "cls"), (5, "max"), (5, "lasttoken")],
)
def test_losses_of_weights_are_those_of_embeddings(number: int, mode: str, tmp_path: Path) -> None:
    """One text, many draws, some errors: in the mean a small error costs what is predicted."""
    folder = write_transformer(tmp_path / "encoder", pooling=mode)
    surveyed = survey(Bundle.open_dense(folder), load())
    site = [site for site in surveyed.sites if site.weight is not None][number]
    text, draws = [0, *range(2, 13), 1], 600
    found = sensitivities(surveyed, [text] * draws, lambda *_: None)[site.id]
    assert isinstance(found, TextWeightSensitivity)
    value = surveyed.model.graph.initializers[site.weight]
    weight, random = value.const_value.numpy(), np.random.default_rng(number)

    def total(added: Any) -> Any:
        value.const_value = ir.tensor((weight + added).astype(np.float32), name=value.name)
        states = Values(surveyed, ["last_hidden_state"])(text)["last_hidden_state"]
        value.const_value = ir.tensor(weight, name=value.name)
        mask = np.ones((1, len(text)), np.int64)
        return Pooling((mode or "mean",))(states[None].astype(np.float64), mask)[0]

    whole, predicted, measured = total(0.0), [], []
    for _ in range(16):
        error = 2e-3 * random.standard_normal(weight.shape).astype(np.float32)
        of_rows = error if site.transposed else error.T
        tiles = np.arange(len(of_rows) // 16)
        predicted.append(found.loss(tiles, np.split(of_rows, len(tiles))))
        changed = total(error)
        cosine = whole @ changed / np.linalg.norm(whole) / np.linalg.norm(changed)
        measured.append(1 - cosine)
    assert np.mean(measured) > 1e-6  # far above the rounding of float32, squared
    # Standard errors: √(2 / draws) is 6 %, and 5 % for 16 errors of at least 25 directions.
    assert np.mean(predicted) == pytest.approx(np.mean(measured), rel=0.2)


def test_products_that_no_token_changes(tmp_path: Path) -> None:
    folder = write_transformer(tmp_path / "encoder", bias=True)
    surveyed = survey(Bundle.open_dense(folder), load())
    weights = {site.id for site in surveyed.sites if site.weight is not None}
    measured = Activations(surveyed).inputs
    found = sensitivities(surveyed, [[0, 2, 3, 4, 1]] * 3, lambda *_: None)
    (table,) = [site.id for site in surveyed.sites if site.kind == SiteKind.EMBEDDING]
    others = weights - set(measured) - {table}
    assert len(others) == 2
    assert set(found) == weights
    for site in others:
        assert found[site].inputs.shape == (3, 64)  # one row a text
        assert (found[site].outputs > 0).all()


def test_an_embedding_counts_a_row_once_a_text(tmp_path: Path) -> None:
    surveyed = survey(Bundle.open_dense(write_encoder(tmp_path / "encoder", width=32)), load())
    once = sensitivities(surveyed, [[0, 2, 3, 1]] * 300, lambda *_: None)["tok_embd"].outputs
    twice = sensitivities(surveyed, [[0, 2, 2, 1]] * 300, lambda *_: None)["tok_embd"].outputs
    # Four rows count 1 each; a row that occurs twice counts 2² = 4, beside two others.
    table = surveyed.model.graph.initializers["table"].const_value.numpy()
    lengths = [np.linalg.norm(table[ids].sum(axis=0)) for ids in ([0, 2, 3, 1], [0, 2, 2, 1])]
    expected = (6 / 4) * (lengths[0] / lengths[1]) ** 2
    assert twice.sum() / once.sum() == pytest.approx(expected, rel=0.1)


def test_a_model_without_hidden_states_is_refused(surveyed: Survey) -> None:
    output = surveyed.model.graph.outputs[0]
    shape, output.shape = output.shape, ir.Shape([2, 3])
    with pytest.raises(UnknownOpError, match="expected logits, or hidden states of an encoder"):
        output_loss(surveyed)
    output.shape = shape
