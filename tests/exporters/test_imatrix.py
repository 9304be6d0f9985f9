"""Imatrix files of llama.cpp, in both forms, whole and damaged."""

import random
import re
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.delta_nets import DELTA_NETS
from kit.family_files import write_gguf as write_family
from kit.imatrix_files import NAMES, known_means, write_gguf, write_legacy
from kit.mamba_gguf import write_gguf as write_mamba
from kit.mambas import MAMBAS, random_mamba
from kit.mutations import mutate_bytes
from tamiz.calibration.imatrix import read_imatrix as read_for
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.imatrix import read_imatrix

MEANS = known_means(2, 8, 12)
MEANS_OF_HEAD = np.arange(1, 9, dtype=np.float32)
WRITERS = pytest.mark.parametrize("write", [write_gguf, write_legacy])


def only(mean: object, name: str = "blk.0.attn_q.weight") -> dict[str, np.ndarray]:
    return {name: np.asarray(mean, np.float32)}


@WRITERS
def test_names_become_sites_and_sums_means(write, tmp_path: Path) -> None:
    found = read_imatrix(write(tmp_path / "i", {**MEANS, "output.weight": MEANS_OF_HEAD}))
    assert found.count == (1024 if write is write_gguf else 2)
    for layer in range(2):
        for tensor, name in NAMES.items():
            mean = found.means[f"layers.{layer}.{tensor}"]
            np.testing.assert_allclose(mean, MEANS[f"blk.{layer}.{name}.weight"], rtol=1e-6)
    np.testing.assert_allclose(found.means["output"], MEANS_OF_HEAD, rtol=1e-6)
    assert len(found.means) == 2 * 7 + 1


@WRITERS
def test_a_fused_weight_is_the_input_of_several_sites(write, tmp_path: Path) -> None:
    means = only([1, 2], "blk.3.attn_qkv.weight") | only([3, 4], "blk.3.ffn_up.weight")
    found = read_imatrix(write(tmp_path / "i", {**means, **only([9], "blk.3.attn_norm.weight")}))
    attention = ("attn_q", "attn_k", "attn_v")
    assert {f"layers.3.{tensor}" for tensor in (*attention, "ffn_up", "ffn_gate")} <= set(
        found.means
    )
    assert found.means["layers.3.ffn_gate"].tolist() == [3, 4]


@pytest.mark.parametrize(
    "name", ["mamba", "jamba", "granite 4 MoE", "lfm2 MoE", "qwen35", "qwen3next"]
)
def test_layers_that_do_not_attend_have_their_sites(
    name: str, tmp_path: Path, plugins: Plugins
) -> None:
    """Every product of a GGUF's layers, with the input that llama.cpp has seen of its weight."""
    path = tmp_path / "tiny.gguf"
    if name in DELTA_NETS:
        tiny_gguf.write(path, tiny_gguf.random_model(**DELTA_NETS[name]))
    elif name in MAMBAS:
        write_mamba(path, random_mamba(**MAMBAS[name]), Type.F32)
    else:
        write_family(path, name)
    means = {
        key: np.full(tensor.shape[-1], 1 + number, np.float32)
        for number, (key, tensor) in enumerate(GgufFile(path).tensors.items())
        if len(tensor.shape) == 2 and "embd" not in key
    }
    surveyed = survey(export(str(path), tmp_path / "dense", plugins, "float32"), plugins)
    found = read_for(write_gguf(tmp_path / "i", means), surveyed, plugins)
    sites = {
        site.id: site
        for site in surveyed.sites
        if site.weight is not None and re.search(r"\.(mamba|linear_attn|conv)\.", site.id)
    }
    assert sites
    assert sites.keys() <= found.means.keys()


@WRITERS
@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_numbers_that_are_no_mean_squares_are_refused(write, value, tmp_path: Path) -> None:
    with pytest.raises(
        TamizError, match=r"\[1\]: found .*, expected a finite number .* at least 0"
    ):
        read_imatrix(write(tmp_path / "i", only([1, value])))


