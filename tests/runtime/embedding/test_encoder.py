"""Encoders: embeddings, and what is refused."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from kit.encoders import WIDTH, write_encoder
from tamiz.files.bundle import Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.load import load_model
from tamiz.runtime.model import Model


def test_an_embedding_is_the_mean_of_the_hidden_states(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder", inputs="token_type_ids")
    model = load_model(folder)
    assert isinstance(model, Encoder)
    assert model.width == WIDTH
    (constant,) = onnx.load(folder / "model.onnx").graph.initializer
    table = onnx.numpy_helper.to_array(constant)
    ids = np.array([[0, 3, 1], [0, 7, 1]])
    expected = table[ids].mean(axis=1)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(model.embeddings(ids), expected, atol=1e-6)


@pytest.mark.parametrize(("config", "first"), [("true", True), ("false", False)])
def test_a_first_token_stands_for_a_text_where_the_pooling_says_so(
    tmp_path: Path, config: str, first: bool
) -> None:
    folder = write_encoder(tmp_path / "encoder")
    (folder / "1_Pooling").mkdir()
    text = f'{{"pooling_mode_cls_token": {config}}}'
    (folder / "1_Pooling" / "config.json").write_text(text)
    write_manifest(folder, "dense", Source("made"))
    model = load_model(folder)
    assert isinstance(model, Encoder)
    (constant,) = onnx.load(folder / "model.onnx").graph.initializer
    hidden = onnx.numpy_helper.to_array(constant)[[5, 3, 1]]
    expected = hidden[0] if first else hidden.mean(axis=0)
    expected = expected / np.linalg.norm(expected)
    np.testing.assert_allclose(model.embeddings(np.array([[5, 3, 1]]))[0], expected, atol=1e-6)


def test_a_decoder_is_a_model(tiny_dense: Path) -> None:
    assert isinstance(load_model(tiny_dense), Model)


def test_an_encoder_has_nothing_to_switch_off(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    with pytest.raises(TamizError, match="nothing can be switched off, found --without=kwta"):
        load_model(folder, without=["kwta"])


def test_unknown_inputs_are_named(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder", inputs="pixels")
    with pytest.raises(TamizError, match="takes input_ids, attention_mask, pixels, expected"):
        load_model(folder)


def test_another_output_is_named(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path / "encoder")
    model = onnx.load(folder / "model.onnx")
    del model.graph.output[0].type.tensor_type.shape.dim[2]
    model.graph.node[0].output[0] = "states"
    model.graph.node.append(onnx.helper.make_node("Squeeze", ["states"], ["last_hidden_state"]))
    onnx.save(model, folder / "model.onnx")
    write_manifest(folder, "dense", Source("made"))
    with pytest.raises(TamizError, match=r"gives last_hidden_state, .* expected floats"):
        load_model(folder)
