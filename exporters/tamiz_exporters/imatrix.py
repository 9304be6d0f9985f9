"""Reads the imatrix files of llama.cpp: how large the inputs of each weight were on a text.

    GGUF form:    tensors <weight>.in_sum2 (Σ x², one number an input) and <weight>.counts
    legacy form:  entries of a name, the number of calls c, and c · mean x²

The mean of x² of a weight is in_sum2 / counts, or the legacy form's numbers / c. A weight of E
experts has E · K numbers, and in the GGUF form a count for each: tokens that took the expert.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tamiz.api import ExpertInputs, Imatrix
from tamiz_exporters.checked_file import CheckedFile
from tamiz_exporters.gguf_file import GgufFile

_SUMS, _COUNTS = ".in_sum2", ".counts"
#: Bytes of an entry of the legacy form without name and numbers, and of the longest name.
_ENTRY, _NAME = 12, 1 << 16
#: Sites of a layer by the weight that reads their input; a fused weight reads one for several.
_TENSORS = {
    "attn_qkv": ("attn_q", "attn_k", "attn_v", "linear_attn.in_proj_qkv"),
    "attn_output": ("attn_o",),
    "ffn_up": ("ffn_up", "ffn_gate"),
    **{name: (name,) for name in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_down")},
    "ffn_up_shexp": ("ffn_up", "ffn_gate"),
    "ffn_gate_shexp": ("ffn_gate",),
    "ffn_down_shexp": ("ffn_down",),
    # Of convolutions, state spaces and gated delta nets.
    "shortconv.in_proj": tuple(f"conv.in_proj.{part}" for part in range(3)),
    "shortconv.out_proj": ("conv.out_proj",),
    "attn_gate": ("linear_attn.in_proj_z",),
    "ssm_in": (
        *("mamba.in_proj", "mamba.gate_proj"),
        *("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"),
    ),
    "ssm_x": ("mamba.dt_in_proj", "mamba.b_proj", "mamba.c_proj"),
    "ssm_dt": ("mamba.dt_proj",),
    "ssm_beta": ("linear_attn.in_proj_b",),
    "ssm_alpha": ("linear_attn.in_proj_a",),
    "ssm_ba": ("linear_attn.in_proj_b", "linear_attn.in_proj_a"),
    "ssm_out": ("mamba.out_proj", "linear_attn.out_proj"),
}
#: The same of experts.
_OF_EXPERTS = {
    "ffn_gate_up_exps": ("ffn_gate_exps", "ffn_up_exps"),
    **{name: (name,) for name in ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")},
}
_LAYER = re.compile(r"blk\.(0|[1-9]\d{0,5})\.([\w.]+)\.weight")

#: Sums of squares ``[M, K]`` of the inputs of a weight's M matrices, and how many tokens or calls
#: each is of, ``[M]``.
_Entry = tuple[str, NDArray[np.float64], NDArray[np.float64]]


def read_imatrix(path: Path) -> Imatrix:
    """Reads an imatrix of either form.

    Raises:
        TamizError: The file is damaged, or holds other than finite numbers ≥ 0.
    """
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    means: dict[str, NDArray[np.float32]] = {}
    experts: dict[str, ExpertInputs] = {}
    count = 0
    for name, sums, counts in _gguf(GgufFile(path)) if is_gguf else _legacy(CheckedFile(path, 4)):
        if len(counts) == 1:
            count = max(count, round(counts[0]))
            mean = (sums[0] / counts[0]).astype(np.float32)
            for site in _sites(name, _TENSORS | _OF_EXPERTS):
                if site.endswith(".ffn_gate") and "ffn_up" in name:  # its own entry counts more
                    means.setdefault(site, mean)
                else:
                    means[site] = mean
        else:
            for site in _sites(name, _OF_EXPERTS):
                experts[site] = ExpertInputs.of(counts, sums)
    return Imatrix(max(1, count), means, experts)


def _sites(name: str, tensors: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Ids of the sites that read the input of a weight; none for weights that are no sites."""
    if name == "output.weight":
        return ["output"]
    layer = _LAYER.fullmatch(name)
    return [f"layers.{layer[1]}.{tensor}" for tensor in tensors.get(layer[2], ())] if layer else []


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
        of_each = counts.data.ravel().view("<f4").astype(np.float64)
        wrong = ~((of_each >= 0) & (of_each < 2.0**53))
        if wrong.any() or not of_each.any():
            found = of_each[wrong][0] if wrong.any() else 0.0
            file.fail(f"tensor {name}{_COUNTS}", found, "a positive count")
        sums = tensor.data.ravel().view("<f4")
        yield name, _checked(file, key, sums, of_each), of_each


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
        calls = file.number("<i", f"{name}: calls")
        if calls <= 0:
            file.fail(f"{name}: calls", calls, "a positive count")
        values = file.number("<i", f"{name}: length")
        if values <= 0:
            file.fail(f"{name}: length", values, "a positive length")
        begin = file.take(4 * values, name)
        sums = np.frombuffer(file.bytes, "<f4", values, begin)
        of_each = np.array([float(calls)])
        yield name, _checked(file, name, sums, of_each), of_each


def _checked(
    file: CheckedFile, name: str, sums: NDArray[np.float32], counts: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Sums of squares ``[M, K]``.

    Raises:
        TamizError: There are not as many for each count, or a mean is not finite, or negative.
    """
    if len(sums) % len(counts):
        file.fail(f"{name}: numbers", len(sums), f"a multiple of the {len(counts)} counts")
    with np.errstate(all="ignore"):
        rows = sums.astype(np.float64).reshape(len(counts), -1)
        means = (rows / np.where(counts > 0, counts, 1)[:, None]).astype(np.float32).ravel()
    wrong = np.flatnonzero(~(np.isfinite(means) & (means >= 0)))
    if len(wrong):
        file.fail(f"{name}[{wrong[0]}]", sums[wrong[0]], "a finite number that is at least 0")
    return rows
