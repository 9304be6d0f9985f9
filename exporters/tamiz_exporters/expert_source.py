"""A source whose tensors of experts are as other sources have them.

Files of gpt-oss name these tensors without ``.weight``, and store

    floats    [E, K, N]                                  of the weight [E, N, K]
    MXFP4     ``_blocks`` uint8 [E, N, K/32, 16], whose byte i has the inputs 2i and 2i + 1, and
              ``_scales`` uint8 [E, N, K/32], exponents

A block of MXFP4 in GGUF is an exponent and 16 bytes, whose byte i has the inputs i and i + 16.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tamiz_exporters.stored_tensor import OtherSource, Source, StoredTensor

_BLOCKS, _SCALES, _BIAS = "_blocks", "_scales", "_bias"
_BLOCK, _BYTES = 32, 16


class ExpertSource(OtherSource):
    """Another source with the names and the layout of the others."""

    def __init__(self, source: Source, parts: Iterable[str]) -> None:
        """Renames the tensors of experts, and notes how they are turned when they are read.

        Args:
            source: The checked source.
            parts: What the names of its experts' tensors end with, but for what they hold.

        Raises:
            TamizError: Blocks and scales do not fit.
        """
        found: dict[str, StoredTensor] = {}
        super().__init__(source, found)
        ends = tuple(parts)
        for name, tensor in source.tensors.items():
            stem, _, kind = name.rpartition("_")
            if name.endswith(ends) and len(tensor.shape) == 3:
                found[f"{name}.weight"] = _turned(tensor)
            elif not stem.endswith(ends):
                found[name] = tensor
            elif f"_{kind}" == _BLOCKS:
                found[f"{stem}.weight"] = self._microscaled(stem)
            elif f"_{kind}" == _BIAS:
                found[f"{stem}.bias"] = replace(tensor, name=f"{stem}.bias")

    def _microscaled(self, stem: str) -> StoredTensor:
        """The weight of blocks and scales."""
        blocks = self._source.tensors[f"{stem}{_BLOCKS}"]
        scales = self._source.tensors.get(f"{stem}{_SCALES}")
        if len(blocks.shape) != 4 or blocks.shape[3] != _BYTES:
            self.fail(f"tensor {blocks.name}: shape", blocks.shape, "experts, rows, blocks, 16")
        if scales is None or scales.shape != blocks.shape[:3]:
            found = "no such tensor" if scales is None else scales.shape
            self.fail(f"tensor {stem}{_SCALES}", found, f"shape {blocks.shape[:3]}")
        for tensor in (blocks, scales):
            if tensor.type is not GGMLQuantizationType.I8:
                self.fail(f"tensor {tensor.name}: dtype", tensor.type.name, "U8")
        experts, rows, groups, _ = blocks.shape

        def read() -> np.ndarray:
            pairs = blocks.stored().reshape(-1, _BYTES)
            first, second = pairs[:, : _BYTES // 2], pairs[:, _BYTES // 2 :]
            packed = np.empty((len(pairs), 1 + _BYTES), np.uint8)
            packed[:, 0] = scales.stored().ravel()
            packed[:, 1::2] = first & 15 | second << 4
            packed[:, 2::2] = first >> 4 | second & 240
            return packed.reshape(experts * rows, -1)

        shape, kind = (experts, rows, groups * _BLOCK), GGMLQuantizationType.MXFP4
        return StoredTensor(f"{stem}.weight", shape, kind, read=read)


def _turned(tensor: StoredTensor) -> StoredTensor:
    """``[E, K, N]`` as ``[E, N, K]``."""
    experts, columns, rows = tensor.shape
    size = GGML_QUANT_SIZES[tensor.type][1]

    def read() -> np.ndarray:
        numbers = tensor.stored().reshape(experts, columns, rows, size).swapaxes(1, 2)
        return np.ascontiguousarray(numbers).reshape(experts * rows, columns * size)

    return StoredTensor(f"{tensor.name}.weight", (experts, rows, columns), tensor.type, read=read)