@pytest.mark.parametrize("count", [0.0, -1.0, np.nan, np.inf])
def test_a_count_is_positive(count: float, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match=r"counts: found .*, expected a positive count"):
        read_imatrix(write_gguf(tmp_path / "i", only([1, 2]), count))
    with pytest.raises(TamizError, match="calls: found 0, expected a positive count"):
        read_imatrix(write_legacy(tmp_path / "i", only([1, 2]), 0))


def test_experts_have_means_of_their_own(tmp_path: Path) -> None:
    """The older form does not say how many there are: it has the means of all in one."""
    means = np.arange(1, 33).reshape(4, 8)
    given = only(means, "blk.0.ffn_gate_up_exps.weight") | only([5, 6], "blk.0.ffn_up_shexp.weight")
    given |= only([1, 2, 3], "blk.0.ffn_gate_inp.weight")
    sites = {"layers.0.ffn_gate_exps", "layers.0.ffn_up_exps"}
    found = read_imatrix(write_gguf(tmp_path / "i", given))
    assert set(found.experts) == sites
    assert set(found.means) == {"layers.0.ffn_up", "layers.0.ffn_gate"}
    for of_site in found.experts.values():
        np.testing.assert_allclose(of_site.imatrix, means, rtol=1e-6)
        assert of_site.counts.tolist() == [1024] * 4
    found = read_imatrix(write_legacy(tmp_path / "j", given))
    assert sites < set(found.means)
    np.testing.assert_allclose(found.means["layers.0.ffn_up_exps"], means.ravel(), rtol=1e-6)


def test_an_expert_without_tokens_has_the_means_of_all(tmp_path: Path) -> None:
    """As llama.cpp writes it: the sums and the count of the expert are 0."""
    writer = gguf.GGUFWriter(tmp_path / "i", "")
    writer.add_type("imatrix")
    name = "blk.2.ffn_down_exps.weight"
    sums = np.array([[6, 12], [0, 0], [10, 20]], np.float32)
    writer.add_tensor(f"{name}.in_sum2", sums)
    writer.add_tensor(f"{name}.counts", np.array([[3], [0], [1]], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_imatrix(tmp_path / "i").experts["layers.2.ffn_down_exps"]
    assert found.counts.tolist() == [3, 0, 1]
    np.testing.assert_allclose(found.imatrix, [[2, 4], [4, 8], [10, 20]])


def test_a_model_is_no_imatrix(tiny_gguf: Path, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="type: found model, expected imatrix"):
        read_imatrix(tiny_gguf)
    (tmp_path / "text").write_text("This is a text and no imatrix.")
    with pytest.raises(TamizError, match=r"entry count: found .* this is no imatrix of llama\.cpp"):
        read_imatrix(tmp_path / "text")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(TamizError, match="size: found 0 bytes"):
        read_imatrix(tmp_path / "empty")


def test_sizes_are_held_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "i"
    for data, reason in (
        (struct.pack("<i", 2**31 - 1), "entry count: found 2147483647, expected 1 to 0"),
        (struct.pack("<ii", 1, -5) + bytes(20), "length of name 0: found -5"),
        (struct.pack("<ii", 1, 9) + bytes(8), "name 0: found 8 bytes left in the file, expected 9"),
        (struct.pack("<ii", 1, 1) + b"x" + struct.pack("<ii", 1, -1), "x: length: found -1"),
        (struct.pack("<ii", 1, 1) + b"x" + struct.pack("<ii", 1, 2**30), "expected 4294967296 b"),
    ):
        path.write_bytes(data)
        with pytest.raises(TamizError, match=reason):
            read_imatrix(path)


@WRITERS
def test_a_changed_file_costs_one_sentence(write, tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", MEANS).read_bytes()
    path, refused = tmp_path / "i", 0
    for number in range(300):
        path.write_bytes(mutate_bytes(whole, random.Random(number)))
        error = ""
        try:
            found = read_imatrix(path)
            assert all(np.isfinite(mean).all() for mean in found.means.values())
        except TamizError as raised:
            error = str(raised)
            refused += 1
        assert not error or error.startswith(f"{path}: ")
        assert not error or error.isprintable()
    assert refused > 100


def test_the_hook_reads_it(plugins: Plugins, tmp_path: Path) -> None:
    found = plugins.read_imatrix(write_gguf(tmp_path / "i", MEANS))
    assert found is not None
    assert "layers.1.ffn_down" in found.means
