"""The key/value filter through build: the graph that comes out, and what its sequences compute."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import tamiz_ops
from kit.decoding import IDS, built, distance, steps
from tamiz.api.cost import Access, Cost
from tamiz.api.site import Site, SiteKind
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.cli import main
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.kv_cache import ExactSequence, SharedSequence
from tamiz.runtime.model import Model
from tamiz.survey.survey import survey
from tamiz_state_pack.kv_config import StatePackConfig
from tamiz_state_pack.kv_filter import effect

pytestmark = pytest.mark.slow

FEW = {"keep": 8, "recent": 8, "density": 1.0}
ALL = {"keep": 1000}


@pytest.mark.parametrize("mode", ["binary", "ternary"])
def test_the_graph_keeps_sketches(plugins: Plugins, tiny_dense: Path, mode: str) -> None:
    fields = {"mode": mode}
    bundle = Bundle.open(built(plugins, tiny_dense, "kv", state_pack=fields))
    model = ir.load(bundle.model)
    inputs = {value.name: value for value in model.graph.inputs}
    outputs = {value.name: value for value in model.graph.outputs}
    assert [name for name in inputs if "sketch" in name] == ["past_layers.sketch"]
    words = 3 if mode == "binary" else 5
    assert list(inputs["past_layers.sketch"].shape)[0::2] == [2, 2, words]
    assert list(outputs["present_layers.sketch"].shape)[0::2] == [2, 2, words]
    signed = [n.metadata_props.get("pkg.tamiz.technique", "") for n in model.graph]
    assert sum("state-pack" in text for text in signed) == 1
    assert bundle.manifest.kv_cache == "shared"


def test_keys_are_centred_with_their_mean(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "kv", state_pack=ALL)
    means = [v for v in ir.load(path / "model.onnx").graph.initializers if v.endswith("key_mean")]
    assert len(means) == 2
    again = built(plugins, tiny_dense, "again", state_pack=ALL)
    assert (path / "model.onnx").read_bytes() == (again / "model.onnx").read_bytes()


def test_keeping_everything_is_exact_bit_for_bit(plugins: Plugins, tiny_dense: Path) -> None:
    exact = Model.load(built(plugins, tiny_dense, "exact"))
    kept = Model.load(built(plugins, tiny_dense, "kv", state_pack=ALL))
    np.testing.assert_array_equal(steps(kept), steps(exact))


def test_prefill_is_exact_and_chosen_keys_beat_recent_ones(
    plugins: Plugins, tiny_dense: Path
) -> None:
    expected = steps(Model.load(built(plugins, tiny_dense, "exact")))

    def error(name: str, **fields: Any) -> float:
        found = steps(Model.load(built(plugins, tiny_dense, name, state_pack={**FEW, **fields})))
        np.testing.assert_array_equal(found[0], expected[0])
        return distance(found[1:], expected[1:])

    recent = error("recent", keep=0, recent=32)
    assert error("binary", keep=24, recent=8) < 0.8 * recent
    assert error("ternary", keep=24, recent=8, mode="ternary") < 0.8 * recent
    assert error("popcnt", keep=24, recent=8, popcnt=True) < 0.9 * recent


def test_both_kv_modes_fused_or_not_choose_the_same_keys(
    plugins: Plugins, tiny_dense: Path
) -> None:
    model = Model.load(built(plugins, tiny_dense, "kv", state_pack=FEW))
    expected = steps(model)
    assert isinstance(model.sequence(), SharedSequence)
    model.shared_cache = False
    assert isinstance(model.sequence(), ExactSequence)
    np.testing.assert_array_equal(steps(model), expected)
    fine = Model.load(built(plugins, tiny_dense, "fine", state_pack=FEW, block_quant=None))
    assert distance(steps(fine), expected) < 1e-3


def test_rewinding_resetting_and_growing_keep_the_sketches_right(
    plugins: Plugins, tiny_dense: Path
) -> None:
    model = Model.load(built(plugins, tiny_dense, "kv", state_pack=FEW))
    expected = steps(model)
    sequence = model.sequence(1)  # grows on the way
    sequence.read(IDS[:60])
    for token in [*IDS[60:90], *IDS[:10]]:
        sequence.step(token)
    sequence.truncate(90)
    rows = [sequence.step(token).copy() for token in IDS[90:]]
    np.testing.assert_array_equal(rows, expected[31:])
    sequence.truncate(0)
    np.testing.assert_array_equal(sequence.read(IDS[:60]), expected[0])
    np.testing.assert_array_equal(sequence.step(IDS[60]), expected[1])


def test_a_full_sequence_says_so(plugins: Plugins, tiny_dense: Path) -> None:
    sequence = Model.load(built(plugins, tiny_dense, "kv", state_pack=FEW)).sequence()
    sequence.read((IDS * 3)[:256])
    with pytest.raises(TamizError, match="does not fit"):
        sequence.step(5)


def test_metrics_tell_the_density(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "kv", state_pack=FEW))
    tamiz_ops.reset_metrics(model.session)
    steps(model, start=119)
    layers = [m for m in tamiz_ops.metrics(model.session).values() if m.get("pack.active")]
    assert len(layers) == 2
    for metrics in layers:
        assert metrics["pack.enabled"] == metrics["pack.active"] == 1
        assert metrics["pack.attended"] == 2 * (8 + 8 + 4)
        assert metrics["pack.visible"] == 2 * 120
        assert metrics["pack.density"] == pytest.approx(20 / 120)
        assert (metrics["pack.mode"], metrics["pack.popcnt"]) == (1, 0)


def test_late_layers_keep_fewer_as_the_plan_says(plugins: Plugins, tiny_dense: Path) -> None:
    fields = {**FEW, "keep_fraction": 0.205, "late_part": 0.5, "late_share": 0.4}
    model = Model.load(built(plugins, tiny_dense, "kv", state_pack=fields))
    tamiz_ops.reset_metrics(model.session)
    steps(model, start=119)
    layers = tamiz_ops.metrics(model.session)
    attended = [layers[f"layers.{layer}"]["pack.attended"] for layer in (0, 1)]
    assert attended == [2 * (25 + 8 + 4), 2 * (10 + 8 + 4)]
    row = 2 * 16 * 4  # key and value of a KV head, float32
    for site, keys in zip(attention_sites(plugins, tiny_dense), attended, strict=True):
        without = Cost(0, 120 * 2 * row, 0)
        cost = effect(site, StatePackConfig(**fields), without, 120)
        assert cost.read - cost.part(Access.INDEX).read == keys * row


def attention_sites(plugins: Plugins, source: Path) -> list[Site]:
    found = survey(Bundle.open(source), plugins).sites
    return [site for site in found if site.kind is SiteKind.ATTENTION]


def test_a_number_of_keys_alone_is_the_same_in_all_layers() -> None:
    few = StatePackConfig(keep=8)
    assert few.limits()[:3] == (8, 0.0, 0.0)
    both = StatePackConfig(keep=8, late_part=0.3)
    assert both.limits() == (8, 0.08, 0.3, 0.625)
    assert StatePackConfig(**few.model_dump()) == few
    assert StatePackConfig().limits().late_part > 0


def test_a_number_of_keys_means_in_a_policy_what_it_means_as_a_flag(tiny_dense: Path) -> None:
    entry = {"techniques": {"state-pack": {"keep": 10}}}
    policy = tiny_dense.parent / "keep.json"
    policy.write_text(json.dumps({"version": 1, "defaults": entry}), "utf-8")

    def planned(*flags: str) -> dict[str, dict[str, Any]]:
        arguments = ["plan", str(tiny_dense), "--context=256", "--json", *flags]
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 0, result.output
        sites = {site["site"]: site for site in json.loads(result.stdout)["sites"]}
        return {name: sites[name] for name in ("layers.0.attention", "layers.1.attention")}

    flag = planned("--state-pack-keep=10")
    assert flag == planned("--state-pack=on", f"--policy={policy}")
    reads = [site["read_per_token"]["after"] for site in flag.values()]
    assert reads[0] == reads[1]
    assert flag != planned("--state-pack=on")


def test_a_policy_gives_layers_settings_of_their_own(plugins: Plugins, tiny_dense: Path) -> None:
    policy = tiny_dense.parent / "policy.json"
    layer = {"techniques": {"state-pack": {"keep": 24}}}
    policy.write_text(json.dumps({"version": 1, "layers": {"0": layer}}), "utf-8")
    out = tiny_dense.parent / "kv"
    choices = choose(plugins.techniques(), {"state-pack": FEW})
    build(tiny_dense, out, choices, plugins, Options(max_dppl=None, policy=policy))
    model = Model.load(out)
    tamiz_ops.reset_metrics(model.session)
    steps(model, start=119)
    layers = tamiz_ops.metrics(model.session)
    attended = [layers[f"layers.{layer}"]["pack.attended"] for layer in (0, 1)]
    assert attended == [2 * (24 + 8 + 4), 2 * (8 + 8 + 4)]


# ---- flags ----


def test_flags_reach_the_configuration(tiny_dense: Path, tmp_path: Path) -> None:
    flags = ["--state-pack=ternary", "--state-pack-eps=0.4", "--state-pack-popcnt=on"]
    out = tmp_path / "kv"
    result = CliRunner().invoke(main, ["build", str(tiny_dense), "-o", str(out), *flags])
    assert result.exit_code == 0, result.output
    config = Bundle.open(out).manifest.techniques["state-pack"]["config"]
    assert (config["mode"], config["eps"], config["popcnt"]) == ("ternary", 0.4, True)


def test_none_switches_it_off(tiny_dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "none"
    result = CliRunner().invoke(
        main, ["build", str(tiny_dense), "-o", str(out), "--state-pack=none"]
    )
    assert result.exit_code == 0, result.output
    assert "state-pack" not in Bundle.open(out).manifest.techniques
    result = CliRunner().invoke(
        main, ["build", str(tiny_dense), "-o", str(out), "--state-pack=none", "--state-pack-keep=9"]
    )
    assert result.exit_code == 2
    assert "--state-pack-keep has no effect with --state-pack=none" in result.output
