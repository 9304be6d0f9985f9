"""Files of tensors (safetensors), written as a whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError, naming


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> None:
    """Writes tensors to a file, which appears when it is complete. Equal ones have equal bytes.

    Raises:
        UnwritableError: No space, no permission, or no such folder.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    try:
        with naming(path, SafetensorError):
            save_file(contiguous, scratch, dict(metadata))
            os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Refuses a place where `write_tensors` could not write, before what is written is made.

    Raises:
        TamizError: It is a folder, or no file can be made beside it.
    """
    if path.is_dir():
        raise TamizError(f"{path}: is a folder, expected a file")
    with naming(path), tempfile.TemporaryFile(dir=path.parent):
        pass
