"""The benchmark of builds within limits: what it takes from a bundle, and what it measures."""

from pathlib import Path

import gguf
import pytest

from benchmarks.quality import budgets
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.evaluation import windows
from tamiz.planning.goal import Goal
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins, load
from tamiz.survey.export import export
from tamiz.testing.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow


def test_a_build_is_compared_with_the_reference(
    plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", load()).path
    chosen = choose(plugins.techniques())
    goal = Options(goal=Goal(max_kl=0.1, prefer="size"))
    report = build(dense, tmp_path / "within", chosen, plugins, goal)
    build(dense, tmp_path / "stored", chosen, plugins)
    # The tiny model has no room for windows of 1,024 tokens.
    monkeypatch.setattr(windows, "read_windows", lambda *_: [list(range(2, 80))])

    told = budgets.gate(tmp_path / "within")
    assert told["max_kl"] == 0.1
    assert told["own_kl_mean"] == report.gate.result.kl_mean
    assert budgets.gate(tmp_path / "stored") == {}
    assert budgets.size(tmp_path / "within") < budgets.size(tmp_path / "stored")
    found = budgets.losses(dense, [tmp_path / "within"], tmp_path / "text", 1)
    assert found["within"]["kl_mean"] > 0
    assert found["within"]["windows"] == 1
