"""The measurement of whether a technique pays."""

import itertools
from pathlib import Path
from typing import Any

import psutil
import pytest

from tamiz.building.search import what_pays
from tamiz.building.search.limit_search import Solution
from tamiz.building.search.solver import Option
from tamiz.building.search.what_pays import (
    Comparer,
    Speedup,
    measure_speedup,
    speedup_of_rounds,
)
from tamiz.evaluation import bench
from tamiz.evaluation.bench_process import Child
from tamiz.files.errors import TamizError


class Clock:
    """Speeds of two bundles, whatever the real clock says."""

    def __init__(self, *ratios: float) -> None:
        self.ratios = itertools.cycle(ratios)
        self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def measure(self) -> Speedup | None:
        return speedup_of_rounds(self.begin, lambda: 100 * next(self.ratios), lambda: 100)


def test_rounds_that_agree_are_a_verdict() -> None:
    clock = Clock(1.04, 1.05, 1.06)
    speedup = clock.measure()
    assert speedup is not None
    assert speedup.faster
    assert (speedup.median, clock.begun) == (1.05, 1)
    slower = Clock(0.9, 0.8).measure()
    assert slower is not None
    assert not slower.faster
    assert slower.high < 1
    same = Clock(0.995, 1.004).measure()
    assert same is not None
    assert not same.faster
    assert same.high > 1


def test_one_disturbed_moment_does_not_decide() -> None:
    """Three rounds of nine are disturbed; more of them give the verdict."""
    clock = Clock(0.4, 0.5, 0.68, *[1.05] * 30)
    speedup = clock.measure()
    assert speedup is not None
    assert speedup.faster
    assert (speedup.median, clock.begun) == (1.05, 2)


def test_on_a_busy_machine_nothing_is_measured() -> None:
    clock = Clock(0.4, 1.1, 2.0)
    assert clock.measure() is None
    assert clock.begun == 5


def solution(seconds: float, size: int) -> Solution:
    return Solution([], Option("model", 0.0, size, seconds), [])


BUSY, FASTER, SLOWER, SAME = None, Speedup(1.1, 1.2, 1.3), Speedup(0.7, 0.8, 0.9), Speedup(1, 1, 1)


@pytest.mark.parametrize(
    ("speedup", "seconds", "size", "by_size", "pays", "words"),
    [
        # predicted slower, for 3 % of the bytes
        (FASTER, 1.05, 97, False, False, "predicted 0.95 × as fast as the best choice without it"),
        (FASTER, 1.05, 97, True, True, "measured 1.20 × as fast as"),
        (SLOWER, 1.05, 97, True, True, "measured 0.80 × as fast as"),
        (SLOWER, 0.9, 97, False, False, "measured 0.80 × as fast as"),
        (SLOWER, 0.9, 100, True, False, "measured 0.80 × as fast as"),
        (SAME, 0.9, 97, False, True, "measured 1.00 × as fast as"),
        (SAME, 0.9, 100, False, False, "measured 1.00 × as fast as"),
        (FASTER, 0.9, 103, False, True, "measured 1.20 × as fast as"),
        (BUSY, 0.8, 100, False, True, "not measured: the machine is busy; predicted 1.25 × as"),
        (BUSY, 1.0, 100, False, False, "not measured: the machine is busy; predicted 1.00 × as"),
        (BUSY, 1.05, 97, True, True, "not measured: the machine is busy; predicted 0.95 × as"),
    ],
)
def test_what_pays(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    speedup: Speedup | None,
    seconds: float,
    size: int,
    by_size: bool,
    pays: bool,
    words: str,
) -> None:
    monkeypatch.setattr(what_pays, "write_candidate", lambda *_: None)
    monkeypatch.setattr(what_pays, "measure_speedup", lambda *_: speedup)
    comparer = Comparer(lambda *_: None, tmp_path, 8, by_size)  # type: ignore[arg-type]
    kept, reason = comparer.compare(solution(seconds, size), solution(1.0, 100), "best")
    assert kept == pays
    assert reason.startswith(words)


def test_two_bundles_run_in_turn(dense_dir: Path) -> None:
    """Whatever the machine does: a speedup, or none on a busy one."""
    speedup = measure_speedup(dense_dir, dense_dir, 8)
    assert speedup is None or 0 < speedup.low <= speedup.median <= speedup.high


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
        measure_speedup(dense_dir, tmp_path, 8)
    assert len(made) == 1
    assert processes() <= before


def processes() -> set[int]:
    """Processes that run a bundle."""
    own = psutil.Process().children()
    live = (child for child in own if child.status() != psutil.STATUS_ZOMBIE)
    return {child.pid for child in live if "tamiz.evaluation.bench_child" in child.cmdline()}
