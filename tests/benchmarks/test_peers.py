"""The comparison with other engines, on a tiny model: what runs, what is skipped and said."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.engines import peers
from kit.rooms import ROOT
from tamiz.evaluation import bench
from tamiz.files.errors import TamizError

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "TOKENS", 3)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 1.0)


def test_ort_int4_runs_and_absent_peers_are_skipped_loudly(
    tiny_dense: Path, tiny_gguf: Path, tmp_path: Path
) -> None:
    report = tmp_path / "peers.json"
    arguments = [tiny_dense, "--dense", tiny_dense, "--gguf", tiny_gguf, "--context", "16"]
    arguments += [
        "--other",
        tiny_dense,
        "--python",
        f"llama.cpp={tmp_path / 'no-python'}",
        "--threads",
        1,
    ]
    arguments += ["--json", report]
    result = CliRunner().invoke(peers.main, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    values = json.loads(report.read_text())["results"]
    assert values["ort-int4"]["ratio"]["decode_tok_s"]["16"] > 0
    assert values["other"]["ratio"]["decode_tok_s"]["16"] > 0
    assert set(values["skipped"]) == {"inputs-8", "llama.cpp", "openvino", "genai"}
    assert "no-python" in values["skipped"]["llama.cpp"]
    assert result.stderr.count("SKIPPED") == 4


def test_a_peer_that_is_not_installed_says_so() -> None:
    script = str(ROOT / "benchmarks/engines/peer_child.py")
    missing = "import sys; sys.modules['onnxruntime_genai'] = None; sys.argv[:] = sys.argv[1:];"
    run = f"{missing} import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    with pytest.raises(TamizError, match=r"genai: .*onnxruntime_genai"):
        bench.Child("genai", [sys.executable, "-c", run, script, "genai", "folder", "1"])


def test_an_unknown_peer_is_refused(tiny_dense: Path) -> None:
    result = CliRunner().invoke(peers.main, [str(tiny_dense), "--python", "vllm=python"])
    assert result.exit_code == 2
    assert "--python vllm=…: expected one of llama.cpp, openvino, genai, other" in result.output
