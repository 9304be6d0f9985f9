"""The command build: where it writes, which decisions it refuses, recipes."""

import json
import os
import sys
from pathlib import Path

import gguf
import pytest

from kit.command_line import ok, refused
from tamiz.planning.recipes import FILE as RECIPES
from tamiz.reporting.report import Report
from tamiz.testing import write_tiny_llama

pytestmark = pytest.mark.slow


def test_build_reports_every_site(tiny_dense: Path, tmp_path: Path) -> None:
    report_path = tmp_path / "report.json"
    report = json.loads(
        ok("build", tiny_dense, "-o", tmp_path / "out", "--report-json", report_path, "--json")
    )
    assert json.loads(report_path.read_text()) == report
    inside = json.loads((tmp_path / "out" / "report.json").read_text())
    assert inside == Report.model_validate_json(json.dumps(report)).without_seconds().as_json()
    planned = json.loads(ok("plan", tiny_dense, "--json"))
    assert report["build"]["policy_hash"] == planned["policy_hash"]
    assert report["totals"]["bytes_after"] == planned["totals"]["bytes"]["after"]
    (attempt,) = report["sites"]["layers.0.attn_q"]["techniques"]
    assert attempt["decision"] == {"applied": True, "reason": "passed the gate"}
    assert attempt["metrics"]["exact"] == 1


def test_build_refuses_a_place_it_must_not_write(tiny_dense: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "diary").touch()
    assert "is not overwritten" in refused("build", tiny_dense, "-o", tmp_path / "mine")
    assert "is the source itself" in refused("build", tiny_dense, "-o", tiny_dense)
    assert "/proc/x/y: cannot be written: No such file" in refused(
        "build", tiny_dense, "-o", "/proc/x/y"
    )
    gone = tmp_path / "gone" / "report.json"
    reason = refused("build", tiny_dense, "-o", tmp_path / "out", "--report-json", gone)
    assert f"{gone}: cannot be written: No such file or directory" in reason
    assert not (tmp_path / "out").exists()


def test_a_report_that_cannot_be_written_is_told_with_the_bundle(
    tiny_dense: Path, tmp_path: Path
) -> None:
    reason = refused("build", tiny_dense, "-o", tmp_path / "out", "--report-json", "/dev/full")
    assert reason.startswith("/dev/full: cannot be written: No space left on device; the bundle ")
    assert json.loads(ok("doctor", tmp_path / "out", "--json"))["checks"]["bundle"]["ok"]


def test_a_source_in_the_target_is_not_lost(
    tiny_dense: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "out")
    mine = tmp_path / "out" / "mine.gguf"
    mine.write_bytes(tiny_gguf.read_bytes())
    assert "lies inside of" in refused("export", mine, "-o", tmp_path / "out")
    assert "lies inside of" in refused("build", tiny_dense, "-o", tiny_dense / "sub")
    assert "mine.gguf is not of the bundle" in refused("build", tiny_dense, "-o", tmp_path / "out")
    assert mine.is_file()


def test_calibrate_then_build_with_a_policy(tiny_dense: Path, tmp_path: Path) -> None:
    text, calibration = tmp_path / "text", tmp_path / "c.safetensors"
    text.write_text("hello " * 2000)
    found = json.loads(ok("calibrate", tiny_dense, "--text", text, "-o", calibration, "--json"))
    assert found["inputs"]["layers.0.ffn_down"] == 96
    assert found["tokens"] == found["windows"] * 256
    policy = tmp_path / "policy.json"
    section = {"block-quant": {"bits": {"down": 8}}}
    policy.write_text(json.dumps({"version": 1, "defaults": {"techniques": section}}))
    planned = json.loads(ok("plan", tiny_dense, "--policy", policy, "--json"))
    arguments = ["--policy", policy, "--calibration", calibration, "--max-dppl", "0.5", "--json"]
    report = json.loads(ok("build", tiny_dense, "-o", tmp_path / "out", *arguments))
    assert report["build"]["policy_hash"] == planned["policy_hash"]
    assert report["build"]["policy_file"] == "policy.json"
    assert report["build"]["policy_version"] == 1
    assert report["gate"]["text"] == "calibration"
    entry = report["sites"]["layers.1.ffn_down"]
    assert entry["techniques"][0]["config"]["bits"] == 8
    assert "Δppl" in (tmp_path / "out" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--max-dppl", "much"], "--max-dppl=much: expected a fraction"),
        (["--max-dppl", "-1"], "expected a fraction"),
        (["--max-dppl", "nan"], "expected a fraction"),
        (["--jobs", "0"], "0 is not in the range"),
        (["--policy", "none.json"], "none.json: cannot be read"),
        (["--calibration", "none"], "none: cannot be read: No such file"),
        (["--from-report", "none", "--block-quant=off"], "--from-report decides everything"),
        (["--from-report", "none"], "none"),
    ],
)
def test_build_refuses_bad_decisions(
    tiny_dense: Path, tmp_path: Path, flags: list[str], reason: str
) -> None:
    assert reason in refused("build", tiny_dense, "-o", tmp_path / "out", *flags)
    assert sorted(os.listdir(tmp_path)) == [tiny_dense.name]


