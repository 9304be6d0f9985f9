"""Export that keeps a GGUF's blocks: the same bits, the same logits, sites, exact builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import tiny_gguf
from kit.arrays import relative_error
from kit.convolutions import convolves
from kit.gguf_blocks import HALVES
from kit.latents import LATENTS, attention_linears, latent_of
from kit.mixtures import MIXTURES, dense_blocks, mixed_layers
from tamiz.api.dense import replace_weight
from tamiz.api.linear import linear_at, weight_array
from tamiz.building.build import build
from tamiz.cli import main
from tamiz.files.bundle import DATA, Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters import gguf
from tamiz_exporters.gguf_file import GgufFile

pytestmark = pytest.mark.slow

#: Activations are quantised to 16 bits in groups of 32. Those of gpt-oss reach up to 7 · 8 in a
#: group beside small ones.
RELATIVE_ERROR, OF_GPT_OSS = 5e-4, 2e-3
#: Differences in the scores of the router move the weights of DeepSeek's experts.
OF_DEEPSEEK = 2e-3

MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama, biases and a head": {"biases": True, "tied": False},
    "qwen3": {"architecture": "qwen3", "head_dim": 32, "rotary_dim": 32},
    **MIXTURES,
    **LATENTS,
    "arcee": {"architecture": "arcee"},
    "bitnet": {"architecture": "bitnet"},
    "smollm3": {"architecture": "smollm3", "layers": 4},
    "lfm2": {"architecture": "lfm2", "layers": 4},
    "gemma2": {"architecture": "gemma2", "layers": 3, "window": 8, "soft_caps": (2.0, 3.0)},
    "gemma3": {"architecture": "gemma3", "layers": 7, "window": 8},
}
#: Of a super-block's width.
WIDE: dict[str, Any] = {"hidden": 256, "ffn": 512, "heads": 4, "head_dim": 64, "rotary_dim": 64}
SUPER_BLOCKS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K]
#: Codebooks of vectors.
GRIDS = [Type.IQ1_S, Type.IQ1_M, Type.IQ2_XXS, Type.IQ2_XS, Type.IQ2_S, Type.IQ3_XXS, Type.IQ3_S]
#: Types whose blocks are shorter than those of the format that holds them, where gguf-py has them.
SCALED = {"NVFP4": "nvfp4", "Q1_0": "affine2_128h"}
KINDS = [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1]


def exported(
    folder: Path, plugins: Plugins, model: tiny_gguf.TinyModel, kind: Type = Type.Q5_0
) -> tuple[tiny_gguf.TinyModel, Bundle]:
    held = tiny_gguf.write(folder / "tiny.gguf", model, kind)
    return held, export(str(folder / "tiny.gguf"), folder / "reference", plugins)


def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (1, 33))


def expected_logits(model: tiny_gguf.TinyModel) -> np.ndarray:
    mask, positions = np.ones_like(ids()), np.arange(33)[None]
    return tiny_gguf.logits(model, ids(), mask, positions)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_model_in_numpy(tmp_path, plugins, name, kind) -> None:
    held, bundle = exported(tmp_path, plugins, tiny_gguf.random_model(**MODELS[name]), kind)
    assert bundle.manifest.weights == "stored"
    found = Model.load(bundle.path, threads=1).logits(ids())
    bound = OF_GPT_OSS if name == "gpt-oss" else RELATIVE_ERROR
    bound = OF_DEEPSEEK if held.architecture == "deepseek2" else bound
    assert relative_error(found, expected_logits(held)) < bound


@pytest.mark.parametrize("kind", [*KINDS, *SUPER_BLOCKS, *GRIDS], ids=lambda kind: kind.name)
def test_weights_of_sites_are_the_dequantised_ones_bit_for_bit(tmp_path, plugins, kind) -> None:
    model = tiny_gguf.random_model(tied=False, **({} if kind in KINDS else WIDE))
    held, bundle = exported(tmp_path, plugins, model, kind)
    found = survey(bundle, plugins)
    nodes = {node.name: node for node in found.model.graph}
    sites = [site for site in found.sites if site.weight is not None]
    assert {site.weight for site in sites} == {n for n, w in held.weights.items() if w.ndim == 2}
    for site in sites:
        assert site.format == kind.name.lower()
        rows = weight_array(linear_at(nodes[site.node]), site)
        np.testing.assert_array_equal(rows, held.weights[site.weight], site.id)


@pytest.mark.parametrize("kind", [kind for kind in Type if kind.name in SCALED])
def test_types_of_shorter_blocks_keep_their_values(tmp_path, plugins, kind) -> None:
    held, bundle = exported(tmp_path, plugins, tiny_gguf.random_model(tied=False, **WIDE), kind)
    found = survey(bundle, plugins)
    nodes = {node.name: node for node in found.model.graph}
    sites = [site for site in found.sites if site.weight is not None]
    assert {site.format for site in sites} == {SCALED[kind.name]}
    for site in sites:
        rows = weight_array(linear_at(nodes[site.node]), site)
        np.testing.assert_array_equal(rows, held.weights[site.weight], site.id)
    got = Model.load(bundle.path, threads=1).logits(ids())
    assert relative_error(got, expected_logits(held)) < RELATIVE_ERROR
    floats = export(str(tmp_path / "tiny.gguf"), tmp_path / "floats", plugins, "float32")
    got = Model.load(floats.path, threads=1).logits(ids())
    assert relative_error(got, expected_logits(held)) < RELATIVE_ERROR


@pytest.mark.parametrize("name", MODELS)
def test_everything_is_recognised(tmp_path, plugins, name) -> None:
    held, bundle = exported(tmp_path, plugins, tiny_gguf.random_model(**MODELS[name]))
    found = survey(bundle, plugins)
    blocks, mixed = dense_blocks(held), mixed_layers(held)
    of_block = 2 if held.architecture in ("arcee", "plm") else 3
    attending = sum(not convolves(held, layer) for layer in range(held.layers))
    linears = attention_linears(held) * held.layers + of_block * blocks + 1
    assert found.recognised["BlockMatMul"] == linears
    assert found.recognised["Attention"] == attending
    assert found.recognised["SwiGLU"] == blocks + mixed
    assert found.notes == ()
    attentions = attending if latent_of(held) is None else 0
    assert len(found.sites) == linears + 1 + attentions + blocks + 3 * mixed


def test_the_bundle_is_about_as_long_as_its_source(tmp_path, plugins) -> None:
    model = tiny_gguf.random_model(hidden=256, ffn=1024, head_dim=64, rotary_dim=64)
    _, bundle = exported(tmp_path, plugins, model)
    data = (bundle.path / "model.onnx.data").stat().st_size
    assert data < 1.06 * (tmp_path / "tiny.gguf").stat().st_size


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_build_without_requests_keeps_the_weights_and_scores_nothing(
    tmp_path, plugins, name
) -> None:
    held, bundle = exported(tmp_path, plugins, tiny_gguf.random_model(**MODELS[name]))
    report = build(bundle.path, tmp_path / "built", choose(plugins.techniques()), plugins)
    assert report.totals.replaced == 0
    assert report.gate.skipped == "nothing that was applied loses anything"
    assert (tmp_path / "built" / DATA).read_bytes() == (bundle.path / DATA).read_bytes()
    model = Model.load(tmp_path / "built", threads=1)
    assert model.shared_cache
    assert relative_error(model.logits(ids()), expected_logits(held)) < RELATIVE_ERROR


def test_a_requested_technique_replaces_packed_weights(tmp_path, plugins) -> None:
    _, bundle = exported(tmp_path, plugins, tiny_gguf.random_model(), Type.Q4_1)
    wanted = choose(plugins.techniques(), {"block-quant": {}})
    report = build(bundle.path, tmp_path / "built", wanted, plugins)
    totals = report.totals
    # Embedding and head have 8 bits by default, which do not hold 4 bits with a minimum.
    assert (totals.replaced, totals.exact) == (totals.sites, totals.sites - 2)
    assert (tmp_path / "built" / DATA).read_bytes() != (bundle.path / DATA).read_bytes()


def test_onnx_reads_a_bundle_and_its_reference_and_each_outlives_the_other(
    tmp_path, plugins
) -> None:
    """onnx refuses weights in a file that has a second name."""
    held, bundle = exported(tmp_path, plugins, tiny_gguf.random_model())
    build(bundle.path, tmp_path / "built", choose(plugins.techniques()), plugins)
    for folder in (bundle.path, tmp_path / "built"):
        onnx.load(folder / "model.onnx")
    exported(tmp_path, plugins, tiny_gguf.random_model(seed=5))  # writes over the reference
    Bundle.open(tmp_path / "built").verify()
    logits = Model.load(tmp_path / "built", threads=1).logits(ids())
    assert relative_error(logits, expected_logits(held)) < RELATIVE_ERROR


def test_the_tokenizer_is_one_line(tmp_path, plugins) -> None:
    _, bundle = exported(tmp_path, plugins, tiny_gguf.random_model())
    assert (bundle.path / "tokenizer.json").read_text("utf-8").count("\n") == 1


def _unchanged(weight: np.ndarray, config: object) -> np.ndarray:
    return weight


@pytest.mark.parametrize("biases", [False, True])
def test_dense_weights_may_take_the_place_of_packed_ones(tmp_path, plugins, biases) -> None:
    model = tiny_gguf.random_model(biases=biases)
    held, bundle = exported(tmp_path, plugins, model)
    same = replace_weight("same", "Changes nothing.", _unchanged)
    chosen = [Choice.of(same, {}, requested=True)]
    report = build(bundle.path, tmp_path / "built", chosen, plugins)
    assert report.totals.replaced == report.totals.exact == 7 * model.layers
    found = Model.load(tmp_path / "built", threads=1).logits(ids())
    assert relative_error(found, expected_logits(held)) < RELATIVE_ERROR


def test_float32_is_an_option(tmp_path) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), Type.Q8_0)
    command = ["export", str(tmp_path / "tiny.gguf"), "-o", str(tmp_path / "dense")]
    with pytest.raises(SystemExit) as ended:
        main([*command, "--dtype", "float32"])
    assert ended.value.code == 0
    assert Bundle.open(tmp_path / "dense").manifest.weights == "float32"
    model = ir.load(tmp_path / "dense" / "model.onnx")
    assert {node.domain for node in model.graph} == {""}


def test_a_dtype_that_the_exporter_has_not_is_refused(tmp_path, plugins, tiny_dense) -> None:
    with pytest.raises(TamizError, match="found --dtype int8, expected stored or float32"):
        export(str(tiny_dense / "model.onnx"), tmp_path / "out", plugins, "int8")


@given(
    place=st.floats(0, 1),
    flips=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 255)), min_size=1, max_size=4),
    kind=st.sampled_from(SUPER_BLOCKS),
)
@settings(max_examples=25, deadline=None)
def test_a_damaged_file_is_exported_or_refused_in_one_sentence(
    tmp_path_factory, place, flips, kind
) -> None:
    """Bytes of the tensors' names, dims, types and offsets, or of their blocks, are replaced."""
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(layers=1, **WIDE), kind)
    content = bytearray(path.read_bytes())
    infos = content.index(b"token_embd.weight")
    start = infos if place < 0.7 else int(infos + (place - 0.7) / 0.3 * (len(content) - infos))
    for offset, byte in flips:
        content[min(start + offset, len(content) - 1)] = byte
    path.write_bytes(content)
    (folder / "out").mkdir()
    refusal = f"{path}: "
    try:
        gguf.export(str(path), folder / "out")
    except TamizError as error:
        refusal = str(error)
    assert refusal.startswith(f"{path}: ")
    assert "\n" not in refusal


