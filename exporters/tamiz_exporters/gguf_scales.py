"""Factors of whole tensors of type NVFP4, as files that come from ModelOpt have them.

    w = s · e4m3 · e2m1

Scales of 8 bits reach far where one float32 s scales the whole matrix, or one s for
each expert: ``NAME.scale`` beside ``NAME.weight``. ``NAME.input_scale`` tells processors with
products of 4 bits how to round inputs. Inputs are not rounded to 4 bits here, nor by llama.cpp on a
CPU, so it has no effect.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from gguf.constants import GGMLQuantizationType

from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.stored_tensor import StoredTensor

_WEIGHT, _SCALE, _INPUT_SCALE = ".weight", ".scale", ".input_scale"
_FLOAT = GGMLQuantizationType.F32


def fold_scales(file: GgufFile) -> None:
    """Makes the factors of tensors a part of these, in place.

    Args:
        file: The checked file, with the tensors of all its parts.

    Raises:
        TamizError: A factor is no number, or there are not as many as experts.
    """
    tensors = file.tensors
    for name, tensor in list(tensors.items()):
        if tensor.type.name != "NVFP4" or not name.endswith(_WEIGHT):
            continue
        stem = name.removesuffix(_WEIGHT)
        tensors.pop(f"{stem}{_INPUT_SCALE}", None)
        if (scale := tensors.pop(f"{stem}{_SCALE}", None)) is not None:
            tensors[name] = replace(tensor, factors=_factors(file, tensor, scale))


def _factors(file: GgufFile, tensor: StoredTensor, scale: StoredTensor) -> np.ndarray:
    """The factor of each row, ``float32 [rows]``."""
    count = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if scale.type is not _FLOAT or scale.shape != (count,):
        found = f"{scale.type.name} of shape {' x '.join(map(str, scale.shape))}"
        file.fail(f"tensor {scale.name}", found, f"F32 of shape {count}, as of {tensor.name}")
    values = scale.dequantize()
    if not np.isfinite(values).all():
        file.fail(f"tensor {scale.name}", "NaN or infinity", "finite numbers")
    return np.repeat(values, len(tensor.data) // count)
