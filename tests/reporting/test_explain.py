import json
from pathlib import Path
from typing import Any

import gguf
import pytest

from kit.command_line import ok, tamiz
from kit.noisy import noisy
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import Plugin, Plugins, load
from tamiz.testing import write_tiny_llama

SITE = "layers.1.ffn_down"


def built(
    dense: Path, config: dict[str, Any], policy: Any = None, name: str = "out", **options: Any
) -> Path:
    """Builds with the noisy technique; the commands read what comes out without it."""
    loaded = load()
    made = Plugin("noisy", "tests", "tests", "1", techniques=[noisy()])
    plugins = Plugins(loaded.manager, [*loaded.installed, made])
    if policy is not None:
        options["policy"] = dense.parent / "policy.json"
        options["policy"].write_text(json.dumps({"version": 1, **policy}))
    chosen = choose(plugins.techniques(), {"noisy": config})
    build(dense, dense.parent / name, chosen, plugins, Options(**options))
    return dense.parent / name


def explained(bundle: Path, site: str = SITE) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok("explain", bundle, site, "--json"))
    return found


def test_where_every_setting_comes_from(tiny_dense: Path) -> None:
    policy = {"layers": {"1": {"noise": 1.0, "tensors": {"ffn_down": {"noise": 0.002}}}}}
    bundle = built(tiny_dense, {"noise": 0.001, "worse": ""}, policy, max_dppl=None)
    entry = explained(bundle)["techniques"][0]
    assert entry["config"]["noise"] == 0.002
    origins = {
        "noise": "layers[1].tensors[ffn_down]",
        "worse": "requested",
        "seconds": "default",
    }
    assert entry["config_from"] == origins
    assert explained(bundle, "layers.0.ffn_up")["techniques"][0]["config_from"]["noise"] == (
        "requested"
    )
    assert explained(bundle, "output")["techniques"][0]["config_from"]["bits"] == "default"
    text = ok("explain", bundle, SITE)
    assert "layers[1].tensors[ffn_down]" in text
    assert max(map(len, text.splitlines())) <= 100


def test_every_key_of_the_policy_has_its_place(tiny_dense: Path) -> None:
    policy = {
        "defaults": {"gating": {"min_mean": 0.1, "metric": "cos_w"}, "strip": True},
        "layers": {"1": {"gating": {"min_mean": {"down": 0.2}}}},
    }
    found = explained(built(tiny_dense, {"noise": 0.001}, policy, max_dppl=None))
    assert found["resolved"]["policy_from"] == {
        "gating.min_mean.down": "layers[1]",
        "gating.metric": "defaults",
        "strip": "defaults",
    }
    assert found["gating"]["min_mean"] == 0.2


def test_what_was_tried_and_what_autotune_chose(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 9.0}, autotune=True, max_dppl=None)
    found = explained(bundle)
    assert [a["passed"] for a in found["autotune"]["attempts"]] == [False, False, True]
    assert found["techniques"][0]["config_from"]["noise"] == "autotune"
    text = ok("explain", bundle, SITE)
    assert "noise 0.5" in text
    assert "gate passed: cos_w in place of cos_xw" in text


def test_what_was_backed_off(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 3.0}, {"defaults": {"gating": {}}}, max_dppl=1e-4)
    found = explained(bundle)
    assert found["backed_off"]
    assert all(SITE in trial["refused"] for trial in found["backed_off"])
    assert found["decision"]["applied"] == ["block-quant"]
    assert "backed off with" in ok("explain", bundle, SITE)


def test_a_refused_fit_tells_why(tiny_dense: Path) -> None:
    text = ok("explain", built(tiny_dense, {"noise": 1.0}), SITE)
    assert "noisy: refused: rel_l2 is" in text
    assert "block-quant: passed the gate" in text


def test_notes_of_passes_are_told_at_their_site(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 0.001}, max_dppl=None)
    report = json.loads((bundle / "report.json").read_text())
    notes = report["notes"]
    node = report["sites"][SITE]["node"]
    assert explained(bundle)["notes"] == [note for note in notes if note["node"] == node]
    assert any(note["pass_name"] in ok("explain", bundle) for note in notes)


def test_the_overview_folds_layers(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 1e-4})
    text = ok("explain", bundle)
    assert "layers.0-1.ffn_down" in text
    assert "whole-model gate: limit 2 % perplexity, measured Δppl " in text
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(ok("explain", bundle, "--json"))
    assert {site["site"] for site in found["sites"]} >= {SITE, "output"}