def test_a_missing_cluster_engine_is_told(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    out = tiny_dense.parent / "out"
    told = refused("build", tiny_dense, "-o", out, "--backend", "dask")
    assert told.startswith(
        "--backend=dask: dask is not installed, expected what pip install 'tamiz[dask]' brings"
    )
    assert list(tiny_dense.parent.glob(".out*")) == []
    told = refused("build", tiny_dense, "-o", out, "--backend", "dask", "--jobs", "2")
    assert told == (
        "--jobs has no effect with --backend=dask, as the cluster has its own; "
        "remove --jobs or --backend"
    )


def test_a_scheduler_that_does_not_answer_is_told(tiny_dense: Path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    import dask

    nowhere = {"scheduler-address": "tcp://127.0.0.1:1", "distributed.comm.timeouts.connect": "1s"}
    with dask.config.set(nowhere):
        told = refused("build", tiny_dense, "-o", tiny_dense.parent / "out", "--backend", "dask")
    assert told.startswith("--backend=dask: its cluster does not answer: ")


def test_a_recipe_stands_for_its_flags(tiny_dense: Path) -> None:
    recipes = json.loads(RECIPES.read_text("utf-8"))
    assert list(recipes) == ["exact", "embed", "fast", "long-context", "serve", "small"]
    by_flags = ok("plan", tiny_dense, "--block-quant-scale-bits=8", "--kv-int8", "--json")
    assert ok("plan", tiny_dense, "--recipe=small", "--json") == by_flags
    without = ok("plan", tiny_dense, "--block-quant-scale-bits=8", "--json")
    assert ok("plan", tiny_dense, "--recipe=small", "--kv-int8=off", "--json") == without
    assert ok("plan", tiny_dense, "--recipe=exact", "--json") == ok("plan", tiny_dense, "--json")
    assert "recipe small: --block-quant-scale-bits=8 --kv-int8" in ok(
        "plan", tiny_dense, "--recipe=small"
    )
    listed = ok("help", "recipes")
    assert all(name in listed for name in recipes)
    reason = refused("plan", tiny_dense, "--recipe=fsat")
    assert reason.endswith(
        "expected exact, embed, fast, long-context, serve, small; did you mean 'fast'?"
    )


@pytest.mark.parametrize("name", ["exact", "embed", "fast", "long-context", "serve", "small"])
def test_a_recipe_builds(tiny_dense: Path, tmp_path: Path, name: str) -> None:
    arguments = ["-o", tmp_path / "out", "--recipe", name, "--max-dppl=off"]
    report = json.loads(ok("build", tiny_dense, *arguments, "--json"))
    used = {entry["name"] for site in report["sites"].values() for entry in site["techniques"]}
    default = {"block-quant"}  # packs the weights of a float source
    assert used == default | set(json.loads(RECIPES.read_text("utf-8"))[name]["techniques"])


def test_build_of_a_gguf_in_one_step(tiny_gguf: Path, tmp_path: Path) -> None:
    ok("export", tiny_gguf, "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "two")
    ok("build", tiny_gguf, "-o", tmp_path / "one")
    assert sorted(os.listdir(tmp_path)) == ["dense", "one", "two"]
    for file in sorted((tmp_path / "two").iterdir()):
        assert (tmp_path / "one" / file.name).read_bytes() == file.read_bytes(), file.name


def test_build_of_what_cannot_be_exported_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    assert "bad.gguf" in refused("build", tmp_path / "bad.gguf", "-o", tmp_path / "out")
    assert "no such folder" in refused("build", tmp_path / "dens", "-o", tmp_path / "out")
    assert "lies inside of" in refused("build", tmp_path / "bad.gguf", "-o", tmp_path)
    assert os.listdir(tmp_path) == ["bad.gguf"]


@pytest.mark.parametrize("value", [2**31, -(2**31), 2**63 - 1, 2**200])
def test_whole_numbers_fit_an_op(tiny_dense: Path, tmp_path: Path, value: int) -> None:
    reason = refused(
        "build", tiny_dense, "-o", tmp_path / "out", f"--window-attention-tokens={value}"
    )
    assert f"--window-attention-tokens={value}: expected " in reason
    policy = tmp_path / "policy.json"
    techniques = {"state-pack": {"enable": True, "keep": value}}
    policy.write_text(json.dumps({"version": 1, "defaults": {"techniques": techniques}}))
    reason = refused("build", tiny_dense, "-o", tmp_path / "out", "--policy", policy)
    assert "expected " in reason
    assert not (tmp_path / "out").exists()


def test_a_loss_beside_exact_weights_is_told(tiny_dense: Path, tmp_path: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "exact")
    ok("build", tiny_dense, "-o", tmp_path / "lossy", "--kv-int8", "--max-dppl=off")
    again = ("build", tiny_dense, "--from-report")
    told = ok(*again, tmp_path / "lossy" / "report.json", "-o", tmp_path / "again")
    reason = "the whole model was not measured: the decisions are those of a report"
    assert reason in told.splitlines()
    assert reason not in ok(*again, tmp_path / "exact" / "report.json", "-o", tmp_path / "same")
    for name, shown in (
        ("exact", "unchanged"),
        ("same", "unchanged"),
        ("lossy", "not measured"),
        ("again", "not measured"),
    ):
        page = (tmp_path / name / "report.html").read_text("utf-8")
        assert f"<strong>{shown} <small>" in page, name


def test_a_budget_alone_chooses_formats(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    (tmp_path / "text").write_text("hello " * 4000)
    ok("export", tmp_path / "tiny.gguf", "-o", tmp_path / "ref")
    known = tmp_path / "known"
    ok("calibrate", tmp_path / "ref", "--text", tmp_path / "text", "-o", known)
    build = ("build", tmp_path / "ref", "--calibration", known, "-o")
    told = ok(*build, tmp_path / "out", "--max-dppl=0.5")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["totals"]["bytes_after"] < report["totals"]["bytes_before"]
    assert " of 50 %, mean KL " in told
    assert " ± " in told
    kept = json.loads(ok(*build, tmp_path / "kept", "--json"))
    assert kept["totals"]["bytes_after"] == kept["totals"]["bytes_before"]
