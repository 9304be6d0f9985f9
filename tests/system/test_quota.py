"""Quotas of processor time, of cgroup files as Linux and Docker lay them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit.cgroup_files import made
from tamiz.runtime.session import session_options
from tamiz.system import cores
from tamiz.system.quota import cpu_quota


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0, id="container, version 2"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, None, id="no limit, version 2"),
        pytest.param("0::/\n", {}, None, id="the root group of a machine"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "50000 100000"}, 0.5, id="half a processor"),
        pytest.param(
            "0::/a/b\n",
            {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"},
            3.0,
            id="a group above limits",
        ),
        pytest.param(
            "0::/a/b\n",
            {"a/b/cpu.max": "400000 100000", "a/cpu.max": "150000 100000"},
            1.5,
            id="the least of nested limits",
        ),
        pytest.param(
            "5:cpu,cpuacct:/docker/1f\n4:memory:/docker/1f\n",
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "50000\n",
            },
            2.0,
            id="container, version 1, which sees its group as the mount",
        ),
        pytest.param(
            "5:cpuacct,cpu:/slice\n",
            {"cpu/slice/cpu.cfs_quota_us": "-1\n", "cpu/slice/cpu.cfs_period_us": "100000\n"},
            None,
            id="no limit, version 1",
        ),
        pytest.param("5:cpuset:/a\n", {"cpuset/a/cpu.max": "1 1"}, None, id="no cpu controller"),
    ],
)
def test_quota(tmp_path: Path, groups: str, files: dict[str, str], expected: float | None) -> None:
    assert cpu_quota(made(tmp_path, groups, files)) == expected


def test_a_machine_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None


@pytest.mark.parametrize("quota", [0.5, 1.0, 1.9])
def test_no_more_threads_than_the_quota(monkeypatch: pytest.MonkeyPatch, quota: float) -> None:
    monkeypatch.setattr(cores, "allowed", lambda: frozenset(range(64)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    assert cores.cores() == cores.logical_cores() == 1
    assert session_options(None).intra_op_num_threads == 1
    assert session_options(3).intra_op_num_threads == 3


@pytest.mark.parametrize("quota", [None, 64.0, 100.0])
def test_a_quota_that_limits_nothing_leaves_the_choice_to_onnxruntime(
    monkeypatch: pytest.MonkeyPatch, quota: float | None
) -> None:
    monkeypatch.setattr(cores, "allowed", lambda: frozenset(range(64)))
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    monkeypatch.setattr(cores, "fast_cores", lambda allowed: None)
    assert cores.logical_cores() == 64
    assert session_options(None).intra_op_num_threads == 0
