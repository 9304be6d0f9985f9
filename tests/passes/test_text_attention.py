"""The attention of encoders is recognised, and texts of a run need no padding."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from kit.decoders import ops, session
from kit.encoder_files import CASE, random_tensors, write_folder
from kit.encoder_forms import FORMS, LONGEST, TOKENS, EncoderForm, encoder
from kit.encoders import write_transformer
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.rms_norm import RecogniseRMSNorm
from tamiz_passes.text_attention import RecogniseTextAttention

MODELS = json.loads(
    (Path(__file__).parents[1] / "exporters" / "reference_encoders.json").read_text()
)["models"]


def recognised(path: Path) -> tuple[ir.Model, list[str]]:
    """A graph after the pass, and its notes."""
    model = ir.external_data.load_to_model(ir.load(path))
    for first in (CleanUp(), RecogniseRMSNorm()):
        first(model)
    each = RecogniseTextAttention()
    each(model)
    return model, [note.reason for note in each.notes]


def feeds(
    model: ir.Model, ids: np.ndarray, mask: np.ndarray, types: np.ndarray
) -> dict[str, np.ndarray]:
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {name: given[name] for v in model.graph.inputs if (name := v.name or "") in given}


@pytest.mark.parametrize("name", MODELS)
def test_texts_of_a_row_are_those_of_a_batch(name: str, tmp_path: Path, plugins: Plugins) -> None:
    model = MODELS[name]
    folder = write_folder(tmp_path / "hf", model["config"], random_tensors(model["shapes"]))
    path = export(str(folder), tmp_path / "dense", plugins).model
    graph, notes = recognised(path)
    before, after = session(path), session(graph)
    (expected,), (found,) = (s.run(None, feeds(graph, *CASE)) for s in (before, after))
    mask = CASE[1] == 1
    rows = mask if expected.ndim == 3 else slice(None)
    scale = np.abs(expected[rows]).max()
    np.testing.assert_allclose(found[rows], expected[rows], atol=1e-5 * scale)
    assert notes == []
    assert "text_begins" in {value.name for value in graph.graph.inputs}
    assert Counter(ops(graph))["Softmax"] == 0
    tables = [n.inputs[port] for n in graph.graph if n.op_type == "TextAttention" for port in
              range(7, min(9, len(n.inputs))) if n.inputs[port] is not None]  # fmt: skip
    assert len({id(table) for table in tables}) == len(tables)
    lengths = mask.sum(axis=1)
    ids, types = (each[mask][None] for each in (CASE[0], CASE[2]))
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    row = feeds(graph, ids, np.ones_like(ids), types) | {"text_begins": begins}
    (packed,) = after.run(None, row)
    wanted = expected[mask][None] if expected.ndim == 3 else expected
    np.testing.assert_allclose(packed, wanted, atol=1e-5 * scale)


@pytest.mark.parametrize("name", ["MPNetModel", "RobertaModel", "XLMRobertaModel"])
def test_a_text_may_name_the_token_of_padding(name: str, tmp_path: Path, plugins: Plugins) -> None:
    """As a user's text with `<pad>` in it does: that token has no position, and is not counted."""
    model = MODELS[name]
    folder = write_folder(tmp_path / "hf", model["config"], random_tensors(model["shapes"]))
    path = export(str(folder), tmp_path / "dense", plugins).model
    texts = [np.array([[0, 5, 1, 6, 2]]), np.array([[0, 1, 1, 7, 8, 2]]), np.array([[0, 9, 2]])]
    graph = recognised(path)[0]
    before, after = session(path), session(graph)
    alone = [before.run(None, given(graph, text))[0][0] for text in texts]
    row, lengths = np.concatenate(texts, axis=1), [text.shape[1] for text in texts]
    begins = np.repeat(np.cumsum(lengths) - lengths, lengths)
    found = after.run(None, given(graph, row) | {"text_begins": begins})[0][0]
    expected = np.concatenate(alone)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def given(graph: ir.Model, ids: np.ndarray) -> dict[str, np.ndarray]:
    """Inputs of texts without padding."""
    return feeds(graph, ids, np.ones_like(ids), np.zeros_like(ids))


