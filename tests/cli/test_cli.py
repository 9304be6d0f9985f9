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

from kit.command_line import ok, refused, tamiz
from tamiz.cli import COMMANDS, LazyGroup
from tamiz.cli._progress import progress_bar
from tamiz.files.bundle import writing
from tamiz.files.errors import NoSpaceError, TamizError
from tamiz.system.cores import logical_cores


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
    assert "Missing argument 'MODEL'" in refused("plan")


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
    assert f"100000 is too many for {logical_cores()} cores, expected at most" in reason


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
    assert "cache: 512 B per token of a sequence" in text
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
        "bits": None,
        "scale_inputs": 32,
        "head_bits": 8,
        "scale_bits": 16,
        "format": None,
        "fit": None,
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
        assert "no exporter reads it, expected a .gguf file" in refused(command, tmp_path)
    assert "not a tamiz bundle" in refused("explain", tmp_path)


def test_what_a_built_bundle_is_good_for(tiny_dense: Path, tmp_path: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "out")
    assert "is a built bundle, expected a dense one" in refused("plan", tmp_path / "out")
    found = ok("inspect", tmp_path / "out")
    assert "block-quant: head_bits 8, scale_bits 16, scale_inputs 32\n" in found


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
    offered, _ = schema["properties"]["bits"]["anyOf"]
    assert offered["enum"] == [4, 8]
    assert "unknown technique 'none'" in refused("schema", "none")


def test_schema_of_a_policy_knows_the_plugins() -> None:
    schema = json.loads(ok("schema", "policy"))
    assert "block-quant" in schema["$defs"]["Techniques"]["properties"]


def test_python_runs_it_as_a_module() -> None:
    command = [sys.executable, "-m", "tamiz", "--version"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("tamiz ")


def test_a_bare_switch_means_on(tiny_dense: Path) -> None:
    by_value = ok("plan", tiny_dense, "--window-attention=on", "--json")
    assert '"window-attention"' in by_value
    assert ok("plan", tiny_dense, "--window-attention", "--json") == by_value
    assert ok("plan", "--window-attention", tiny_dense, "--json") == by_value
    assert ok("plan", "--window-attention", "on", tiny_dense, "--json") == by_value
    off = ok("plan", "--window-attention", "off", tiny_dense, "--json")
    assert off == ok("plan", tiny_dense, "--json")


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
    assert "[integer ≥ 1, ≤ 4096; default: unset]" in words
    assert "[threshold | topk | mass; default: threshold]" in words
    assert "Policies can also set max_keep, mass, first, weighted, center" in words
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
    assert (
        listed.index("  block-quant ") < listed.index("  kwta ") < listed.index("  tensor-train ")
    )
    assert refused("help", "bulid").endswith("did you mean 'build'?")
    assert refused("help", "zzz").endswith("try 'tamiz help'")


def test_a_mistyped_name_gets_a_suggestion(tiny_dense: Path) -> None:
    assert "did you mean 'build'?" in refused("biuld")
    assert "--kwta-block" in refused("plan", tiny_dense, "--kwta-blck=2")
    assert "did you mean 'kwta'?" in refused("schema", "kvta")


def test_without_a_terminal_progress_is_a_line(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.cli._progress.INTERVAL", 0.01)
    result = tamiz("build", tiny_gguf, "-o", tmp_path / "out")
    assert result.exit_code == 0
    lines = result.stderr.splitlines()
    assert lines
    assert all(re.fullmatch(r"\d+ s: .+", line) for line in lines)


def test_only_steps_that_are_counted_have_a_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tamiz.cli._progress.INTERVAL", 0.01)
    monkeypatch.setattr("sys.stderr.isatty", lambda: False)
    told = ""
    with progress_bar() as report:
        for what, total in (("save", 1), ("fit", 3)):
            report(what, 0, total)
            while f": {what}" not in told:
                time.sleep(0.01)
                told += capsys.readouterr().err
    assert ": save\n" in told
    assert ": fit (0 of 3)\n" in told


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
    assert done.stderr.startswith("error: \\u6f22\\x1b[31m: no such file or folder")


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
