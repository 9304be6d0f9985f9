"""Models of another version of the tamiz operator domain are refused."""

import shutil
from pathlib import Path

import onnx_ir as ir
import pytest

from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.opset import check_opset


@pytest.mark.parametrize("version", [2, 99, 127])
def test_a_newer_domain_is_refused(shared_dir: Path, tmp_path: Path, version: int) -> None:
    bundle = Path(shutil.copytree(shared_dir, tmp_path / "newer"))
    model = ir.load(bundle / "model.onnx")
    model.graph.opset_imports["tamiz"] = version
    ir.save(model, bundle / "model.onnx")
    sentence = rf"model\.onnx: found version {version} of the operator domain tamiz, expected 1"
    with pytest.raises(TamizError, match=sentence):
        Model.load(bundle, threads=1)


def test_the_current_domain_loads(shared_dir: Path) -> None:
    check_opset(shared_dir / "model.onnx")


@pytest.mark.parametrize("damage", [b"", b"\x42", b"\x42\xff\xff", b"\xff" * 40, b"\x07abc"])
def test_damaged_files_are_left_to_onnxruntime(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(damage)
    check_opset(path)
