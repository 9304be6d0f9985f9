import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest

from kit.command_line import ok, tamiz
from tamiz.cli import COMMANDS, LazyGroup
from tamiz.files.bundle import writing
from tamiz.files.errors import NoSpaceError, TamizError
from tamiz.planning.recipes import FILE as RECIPES
from tamiz.reporting.report import Report


def refused(*arguments: object) -> str:
    """Runs what must be refused; returns the one sentence that says why."""
    result = tamiz(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    assert "Usage: " in ok(command, "--help")


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {"onnx", "onnx_ir", "onnxruntime", "pydantic", "rich", "numpy", "jinja2"}),
        (["plan", "--help"], {"onnx", "onnx_ir", "onnxruntime", "onnxscript", "gguf", "jinja2"}),
        (["build", "--help"], {"onnx", "onnx_ir", "onnxruntime", "onnxscript", "gguf", "jinja2"}),
    ],
)
def test_help_imports_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    program = (
        "import sys\n"
        "from tamiz.cli import main\n"
        f"try: main({arguments})\n"
        "except SystemExit: pass\n"
        f"heavy = {heavy} & set(sys.modules)\n"
        "sys.exit(repr(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command() -> None:
    text = ok("--help")
    assert all(f"\n  {command} " in text for command in COMMANDS)


def test_version() -> None:
    from tamiz import __version__

    assert ok("--version") == f"tamiz {__version__}\n"


@pytest.mark.parametrize(
    ("error", "code", "stderr"),
    [
        (TamizError("file: bad"), 2, "error: file: bad\n"),
        (click.ClickException("bad option"), 2, "error: bad option\n"),
        (
            PermissionError(13, "Permission denied", "out"),
            2,
            "error: out: Permission denied\n",
        ),
        (OSError(28, "No space left on device", "out"), 1, "error: out: No space left on device\n"),
        (NoSpaceError("out: full"), 1, "error: out: full\n"),
        (OSError(12, "Cannot allocate memory"), 1, "error: [Errno 12] Cannot allocate memory\n"),
        (
            MemoryError(),
            1,
            "error: there is not enough memory, or a limit (ulimit -v) is too low\n",
        ),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.Abort(), 130, "interrupted\n"),
    ],
)
def test_errors_become_exit_codes(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, stderr: str
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr("tamiz.plugins.load", fail)
    result = tamiz("plugins")
    assert (result.exit_code, result.stderr.strip()) == (code, stderr.strip())


def test_a_terminated_command_leaves_nothing_half_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def terminated(**_: object) -> None:
        with writing(tmp_path / "out"):
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr("tamiz.plugins.load", terminated)
    assert tamiz("plugins").exit_code == 143
    assert os.listdir(tmp_path) == []
    assert signal.getsignal(signal.SIGTERM) == before


def test_without_a_command_the_help_is_shown() -> None:
    result = tamiz()
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: ")


def test_usage_errors_are_one_sentence(tiny_dense: Path) -> None:
    assert refused("no-such-command").startswith("No such command 'no-such-command'")
    assert refused("plan", tiny_dense, "--no-such-flag").startswith("No such option")
    assert "Missing argument 'DIR'" in refused("plan")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--prompt", "x", "--threads"],
        ["chat", "--threads"],
        ["eval", "--text", "x", "--threads"],
        ["bench", "--threads"],
        ["calibrate", "-o", "x", "--threads"],
        ["build", "-o", "x", "--jobs"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_threads_far_beyond_the_cores_are_refused(tiny_dense: Path, arguments: list[str]) -> None:
    reason = refused(*arguments, "100000", tiny_dense)
    assert f"100000 is too many for {os.cpu_count()} cores, expected at most" in reason


def test_export_writes_a_dense_bundle(tiny_gguf: Path, tmp_path: Path) -> None:
    found = json.loads(ok("export", tiny_gguf, "-o", tmp_path / "out", "--json"))
    assert found["source"]["name"] == "tiny.gguf"
    assert len(found["source"]["sha256"]) == 64
    assert json.loads(ok("doctor", tmp_path / "out", "--json"))["checks"]["bundle"]["ok"]


def test_export_of_what_nothing_reads(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("no model")
    refused("export", tmp_path / "text.gguf", "-o", tmp_path / "out")
    refused("export", tmp_path / "none.gguf", "-o", tmp_path / "out")
    assert os.listdir(tmp_path) == ["text.gguf"]


def test_inspect_shows_sites_within_80_columns(tiny_dense: Path) -> None:
    text = ok("inspect", tiny_dense)
    assert "layers.0-1.ffn_down" in text
    assert "2 Attention" in text
    assert max(map(len, text.splitlines())) <= 100


def test_inspect_json_is_complete(tiny_dense: Path) -> None:
    found = json.loads(ok("inspect", tiny_dense, "--json"))
    sites = {site["id"]: site for site in found["sites"]}
    down = sites["layers.1.ffn_down"]
    assert (down["out_features"], down["in_features"], down["bytes"]) == (64, 96, 64 * 96 * 4)
    assert sites["layers.0.ffn"]["members"] == [
        "layers.0.ffn_gate",
        "layers.0.ffn_up",
        "layers.0.ffn_down",
    ]
    assert found["recognised"]["Attention"] == 2


def test_plan_tells_bytes_and_writes_nothing(tiny_dense: Path) -> None:
    before = sorted(os.listdir(tiny_dense.parent))
    text = ok("plan", tiny_dense)
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(ok("plan", tiny_dense, "--json"))
    assert sorted(os.listdir(tiny_dense.parent)) == before
    sites = {site["site"]: site for site in found["sites"]}
    up = sites["layers.0.ffn_up"]
    assert up["techniques"]["block-quant"]["config"] == {
        "bits": 4,
        "head_bits": 8,
        "scale_bits": 16,
        "mask_block": None,
    }
    # 96 outputs are 6 tiles, 64 inputs 2 groups of 320 bytes
    assert up["bytes"] == {"before": 96 * 64 * 4, "after": 6 * 2 * 320}
    assert sites["tok_embd"]["read_per_token"] == {"before": 64 * 4, "after": 2 * 34}


def test_plan_refuses_a_context_beyond_the_model(tiny_dense: Path) -> None:
    ok("plan", tiny_dense, "--context", 256)
    reason = refused("plan", tiny_dense, "--context", 257)
    assert "context 257 is beyond the model's limit of 256 tokens" in reason


def test_a_field_changes_the_plan(tiny_dense: Path) -> None:
    found = json.loads(ok("plan", tiny_dense, "--block-quant-bits", "8", "--json"))
    sites = {site["site"]: site for site in found["sites"]}
    assert sites["layers.0.ffn_up"]["bytes"]["after"] == 6 * 2 * 544
    off = json.loads(ok("plan", tiny_dense, "--block-quant=off", "--json"))
    assert all(site["techniques"] == {} for site in off["sites"])
    assert off["totals"]["bytes"]["before"] == off["totals"]["bytes"]["after"]


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--block-quant", "maybe"], "'maybe' is not one of 'on', 'off'"),
        (["--block-quant-bits", "5"], "--block-quant-bits=5: expected 4 or 8"),
        (["--block-quant-bits", "four"], "--block-quant-bits=four: expected 4 or 8"),
        (["--block-quant-bits", "NaN"], "expected 4 or 8"),
        (["--block-quant=off", "--block-quant-bits=4"], "has no effect with --block-quant=off"),
        (["--on-conflict", "pray"], "'pray' is not one of 'error', 'drop'"),
    ],
)
@pytest.mark.parametrize("command", ["plan", "build"])
def test_refuses_unknown_values(
    tiny_dense: Path, tmp_path: Path, command: str, flags: list[str], reason: str
) -> None:
    output = ["-o", str(tmp_path / "out")] if command == "build" else []
    assert reason in refused(command, tiny_dense, *output, *flags)
    assert not (tmp_path / "out").exists()


def test_refuses_a_folder_that_is_no_bundle(tmp_path: Path) -> None:
    for command in ("inspect", "plan"):
        assert "no such folder" in refused(command, tmp_path / "none")
        assert "not a tamiz bundle" in refused(command, tmp_path)


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
    assert "/proc/x: No such file" in refused("build", tiny_dense, "-o", "/proc/x/y")
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


def test_what_a_built_bundle_is_good_for(tiny_dense: Path, tmp_path: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "out")
    assert "is a built bundle, expected a dense one" in refused("plan", tmp_path / "out")
    assert "block-quant: bits 4, head_bits 8, scale_bits 16\n" in ok("inspect", tmp_path / "out")


def test_plugins_lists_claims_and_what_is_disabled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "claims weights (exclusive)" in " ".join(ok("plugins").split())
    monkeypatch.setenv("TAMIZ_DISABLE_PLUGINS", "block-quant")
    found = json.loads(ok("plugins", "--json"))["plugins"]
    disabled = [plugin["name"] for plugin in found if plugin["disabled"]]
    assert disabled == ["block-quant"]
    assert "--block-quant" not in ok("build", "--help")


def test_doctor_of_no_folder_is_bad_input(tmp_path: Path) -> None:
    assert "nope' does not exist" in refused("doctor", tmp_path / "nope")


def test_doctor_finds_a_changed_file(tiny_dense: Path) -> None:
    healthy: dict[str, Any] = json.loads(ok("doctor", tiny_dense, "--json"))
    assert healthy["ok"]
    data = tiny_dense / "model.onnx.data"
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    result = tamiz("doctor", tiny_dense, "--json")
    assert result.exit_code == 1
    assert "SHA-256" in json.loads(result.stdout)["checks"]["bundle"]["found"]


def test_schema_of_a_technique() -> None:
    schema = json.loads(ok("schema", "block-quant"))
    assert schema["properties"]["bits"]["enum"] == [4, 8]
    assert "unknown technique 'none'" in refused("schema", "none")


def test_schema_of_a_policy_knows_the_plugins() -> None:
    schema = json.loads(ok("schema", "policy"))
    assert "block-quant" in schema["$defs"]["Techniques"]["properties"]


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


@pytest.mark.parametrize(("backend", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_a_missing_cluster_engine_is_told(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch, backend: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    out = tiny_dense.parent / "out"
    told = refused("build", tiny_dense, "-o", out, "--backend", backend)
    assert told.startswith(
        f"--backend={backend}: {backend} is not installed, expected what"
        f" pip install 'tamiz[{backend}]' brings"
    )
    assert list(tiny_dense.parent.glob(".out*")) == []
    told = refused("build", tiny_dense, "-o", out, "--backend", backend, "--jobs", "2")
    assert told == f"--jobs has no effect with --backend={backend}, the cluster has its own"


def test_a_scheduler_that_does_not_answer_is_told(tiny_dense: Path) -> None:
    pytest.importorskip("distributed", reason="the extra dask is not installed")
    import dask

    nowhere = {"scheduler-address": "tcp://127.0.0.1:1", "distributed.comm.timeouts.connect": "1s"}
    with dask.config.set(nowhere):
        told = refused("build", tiny_dense, "-o", tiny_dense.parent / "out", "--backend", "dask")
    assert told.startswith("--backend=dask: its cluster does not answer: ")


def test_python_runs_it_as_a_module() -> None:
    command = [sys.executable, "-m", "tamiz", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("tamiz ")


def test_a_bare_switch_means_on(tiny_dense: Path) -> None:
    by_value = ok("plan", tiny_dense, "--win-attn=on", "--json")
    assert '"win-attn"' in by_value
    assert ok("plan", tiny_dense, "--win-attn", "--json") == by_value
    assert ok("plan", "--win-attn", tiny_dense, "--json") == by_value
    assert ok("plan", "--win-attn", "on", tiny_dense, "--json") == by_value
    off = ok("plan", "--win-attn", "off", tiny_dense, "--json")
    assert off == ok("plan", tiny_dense, "--json")


def test_a_recipe_stands_for_its_flags(tiny_dense: Path) -> None:
    recipes = json.loads(RECIPES.read_text("utf-8"))
    assert list(recipes) == ["exact", "fast", "long-context", "small"]
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
    assert reason.endswith("expected exact, fast, long-context, small; did you mean 'fast'?")


@pytest.mark.parametrize("name", ["exact", "fast", "long-context", "small"])
def test_a_recipe_builds(tiny_dense: Path, tmp_path: Path, name: str) -> None:
    arguments = ["-o", tmp_path / "out", "--recipe", name, "--max-dppl=off"]
    report = json.loads(ok("build", tiny_dense, *arguments, "--json"))
    used = {entry["name"] for site in report["sites"].values() for entry in site["techniques"]}
    assert used == set(json.loads(RECIPES.read_text("utf-8"))[name]["techniques"])


@pytest.mark.parametrize("command", ["plan", "build"])
def test_help_shows_one_line_per_technique(command: str) -> None:
    text = ok(command, "--help")
    assert "--max-dppl" in text or command == "plan"
    listed = [line for line in text.splitlines() if line.startswith("  --kwta")]
    assert len(listed) == 1
    assert "--kwta-k" not in text


def test_help_of_a_technique_shows_all_settings() -> None:
    text = ok("help", "kwta")
    assert ok("build", "--help-technique", "kwta") == text
    assert ok("help", "--", "--kwta") == text
    words = " ".join(text.split())
    assert "--kwta-block integer ≥ 1, ≤ 64 1 " in words
    assert "--kwta-select threshold | topk | mass threshold" in words
    assert "--kwta-weighted true | false true" in words
    assert "did you mean 'kwta'?" in refused("build", "--help-technique", "kvta")


def test_help_of_a_command_and_of_topics() -> None:
    assert ok("help", "plan") == ok("plan", "--help")
    text = ok("help")
    assert text.startswith(ok("--help"))
    assert "exit-codes" in text
    assert "143" in ok("help", "exit-codes")
    assert "TAMIZ_ISA" in ok("help", "environment")
    listed = ok("help", "techniques")
    sections = [line for line in listed.splitlines() if line.startswith("Techniques, ")]
    kinds = ["recommended", "situational", "experimental"]
    assert sections == [f"Techniques, {kind}:" for kind in kinds]
    assert listed.index("  block-quant ") < listed.index("  kwta ") < listed.index("  tt ")
    assert refused("help", "bulid").endswith("did you mean 'build'?")
    assert refused("help", "zzz").endswith("try 'tamiz help'")


def test_a_mistyped_name_gets_a_suggestion(tiny_dense: Path) -> None:
    assert "did you mean 'build'?" in refused("biuld")
    assert "--kwta-block" in refused("plan", tiny_dense, "--kwta-blck=2")
    assert "did you mean 'kwta'?" in refused("schema", "kvta")


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


def test_without_a_terminal_progress_is_a_line(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.cli._progress.INTERVAL", 0.01)
    result = tamiz("build", tiny_gguf, "-o", tmp_path / "out")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines
    assert all(re.fullmatch(r"\d+ s: .+", line) for line in lines)


def test_a_path_that_is_not_utf8_costs_one_sentence(tiny_dense: Path) -> None:
    for arguments in (["run", b"caf\xe9", "hi"], ["build", b"caf\xe9", b"-o", b"x"]):
        command: list[Any] = [sys.executable, "-m", "tamiz", *arguments]
        done = subprocess.run(command, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: caf\\udce9: is not UTF-8, expected another name\n"


def test_what_the_terminals_encoding_lacks_is_printed_as_its_number(tiny_dense: Path) -> None:
    command = [sys.executable, "-m", "tamiz", "run", "漢\x1b[31m", "hi"]
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("error: \\u6f22\\x1b[31m: no such folder")


@pytest.mark.parametrize("value", [2**31, -(2**31), 2**63 - 1, 2**200])
def test_whole_numbers_fit_an_op(tiny_dense: Path, tmp_path: Path, value: int) -> None:
    reason = refused("build", tiny_dense, "-o", tmp_path / "out", f"--win-attn-tokens={value}")
    assert f"--win-attn-tokens={value}: expected " in reason
    policy = tmp_path / "policy.json"
    techniques = {"state-pack": {"enable": True, "keep": value}}
    policy.write_text(json.dumps({"version": 1, "defaults": {"techniques": techniques}}))
    reason = refused("build", tiny_dense, "-o", tmp_path / "out", "--policy", policy)
    assert "expected " in reason
    assert not (tmp_path / "out").exists()


def test_sigterm_waits_for_the_end_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Native modules crash where an exception breaks off their import."""
    lines = ["import os, signal", "os.kill(os.getpid(), signal.SIGTERM)", "whole = True"]
    (tmp_path / "sends_sigterm.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)

    @click.command("imports")
    def command() -> None:
        importlib.import_module("sends_sigterm")
        time.sleep(60)

    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: command)
    result = tamiz("plan")
    assert result.exit_code == 143
    assert sys.modules["sends_sigterm"].whole
