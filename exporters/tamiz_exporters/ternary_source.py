"""A source whose linear layers are ternary, as transformers' method ``bitnet`` stores them.

    w = level · d,    level in {−1, 0, 1},    one d a matrix

Packed files hold ``weight``, uint8 ``[N/4, K]``, whose byte (r, k) has in its field i of 2 bits the
level of output i·N/4 + r, plus 1; and a scale s, ``weight_scale``: d is s where ``linear_class`` is
``autobitlinear``, else 1/s. Files to train further hold floats, which transformers rounds in every
run: d = mean |w|, level = round(w/d), at most 1.

The matrices become TQ2_0 of GGUF, whose d is float16: that holds every bfloat16 of a usual size.
"""

from __future__ import annotations

import numpy as np
from gguf.constants import GGMLQuantizationType

from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.mixture_traits import MixtureTraits
from tamiz_exporters.stored_tensor import OtherSource, Source, StoredTensor

_LINEAR, _SCALE = "_proj.weight", ".weight_scale"
_TYPE = GGMLQuantizationType.TQ2_0
_BLOCK, _FIELDS = 256, 4
_SHIFTS = np.arange(0, 2 * _FIELDS, 2, dtype=np.uint8)
#: Least mean size of weights, as in transformers.
_LEAST = 1e-5


class TernarySource(OtherSource):
    """Another source with the linear layers as TQ2_0."""

    def __init__(self, source: Source, group: Fields) -> None:
        """Notes how linear layers are turned when they are read.

        Args:
            source: The checked source.
            group: ``quantization_config``, whose ``quant_method`` is ``bitnet``.

        Raises:
            TamizError: A field is not understood, or a linear layer is stored otherwise.
        """
        found: dict[str, StoredTensor] = {}
        super().__init__(source, found)
        kind = _one_of(group, "linear_class", "bitlinear", "autobitlinear")
        packed = _one_of(group, "quantization_mode", "offline", "online") == "offline"
        self._divides = kind == "bitlinear"
        if not packed and self._divides:
            group.reject("quantization_mode", "online", "offline with linear_class bitlinear")
        if group.flag("use_rms_norm"):
            group.reject("use_rms_norm", True, "false")
        if (kept := group.given("modules_to_not_convert")) not in (None, ["lm_head"]):
            group.reject("modules_to_not_convert", kept, '["lm_head"] or no such key')
        for name, tensor in source.tensors.items():
            if name.endswith(_LINEAR):
                found[name] = self._packed(tensor) if packed else self._rounded(tensor)
            elif not name.endswith(_SCALE):
                found[name] = tensor

    def _packed(self, tensor: StoredTensor) -> StoredTensor:
        """The weight of fields and a scale."""
        field, name = f"tensor {tensor.name}", tensor.name.removesuffix(".weight") + _SCALE
        if tensor.type is not GGMLQuantizationType.I8:
            self.fail(f"{field}: dtype", tensor.type.name, "U8")
        scale = self._source.tensors.get(name)
        if scale is None or scale.shape != (1,) or scale.type is GGMLQuantizationType.I8:
            found = "no such tensor" if scale is None else scale.shape
            self.fail(f"tensor {name}", found, "one float")
        rows, columns = self._shape(tensor)

        def read() -> np.ndarray:
            stored = tensor.stored()
            if (stored & stored >> 1 & 0x55).any():
                self.fail(f"{field}: level", 2, "-1, 0 or 1")
            d = float(scale.dequantize()[0])
            levels = stored[None] >> _SHIFTS[:, None, None] & 3
            return _blocks(levels.reshape(-1, columns), self._half(name, d, self._divides))

        return StoredTensor(tensor.name, (_FIELDS * rows, columns), _TYPE, read=read)

    def _rounded(self, tensor: StoredTensor) -> StoredTensor:
        """The weight of floats."""
        if tensor.type is GGMLQuantizationType.I8:
            self.fail(f"tensor {tensor.name}: dtype", "U8", "floats, as quantization_mode says")
        rows, columns = self._shape(tensor)

        def read() -> np.ndarray:
            values = tensor.dequantize()
            d = max(float(np.abs(values).mean(dtype=np.float64)), _LEAST)
            levels = np.clip(np.rint(values * np.float32(1 / d)), -1, 1) + 1
            rounded = _bfloat16(d) if tensor.type is GGMLQuantizationType.BF16 else d
            return _blocks(levels.astype(np.uint8), self._half(tensor.name, rounded, False))

        return StoredTensor(tensor.name, (rows, columns), _TYPE, read=read)

    def _shape(self, tensor: StoredTensor) -> tuple[int, int]:
        if len(tensor.shape) != 2 or tensor.shape[1] % _BLOCK:
            expected = f"a matrix with a multiple of {_BLOCK} columns"
            self.fail(f"tensor {tensor.name}: shape", tensor.shape, expected)
        return tensor.shape[0], tensor.shape[1]

    def _half(self, name: str, scale: float, divides: bool) -> np.float16:
        """d of a scale."""
        with np.errstate(all="ignore"):
            d: np.float16 = np.float16(np.float64(1) / scale if divides else scale)
        if not np.isfinite(d) or d < np.finfo(np.float16).tiny:
            self.fail(f"tensor {name}", scale, "a scale that float16 holds")
        return d


def with_levels(source: Source, of: Fields, mixture: MixtureTraits | None) -> Source:
    """A source whose quantised weights are read.

    Args:
        source: The checked source.
        of: ``config.json``.
        mixture: The mixture of experts, which reads blocks of MXFP4 itself; None for none.

    Raises:
        TamizError: The weights are of another method, or as `TernarySource`.
    """
    if (group := of.group("quantization_config")) is None:
        return source
    expected = "mxfp4" if mixture is not None and mixture.turned else "bitnet"
    if (kind := group.text("quant_method", "")) != expected:
        group.reject("quant_method", kind, expected)
    return TernarySource(source, group) if kind == "bitnet" else source


def _one_of(group: Fields, key: str, default: str, other: str) -> str:
    if (value := group.text(key, default)) not in (default, other):
        group.reject(key, value, f"{default} or {other}")
    return value


def _bfloat16(value: float) -> float:
    bits = int(np.float32(value).view(np.uint32))
    rounded = np.uint32(bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000)
    return float(rounded.view(np.float32))


def _blocks(levels: np.ndarray, d: np.float16) -> np.ndarray:
    """Rows of TQ2_0 of levels plus 1, ``uint8 [N, K]``."""
    rows, columns = levels.shape
    runs = levels.reshape(rows, columns // _BLOCK, 2, _FIELDS, 32) << _SHIFTS[:, None]
    blocks = np.empty((rows, columns // _BLOCK, _BLOCK // _FIELDS + 2), np.uint8)
    blocks[..., :-2] = np.bitwise_or.reduce(runs, axis=3).reshape(*blocks.shape[:2], -1)
    blocks[..., -2:] = np.frombuffer(d.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)
