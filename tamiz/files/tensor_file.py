"""Files of tensors (safetensors), written as a whole or not at all, with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import naming

#: Key of the checksum in the metadata.
_CHECKSUM = "sha256"


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], kind: str, about: Mapping[str, Any]
) -> None:
    """Writes tensors to a file, which appears when it is complete. Equal ones have equal bytes.

    Args:
        path: The file.
        tensors: Tensors by name.
        kind: The one key of the file's metadata; with two, their order would be random.
        about: What the metadata holds as JSON; a checksum is added, see `is_intact`.

    Raises:
        UnwritableError: No space, no permission, or no such folder.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    scratch = path.with_name(f"{path.name}.{os.getpid()}.new")
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    signed = {**about, _CHECKSUM: _digest(contiguous, about)}
    try:
        with naming(path, SafetensorError):
            save_file(contiguous, scratch, {kind: json.dumps(signed)})
            os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def is_intact(path: Path, kind: str) -> bool:
    """Whether a file is as `write_tensors` has written it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as opened:
            about = json.loads((opened.metadata() or {})[kind])
            checksum = about.pop(_CHECKSUM)
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError):
        return False
    return bool(checksum == _digest(tensors, about))


def _digest(tensors: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> str:
    """SHA-256 of names, types, shapes, and values, and of what the metadata says."""
    digest = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, tensor.dtype.str, tensor.shape]).encode())
        digest.update(tensor.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
