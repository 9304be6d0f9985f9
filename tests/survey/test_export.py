"""An export of an .onnx file is compared with the file: plain ONNX Runtime is the reference."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from kit.beside_onnxruntime import run
from tamiz.api.hookspecs import Exporter
from tamiz.files.bundle import MODEL
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.self_check import DifferentModelError, Reference
from tamiz_exporters import onnx as exporter

WEIGHT = np.random.default_rng(0).standard_normal((64, 64))
HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '


def write(folder: Path, text: str, **constants: np.ndarray) -> Path:
    model = onnx.parser.parse_model(HEAD + text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path = folder / "source.onnx"
    path.write_bytes(model.SerializeToString())
    return path


class _Scaling:
    """Plugins whose exporter of .onnx files multiplies a weight."""

    def __init__(self, factor: float) -> None:
        self._factor = factor

    def exporters(self) -> Sequence[Exporter]:
        return [Exporter("onnx", "an .onnx file", exporter.accepts, self._export)]

    def _export(self, source: str, folder: Path, **options: Any) -> str:
        read = exporter.export(source, folder, dtype="float32")
        model = onnx.load(folder / MODEL)
        (weight,) = (t for t in model.graph.initializer if len(t.dims) == 2)
        weight.CopyFrom(
            numpy_helper.from_array(self._factor * numpy_helper.to_array(weight), weight.name)
        )
        onnx.save(model, folder / MODEL)
        return read


@pytest.mark.parametrize(
    ("kind", "dtype"), [("float", np.float32), ("double", np.float64), ("float16", np.float16)]
)
def test_an_export_that_gives_other_outputs_is_refused(
    tmp_path: Path, kind: str, dtype: type[np.floating[Any]]
) -> None:
    text = f"({kind}[n, 64] x) => ({kind}[n, 64] y) {{ y = MatMul(x, w) }}"
    source = write(tmp_path, text, w=WEIGHT.astype(dtype))
    same: Any = _Scaling(1.0)
    assert export(str(source), tmp_path / "same", same).model.is_file()
    other: Any = _Scaling(1.5)
    with pytest.raises(TamizError, match=r"source.onnx: y of the new model differs by \d+"):
        export(str(source), tmp_path / "other", other)
    assert not (tmp_path / "other").exists()


def test_what_overflows_in_float16_is_not_known(tmp_path: Path) -> None:
    """A file of float16 may give an infinity where its export, in float32, gives a number."""
    square = "({0}[n, 4] x) => ({0}[n, 4] y) {{ y = Mul(x, x) }}"
    source = write(tmp_path, square.format("float16"))
    (tmp_path / "wide").mkdir()
    dense = write(tmp_path / "wide", square.format("float"))
    for x, wrong in ((200, 20000), (400, 1)):
        feeds = {"x": np.full((1, 4), x, np.float16)}
        Reference(source, feeds, run(str(source), feeds)).compare_export(dense)
        other = Reference(source, feeds, {"y": np.array([[wrong, np.inf] * 2], np.float16)})
        with pytest.raises(DifferentModelError, match="y of the new model"):
            other.compare_export(dense)


def test_a_file_without_a_known_input_is_exported_with_a_warning(
    tmp_path: Path, plugins: Plugins, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes 21 numbers; no input is made up that has them."""
    text = "(float[a, b] x) => (float[7, 3] y) { r = Reshape(x, size) y = Add(r, zeros) }"
    zeros = np.zeros((7, 3), np.float32)
    source = write(tmp_path, text, size=np.array([7, 3]), zeros=zeros)
    with caplog.at_level(logging.WARNING):
        export(str(source), tmp_path / "dense", plugins)
    assert "not compared with its export: no input is known that it runs on" in caplog.text


def test_outputs_that_are_drawn_are_not_compared(tmp_path: Path, plugins: Plugins) -> None:
    text = "(float[n, 4] x) => (float[n, 4] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    assert export(str(write(tmp_path, text)), tmp_path / "dense", plugins).model.is_file()


def test_only_ids_are_drawn_from_a_large_vocabulary(tmp_path: Path) -> None:
    """A large number in place of a size may take more than the memory."""
    text = """(float[1] x, int64[4] sizes, int64[n] input_ids)
    => (float[a, b, c, d] y, float[n, 4] z) { y = Expand(x, sizes) z = Gather(w, input_ids) }"""
    source = write(tmp_path, text, w=np.ones((300, 4), np.float32))
    reference = Reference.of(source)
    assert reference is not None
    assert reference.feeds["sizes"].max() <= 2
    assert reference.feeds["input_ids"].max() > 2


def test_a_source_that_nobody_reads_names_what_is_read(tmp_path: Path) -> None:
    plugins: Any = _Scaling(1)
    expected = "expected an .onnx file"
    with pytest.raises(TamizError, match=f"{tmp_path}: no exporter reads it, {expected}"):
        export(str(tmp_path), tmp_path / "dense", plugins)
    with pytest.raises(TamizError, match=f"none: no such file or folder, {expected}"):
        export("none", tmp_path / "dense", plugins)
