"""The benchmark of encoders: what it says of embeddings, and of models in turn."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from kit.scripts import load_script


@pytest.fixture
def encoders() -> Any:
    return load_script("benchmarks/encoders.py")


def write_encoder(folder: Path, noise: float) -> Path:
    """An encoder that looks its tokens up in a table."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((50, 8), np.float32)
    values += noise * generator.standard_normal((50, 8), np.float32)
    node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    ids = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
        for name in ("input_ids", "attention_mask")
    ]
    hidden = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "length", 8]
    )
    constant = numpy_helper.from_array(values, "table")
    graph = helper.make_graph([node], "encoder", ids, [hidden], [constant])
    opsets = [helper.make_opsetid("", 17)]
    folder.mkdir()
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")
    return folder


def test_models_are_compared_with_float32(
    encoders: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoders, "ROUNDS", 3)
    paths = {"float32": write_encoder(tmp_path / "float32", 0.0)}
    paths |= {name: write_encoder(tmp_path / name, 0.1) for name in ("near",)}
    paths |= {name: write_encoder(tmp_path / name, 2.0) for name in ("far",)}
    ids = np.random.default_rng(1).integers(50, size=(12, 6))
    found: dict[str, dict[str, Any]] = {name: {"mb": 1.0} for name in paths}
    encoders.compare(found, paths, [ids[:8], ids[8:]], threads=1)
    assert found["float32"]["cos"] == pytest.approx(1, abs=1e-6)
    assert found["float32"]["same_nearest"] == 1
    assert found["float32"]["speed"] == 1
    assert found["far"]["cos"] < found["near"]["cos"] < 1
    assert found["far"]["cos_p05"] < found["far"]["cos"]
    assert set(found["far"]) == {"mb", "cos", "cos_p05", "same_nearest", "ms", "speed"} | {
        "speed_range"
    }
    assert len(encoders.table(found).splitlines()) == 5


def test_a_text_is_not_its_own_neighbour(encoders: Any) -> None:
    angles = np.array([0.0, 0.1, 1.0, 1.2])
    found = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert encoders.nearest(found).tolist() == [1, 0, 3, 2]
    assert encoders.quality(found, found[:, ::-1])["same_nearest"] == 1
    assert encoders.quality(found, found[[2, 1, 0, 3]])["same_nearest"] < 1
