"""Selective state spaces from Hugging Face's files and GGUF, beside the same model in NumPy."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit.arrays import relative_error
from kit.family_files import write_folder as write_family
from kit.mamba_gguf import write_gguf
from kit.mamba_logits import mamba_logits
from kit.mambas import MAMBAS, TinyMamba, random_mamba, write_folder
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters import safetensors

RELATIVE_ERROR = 5e-6
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 5e-3


def ids(batch: int = 1) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (batch, 33))


def expected_logits(model: TinyMamba) -> np.ndarray:
    return mamba_logits(model, ids(), np.ones_like(ids()))


def logits(bundle: Bundle) -> np.ndarray:
    return Model.load(bundle.path, threads=1).logits(ids())


@pytest.fixture(params=MAMBAS)
def model(request: pytest.FixtureRequest) -> TinyMamba:
    return random_mamba(**MAMBAS[request.param])


def test_logits_equal_the_model_in_numpy(
    tmp_path: Path, plugins: Plugins, model: TinyMamba
) -> None:
    write_folder(tmp_path / "hf", model)
    write_gguf(tmp_path / "tiny.gguf", model)
    for number, path in enumerate((tmp_path / "hf", tmp_path / "tiny.gguf")):
        bundle = export(str(path), tmp_path / f"dense{number}", plugins, "float32")
        assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


def test_only_the_recurrence_is_an_op_of_tamiz(
    tmp_path: Path, plugins: Plugins, model: TinyMamba
) -> None:
    write_folder(tmp_path / "hf", model)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    nodes = [node for node in ir.load(bundle.path / "model.onnx").graph if node.domain]
    count = sum(model.layers.count(kind) for kind in "MB")
    assert [node.op_type for node in nodes] == ["Mamba2"] * count


@pytest.mark.parametrize("kind", [Type.F16, Type.Q8_0], ids=lambda kind: kind.name)
def test_stored_weights_of_a_gguf_are_kept(
    tmp_path: Path, plugins: Plugins, model: TinyMamba, kind: Type
) -> None:
    held = write_gguf(tmp_path / "tiny.gguf", model, kind)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    assert relative_error(logits(bundle), expected_logits(held)) < STORED_ERROR


def test_a_norm_may_come_before_the_gate(tmp_path: Path, plugins: Plugins) -> None:
    model = random_mamba(**MAMBAS["falcon h1, normed"], norm_first=True)
    write_folder(tmp_path / "hf", model)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


@pytest.mark.parametrize("source", ["hf", "gguf"])
def test_attention_of_granite_rotates_where_it_says_so(
    tmp_path: Path, plugins: Plugins, source: str
) -> None:
    model = random_mamba(**MAMBAS["granite 4"], rotary=True)
    path = tmp_path / f"tiny.{source}"
    write_folder(path, model) if source == "hf" else write_gguf(path, model)
    bundle = export(str(path), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


@pytest.mark.parametrize("limit", [math.inf, {"__float__": "Infinity"}])
def test_a_limit_of_the_step_may_be_infinite(
    tmp_path: Path, plugins: Plugins, limit: float | dict[str, str]
) -> None:
    model = random_mamba(**MAMBAS["nemotron h"])
    write_folder(tmp_path / "hf", model, time_step_limit=[0.0, limit])
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


def test_a_limit_of_the_step_is_obeyed(tmp_path: Path, plugins: Plugins) -> None:
    model = random_mamba(**MAMBAS["nemotron h"])
    write_folder(tmp_path / "hf", model, time_step_limit=[0.0, 0.1])
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) > 0.01


@pytest.mark.parametrize("source", ["hf", "gguf"])
def test_the_base_of_rotary_embeddings_of_falcon_h1_is_large(
    tmp_path: Path, plugins: Plugins, source: str
) -> None:
    model = random_mamba(**MAMBAS["falcon h1"], rope_base=1e11)
    path = tmp_path / f"tiny.{source}"
    write_folder(path, model) if source == "hf" else write_gguf(path, model)
    bundle = export(str(path), tmp_path / "dense", plugins, "float32")
    assert relative_error(logits(bundle), expected_logits(model)) < RELATIVE_ERROR


def test_every_linear_is_a_site(tmp_path: Path, plugins: Plugins) -> None:
    model = random_mamba(**MAMBAS["granite 4"])
    write_folder(tmp_path / "hf", model)
    found = survey(export(str(tmp_path / "hf"), tmp_path / "d", plugins, "float32"), plugins)
    assert found.recognised["Attention"] == 1, found.notes
    assert found.recognised["SwiGLU"] == 4, found.notes
    named = {site.id for site in found.sites}
    assert {f"layers.0.mamba.{part}" for part in ("in_proj", "out_proj")} <= named
    assert {f"layers.2.{part}" for part in ("attn_q", "attn_k", "attn_v", "attn_o")} <= named
    assert {f"layers.{n}.ffn_{part}" for n in range(4) for part in ("gate", "up", "down")} <= named


def test_padding_on_the_left_is_no_token(tmp_path: Path, plugins: Plugins) -> None:
    model = random_mamba(**MAMBAS["granite 4"])
    write_folder(tmp_path / "hf", model)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    loaded = Model.load(bundle.path, threads=1)
    mask = np.ones((2, 33), np.int64)
    mask[1, :5] = 0
    positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
    feeds = {"input_ids": ids(2), "attention_mask": mask, "position_ids": positions}
    feeds |= {state.past: state.zeros(2) for state in loaded.states}
    found = loaded.session.run(["logits"], feeds)[0]
    expected = mamba_logits(model, ids(2), mask)
    assert relative_error(found[0], expected[0]) < RELATIVE_ERROR
    assert relative_error(found[1, 5:], expected[1, 5:]) < RELATIVE_ERROR


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("granite 4", {"mamba_n_groups": 3}, "mamba_n_groups: found 3, expected a divisor of the"),
        ("granite 4", {"mamba_d_head": 300}, "mamba_d_head: found 300, expected at most 256 in"),
        ("granite 4", {"mamba_d_state": 7}, "mamba_d_state: found 7, expected an even number up"),
        ("granite 4", {"mamba_d_conv": 17}, "mamba_d_conv: found 17, expected at most 16"),
        ("granite 4", {"layer_types": ["conv"] * 4}, "expected 4 times mamba or linear_attention"),
        ("granite 4", {"layer_types": ["mamba"] * 4}, "expected a layer that attends"),
        ("granite 4", {"time_step_limit": [2, 1]}, "time_step_limit: .* the smaller number first"),
        ("granite 4", {"position_embedding_type": "alibi"}, "found alibi, expected rope, nope or"),
        ("nemotron h", {"hybrid_override_pattern": "M-X*-M-"}, "hybrid_override_pattern: found"),
        ("nemotron h MoE", {"moe_latent_size": 16}, r"moe_latent_size: .*\(a projection around"),
        ("nemotron h", {"mamba_hidden_act": "gelu"}, "mamba_hidden_act: found gelu, expected silu"),
        ("mamba 2", {"hidden_act": "gelu"}, "hidden_act: found gelu, expected silu"),
        ("mamba 2", {"rms_norm": False}, r"rms_norm: .*\(norms with a mean\)"),
        ("mamba 2", {"num_heads": None}, "num_heads: found nothing, expected a positive number"),
        ("falcon h1", {"ssm_multipliers": [1, 2]}, "ssm_multipliers: .* expected 5 positive"),
    ],
)
def test_absurd_fields_are_refused_by_name(tmp_path: Path, name, change, message) -> None:
    write_folder(tmp_path / "hf", random_mamba(**MAMBAS[name]), **change)
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(tmp_path / "hf"), tmp_path)


@pytest.mark.parametrize("listed", [None, [], [4], ["a"], 2])
def test_a_bamba_must_list_layers_that_attend(tmp_path: Path, listed: object) -> None:
    write_family(tmp_path / "hf", "bamba", attn_layer_indices=listed)
    with pytest.raises(TamizError, match=r"attn_layer_indices: .* numbers of layers from 0 to 3"):
        safetensors.export(str(tmp_path / "hf"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn_layer_offset": 9}, "attn_layer_offset: found 9, expected below attn_layer_period"),
        ({"attn_layer_offset": 5}, "attn_layer_offset: found 5, expected below 4"),
        ({"mamba_inner_layernorms": False}, r"mamba_inner_layernorms: .*without norms"),
        ({"expert_layer_period": 3}, "layers.3.feed_forward.gate_proj.weight: found no such"),
    ],
)
def test_absurd_fields_of_jamba_are_refused(tmp_path: Path, change, message) -> None:
    write_family(tmp_path / "hf", "jamba", **change)
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(tmp_path / "hf"), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"state_size": 300}, "state_size: found 300, expected at most 256"),
        ({"conv_kernel": 17}, "conv_kernel: found 17, expected 2 to 16"),
        ({"hidden_act": "gelu"}, "hidden_act: found gelu, expected silu"),
        ({"time_step_rank": 5}, "x_proj.weight: found 36 x 128, expected .*37 x 128"),
        ({"intermediate_size": 64}, "in_proj.weight: found 256 x 64, expected .*128 x 64"),
        ({"rms_norm": False}, r"rms_norm: .*\(norms with a mean\)"),
    ],
)
def test_absurd_fields_of_the_first_version_are_refused(tmp_path: Path, change, message) -> None:
    write_family(tmp_path / "hf", "mamba", **change)
    with pytest.raises(TamizError, match=message):
        safetensors.export(str(tmp_path / "hf"), tmp_path)


def test_sizes_of_the_first_version_may_follow_from_the_width(
    tmp_path: Path, plugins: Plugins
) -> None:
    bundles = []
    for number, changes in enumerate(({}, {"intermediate_size": None, "time_step_rank": "auto"})):
        write_family(tmp_path / f"hf{number}", "mamba", **changes)
        path = str(tmp_path / f"hf{number}")
        bundles.append(export(path, tmp_path / f"dense{number}", plugins, "float32"))
    one, other = map(logits, bundles)
    np.testing.assert_array_equal(one, other)


def test_every_linear_of_the_first_version_is_a_site(tmp_path: Path, plugins: Plugins) -> None:
    write_family(tmp_path / "hf", "falcon mamba")
    found = survey(export(str(tmp_path / "hf"), tmp_path / "d", plugins, "float32"), plugins)
    named = {site.id for site in found.sites}
    parts = ("in", "gate", "dt_in", "b", "c", "dt", "out")
    assert {f"layers.{n}.mamba.{part}_proj" for n in range(4) for part in parts} <= named