@pytest.mark.parametrize(
    ("site", "reason"),
    [("layers.1.ffn_dwn", "did you mean 'layers.1.ffn_down'?"), ("?", "lists them")],
)
def test_a_site_that_does_not_exist(tiny_dense: Path, site: str, reason: str) -> None:
    result = tamiz("explain", built(tiny_dense, {"noise": 0.001}, max_dppl=None), site)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_bundles_without_a_complete_report(tiny_dense: Path) -> None:
    assert "expected a built one" in tamiz("explain", tiny_dense).stderr
    bundle = built(tiny_dense, {"noise": 0.001}, max_dppl=None)
    report = json.loads((bundle / "report.json").read_text())
    size = (bundle / "report.json").stat().st_size
    del report["sites"]
    (bundle / "report.json").write_text(json.dumps(report).ljust(size))
    result = tamiz("explain", bundle)
    assert result.exit_code == 2
    assert "lacks the key 'sites'" in result.stderr


def test_equal_bundles(tiny_dense: Path) -> None:
    one = built(tiny_dense, {"noise": 0.001}, name="one", max_dppl=None)
    two = built(tiny_dense, {"noise": 0.001}, name="two", max_dppl=None)
    assert ok("diff", one, two) == "equal\n"
    found = json.loads(ok("diff", one, two, "--json"))
    assert found["equal"]
    assert found["bytes"]["a"] == found["bytes"]["b"]


def test_bundles_that_differ_at_one_site(tiny_dense: Path) -> None:
    policy = {"layers": {"1": {"tensors": {"ffn_down": {"noise": 0.002}}}}}
    one = built(tiny_dense, {"noise": 0.001}, name="one", max_dppl=None)
    two = built(tiny_dense, {"noise": 0.001}, policy, name="two", max_dppl=None)
    result = tamiz("diff", one, two, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert list(found["sites"]) == [SITE]
    noises = [found["sites"][SITE][side]["techniques"]["noisy"]["noise"] for side in "ab"]
    assert noises == [0.001, 0.002]
    assert found["ops"] == {}
    assert "model.onnx.data" in found["files"]
    text = tamiz("diff", one, two).stdout
    assert "noise 0.001" in text
    assert "noise 0.002" in text


def test_a_built_bundle_differs_from_its_dense_one(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 3.0})
    result = tamiz("diff", tiny_dense, bundle, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["ops"]["tamiz.Attention"] == {"a": None, "b": 2}
    assert found["nodes"]["b"] < found["nodes"]["a"]
    text = tamiz("diff", tiny_dense, bundle).stdout
    assert "refused: noisy" in text
    assert max(map(len, text.splitlines())) <= 100


def test_limits_of_divergence_are_compared(tmp_path: Path) -> None:
    one, two, source = tmp_path / "one", tmp_path / "two", tmp_path / "tiny.gguf"
    write_tiny_llama(source, gguf.GGMLQuantizationType.Q8_0)
    ok("export", source, "-o", tmp_path / "dense")
    (tmp_path / "text").write_text("hello " * 2000)
    known = ("--text", tmp_path / "text", "--windows", 8, "-o", tmp_path / "known")
    ok("calibrate", tmp_path / "dense", *known)
    given = ("build", tmp_path / "dense", "--calibration", tmp_path / "known", "-o")
    ok(*given, one, "--max-kl=0.002")
    ok(*given, two, "--max-kl=0.5")
    found = json.loads(tamiz("diff", one, two, "--json").stdout)
    assert found["gate"]["max_kl"] == {"a": 0.002, "b": 0.5}
    a, b = (side["kl_mean"] for side in found["gate"]["result"].values())
    text = tamiz("diff", one, two).stdout
    assert "whole-model gate, max_kl:\n  A: 0.002\n  B: 0.5\n" in text
    assert f"whole-model gate, result:\n  A: mean KL {a}\n  B: mean KL {b}\n" in text


def test_a_program_that_cannot_be_read(tiny_dense: Path) -> None:
    bundle = built(tiny_dense, {"noise": 3.0})
    model = (bundle / "model.onnx").read_bytes()
    (bundle / "model.onnx").write_bytes(model.replace(b"SwiGLU", b"SwiGLX"))
    result = tamiz("diff", tiny_dense, bundle)
    assert result.exit_code == 2
    assert "fused: program line 13: 'SwiGLX' is not an op that can be fused" in result.stderr
