"""Export of an ONNX model that exists already, as optimum-cli writes it."""

from __future__ import annotations

from pathlib import Path

from tamiz.api import MODEL, TamizError
from tamiz_exporters.companions import copy_companions
from tamiz_exporters.external_data import load_model, save_model


def accepts(source: str) -> bool:
    """Whether `source` is an .onnx path or a folder that holds ``model.onnx``."""
    return source.lower().endswith(".onnx") or (Path(source) / MODEL).is_file()


def export(source: str, directory: Path) -> str:
    """Writes the dense bundle's files, weights rewritten into one aligned data file.

    Args:
        source: An .onnx path or a folder that holds ``model.onnx``.
        directory: An existing, empty directory.

    Returns:
        The path of the .onnx file.

    Raises:
        TamizError: If the model is invalid or its external data is not where it should be.
    """
    path = Path(source)
    path = path / MODEL if path.is_dir() else path
    if not path.is_file():
        raise TamizError(f"{path}: no such file, expected an ONNX model")
    model = load_model(path)
    _check(path)
    save_model(model, directory)
    copy_companions(path.parent, directory)
    return str(path)


def _check(path: Path) -> None:
    """Runs the ONNX checker on the graph; `load_model` has checked where the weights lie.

    The checker refuses linked data files, such as those of Hugging Face's cache, so it sees empty
    tensors instead of external ones.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    for tensor in onnx.external_data_helper._get_all_tensors(model):
        if onnx.external_data_helper.uses_external_data(tensor):
            tensor.ClearField("external_data")
            tensor.data_location = onnx.TensorProto.DEFAULT
            tensor.dims[:] = [0]
            tensor.raw_data = b""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        reason = str(error).strip().splitlines()[0]
        raise TamizError(f"{path}: the ONNX checker rejects it: {reason}") from error