def test_an_encoder_that_torch_exported(tmp_path: Path) -> None:
    """It has no table of positions, so all of its nodes work token by token."""
    graph, notes = recognised(write_transformer(tmp_path / "e") / "model.onnx")
    assert notes == []
    assert Counter(ops(graph))["TextAttention"] == 2
    assert graph.graph.inputs[-1].name == "text_begins"


def recognise(model: ir.Model) -> list[str]:
    """Runs the pass, and returns its notes."""
    CleanUp()(model)
    each = RecogniseTextAttention()
    each(model)
    return [note.reason for note in each.notes]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.title)
def test_an_attention_of_another_tool(form: EncoderForm) -> None:
    """Two texts side by side are longer than the table of positions: 14 tokens of 12."""
    model = encoder(form)
    before = session(model)
    notes = recognise(model)
    if form.refused is not None:
        assert notes[0].startswith(form.refused)
        assert Counter(ops(model))["TextAttention"] == 0
        return
    assert notes == []
    assert Counter(ops(model))["TextAttention"] == 1
    after = session(model)
    ids = np.random.default_rng(1).integers(0, TOKENS, (2, 9))
    mask = np.array([[1] * 9, [1] * 5 + [0] * 4])
    (expected,) = before.run(None, {"input_ids": ids, "attention_mask": mask})
    (found,) = after.run(None, {"input_ids": ids, "attention_mask": mask})
    rows = mask == 1
    np.testing.assert_allclose(found[rows], expected[rows], atol=1e-5)
    row, begins = ids[rows][None], np.repeat([0, 9], [9, 5])
    assert row.shape[1] > LONGEST
    packed = {"input_ids": row, "attention_mask": np.ones_like(row), "text_begins": begins}
    np.testing.assert_allclose(after.run(None, packed)[0][0], expected[rows], atol=1e-5)


@pytest.mark.parametrize("numbers", [np.arange(LONGEST) + 2, np.arange(LONGEST) // 2])
def test_positions_of_another_table_are_padded(numbers: np.ndarray) -> None:
    model = encoder(FORMS[0])
    model.graph.initializers["numbers"].const_value = ir.tensor(numbers[None], name="numbers")
    (note,) = recognise(model)
    assert "come from a table of some length" in note
    assert "text_begins" not in {value.name for value in model.graph.inputs}


def test_positions_whose_tables_a_run_computes_are_padded(tmp_path: Path, plugins: Plugins) -> None:
    """DeBERTa as torch exports it; here the tables are times the largest of the mask, 1."""
    known = MODELS["DebertaV2Model"]
    folder = write_folder(tmp_path / "hf", known["config"], random_tensors(known["shapes"]))
    path = export(str(folder), tmp_path / "dense", plugins).model
    model = ir.external_data.load_to_model(ir.load(path))
    largest = ir.node("ReduceMax", [graph_input(model, "attention_mask")], {"keepdims": 0})
    one = ir.node("Cast", largest.outputs, {"to": ir.DataType.FLOAT})
    products = [n.inputs[0].producer() for n in model.graph if n.op_type == "GatherElements"]
    model.graph.insert_before(model.graph[0], [largest, one])
    for product in products:
        table = ir.node("Mul", [product.inputs[1], one.outputs[0]])
        model.graph.insert_before(product, table)
        product.replace_input_with(1, table.outputs[0])
    notes = recognise(model)
    assert len(notes) == known["config"]["num_hidden_layers"]
    assert all(note.startswith("Scores of positions (DeBERTa) are not gathered") for note in notes)
    assert "text_begins" not in {value.name for value in model.graph.inputs}


def graph_input(model: ir.Model, name: str) -> ir.Value:
    return next(value for value in model.graph.inputs if value.name == name)


def test_a_decoder_is_left_alone(dense_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(dense_dir, tmp_path / "dense")  # onnx reads no data that has several names
    graph, notes = recognised(tmp_path / "dense" / "model.onnx")
    assert Counter(ops(graph))["TextAttention"] == 0
    assert notes == []
