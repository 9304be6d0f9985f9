"""The measurement of whether a technique pays."""

from pathlib import Path
from typing import Any

import psutil
import pytest

from tamiz.building.search.what_pays import speed_ratio
from tamiz.evaluation import bench
from tamiz.evaluation.bench_process import Child
from tamiz.files.errors import TamizError


def test_equal_bundles_are_about_as_fast(dense_dir: Path) -> None:
    assert 0.2 < speed_ratio(dense_dir, dense_dir, 8) < 5


def test_a_bundle_that_does_not_load_leaves_no_process(
    dense_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Child] = []

    def started(*arguments: Any) -> Child:
        made.append(bundle_child(*arguments))
        return made[-1]

    bundle_child = bench.bundle_child
    monkeypatch.setattr(bench, "bundle_child", started)
    before = processes()
    with pytest.raises(TamizError, match="not a tamiz bundle"):
        speed_ratio(dense_dir, tmp_path, 8)
    assert len(made) == 1
    assert processes() <= before


def processes() -> set[int]:
    """Processes that run a bundle."""
    own = psutil.Process().children()
    live = (child for child in own if child.status() != psutil.STATUS_ZOMBIE)
    return {child.pid for child in live if "tamiz.evaluation.bench_child" in child.cmdline()}
