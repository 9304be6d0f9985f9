"""Reads the imatrix files of llama.cpp: how large the inputs of each weight were on a text.

    GGUF form:    tensors <weight>.in_sum2 (Σ x², one number an input) and <weight>.counts
    legacy form:  entries of a name, the number of calls c, and c · mean x²

The mean of x² of a weight is in_sum2 / counts, or the legacy form's numbers / c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Imatrix
from tamiz_exporters.checked_file import CheckedFile
from tamiz_exporters.gguf_file import GgufFile

_SUMS, _COUNTS = ".in_sum2", ".counts"
#: Bytes of an entry of the legacy form without name and numbers, and of the longest name.
_ENTRY, _NAME = 12, 1 << 16
#: Tensor ids by the weight that reads their input; a fused weight reads one input for several.
_TENSORS = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
    "attn_output": ("attn_o",),
    "ffn_up": ("ffn_up", "ffn_gate"),
    **{name: (name,) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_down")},
}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.(\w+)\.weight")
_EXPERTS = re.compile(r"blk\.\d+\.ffn_\w+_(c?h?exps|shexp)\.weight|blk\.\d+\.ffn_gate_inp\.weight")

#: Mean squares ``[K]`` of a weight's input, and how many tokens or calls they are of.
_Entry = tuple[str, NDArray[np.float32], int]


def read_imatrix(path: Path) -> Imatrix:
    """Reads an imatrix of either form.

    Raises:
        TamizError: The file is damaged, holds other than finite numbers ≥ 0, or is of a mixture of
            experts.
    """
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    means: dict[str, NDArray[np.float32]] = {}
    count = 0
    for name, mean, seen in _gguf(GgufFile(path)) if is_gguf else _legacy(CheckedFile(path, 4)):
        count = max(count, seen)
        for site in _sites(name):
            if site.endswith(".ffn_gate") and "ffn_up" in name:  # its own entry counts more
                means.setdefault(site, mean)
            else:
                means[site] = mean
    return Imatrix(count, means)


def _sites(name: str) -> list[str]:
    """Ids of the sites that read the input of a weight; none for weights that are no sites."""
    if name == "output.weight":
        return ["output"]
    layer = _LAYER.fullmatch(name)
    return [f"layers.{layer[1]}.{tensor}" for tensor in _TENSORS.get(layer[2], ())] if layer else []


def _gguf(file: GgufFile) -> Iterator[_Entry]:
    kind = file.get("general.type", str, "model")
    if kind != "imatrix":
        file.fail("general.type", kind, "imatrix")
    for key, tensor in file.tensors.items():
        if not key.endswith(_SUMS):
            continue
        name = key.removesuffix(_SUMS)
        counts = file.tensors.get(name + _COUNTS)
        if counts is None:
            file.fail(f"tensor {name}{_COUNTS}", "nothing", "the count of the sums")
        if (tensor.type.name, counts.type.name) != ("F32", "F32"):
            file.fail(f"tensor {key}: type", f"{tensor.type.name}", "F32")
        _refuse_experts(file, name, counts.data.size // 4)
        (count,) = counts.data.ravel().view("<f4")
        if not 0 < count < 2.0**53:
            file.fail(f"tensor {name}{_COUNTS}", count, "a positive count")
        sums = tensor.data.ravel().view("<f4")
        yield name, _checked(file, key, sums, float(count)), max(1, round(float(count)))


def _legacy(file: CheckedFile) -> Iterator[_Entry]:
    count = file.number("<i", "entry count")
    room = (file.size - file.offset) // _ENTRY
    if not 0 < count <= room:
        file.fail("entry count", count, f"1 to {room}: this is no imatrix of llama.cpp")
    for number in range(count):
        length = file.number("<i", f"length of name {number}")
        if not 0 < length <= _NAME:
            file.fail(f"length of name {number}", length, f"1 to {_NAME}")
        name = file.text(length, f"name {number}")
        _refuse_experts(file, name, 1)
        calls = file.number("<i", f"{name}: calls")
        if calls <= 0:
            file.fail(f"{name}: calls", calls, "a positive count")
        values = file.number("<i", f"{name}: length")
        if values <= 0:
            file.fail(f"{name}: length", values, "a positive length")
        begin = file.take(4 * values, name)
        sums = np.frombuffer(file.bytes, "<f4", values, begin)
        yield name, _checked(file, name, sums, float(calls)), calls


def _refuse_experts(file: CheckedFile, name: str, matrices: int) -> None:
    if matrices != 1 or _EXPERTS.fullmatch(name):
        what = f"an entry of {matrices} matrices" if matrices != 1 else "a weight of experts"
        file.fail(name, what, "no mixture of experts, whose layers are no sites")


def _checked(
    file: CheckedFile, name: str, sums: NDArray[np.float32], count: float
) -> NDArray[np.float32]:
    """The mean squares from their sums.

    Raises:
        TamizError: One is not finite, or negative.
    """
    with np.errstate(all="ignore"):
        means: NDArray[np.float32] = (sums / np.float64(count)).astype(np.float32)
    wrong = np.flatnonzero(~(np.isfinite(means) & (means >= 0)))
    if len(wrong):
        file.fail(f"{name}[{wrong[0]}]", sums[wrong[0]], "a finite number that is at least 0")
    return means
