"""The benchmark of batches runs, and stores what it measured part by part."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.engines import batch
from kit.equal_runs import MODELS, build_model
from tamiz.plugins import Plugins

pytestmark = pytest.mark.slow


def test_parts_are_added_to_the_file(plugins: Plugins, tmp_path: Path) -> None:
    bundle, output = build_model(tmp_path, *MODELS["q4_1"], plugins), tmp_path / "batch.json"
    few = ["--prompt", "16", "--steps", "2", "--turns", "2", "--joining", "100"]
    for part in ("speed", "join", "bits"):
        arguments = [str(bundle), "--part", part, *few, "--json", str(output)]
        result = CliRunner().invoke(batch.main, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    results = json.loads(output.read_text())["results"]
    assert list(results["speed"]) == ["alone", "1", "2", "4", "8"]
    assert [found["tokens_read"] for found in results["join"]] == [100]
    assert results["bits"] == {"answers": 8, "equal": 8, "tokens": 32}
