"""The version of the `tamiz` operator domain that a model needs."""

from __future__ import annotations

from pathlib import Path

from tamiz.files.errors import TamizError
from tamiz.files.onnx_versions import onnx_versions
from tamiz.interface.metadata import DOMAIN, OPSET_VERSION


def check_opset(model: Path) -> None:
    """Refuses a model that needs another version of the `tamiz` domain.

    Args:
        model: An ONNX file. Only its top level is read; onnxruntime reports damaged files.

    Raises:
        TamizError: The model needs another version.
    """
    version = onnx_versions(model).opsets.get(DOMAIN, OPSET_VERSION)
    if version != OPSET_VERSION:
        raise TamizError(
            f"{model}: found version {version} of the operator domain tamiz, expected"
            f" {OPSET_VERSION}; try another version of tamiz, or build the bundle again"
        )