@pytest.mark.parametrize("half", [0x7E00, 0x7C00, 0xFC00], ids=["NaN", "inf", "-inf"])
@pytest.mark.parametrize("kind", SUPER_BLOCKS, ids=lambda kind: kind.name)
def test_factors_of_super_blocks_that_are_not_finite_are_refused(tmp_path, kind, half) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(layers=1, **WIDE), kind)
    data = GgufFile(path).tensors["blk.0.ffn_down.weight"].data
    content = bytearray(path.read_bytes())
    at = content.index(data.tobytes()) + HALVES[kind.name.lower()][0]
    content[at : at + 2] = half.to_bytes(2, "little")
    path.write_bytes(content)
    with pytest.raises(TamizError, match=r"tensor blk\.0\.ffn_down\.weight: d of output 0"):
        gguf.export(str(path), tmp_path)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_scales_that_are_not_finite_are_refused(tmp_path, plugins) -> None:
    model = tiny_gguf.random_model()
    weight = model.weights["model.layers.1.mlp.up_proj.weight"].copy()
    weight[3, 5] = np.inf
    model = replace(model, weights={**model.weights, "model.layers.1.mlp.up_proj.weight": weight})
    with pytest.raises(TamizError, match=r"tensor blk\.1\.ffn_up\.weight: scales of"):
        exported(tmp_path, plugins, model, Type.Q8_0)
    assert not (tmp_path / "reference").exists()
