"""Free memory, of the files that Linux and Docker show of a machine and of its cgroups."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kit.cgroup_files import made
from tamiz.system.memory import free_memory

MACHINE = "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"
STAT = "anon 1000000\nactive_file 2000\ninactive_file 30000\n"
#: Of version 1, which counts the groups below beside the group itself.
STAT_1 = "cache 1\nactive_file 1\ntotal_active_file 2000\ntotal_inactive_file 30000\n"


def of_machine(tmp_path: Path, groups: str, files: dict[str, str]) -> Path:
    root = made(tmp_path, groups, files)
    (root / "proc/meminfo").write_text(MACHINE, "ascii")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        pytest.param("0::/\n", {}, 8000 * 1024, id="no cgroups"),
        pytest.param(
            "0::/a\n",
            {"a/memory.max": "max\n", "a/memory.current": "5\n", "a/memory.stat": STAT},
            8000 * 1024,
            id="no limit, version 2",
        ),
        pytest.param(
            "0::/a\n",
            {"a/memory.max": "4000000\n", "a/memory.current": "1032000\n", "a/memory.stat": STAT},
            3_000_000,
            id="version 2, pages of files are free",
        ),
        pytest.param(
            "0::/a/b\n",
            {
                "a/memory.max": "900000",
                "a/memory.current": "500000",
                "a/memory.stat": "",
                "a/b/memory.max": "max",
            },
            400_000,
            id="a group above limits",
        ),
        pytest.param(
            "9:memory:/docker/1f\n",
            {
                "memory/memory.limit_in_bytes": "4000000\n",
                "memory/memory.usage_in_bytes": "1032000\n",
                "memory/memory.stat": STAT_1,
            },
            3_000_000,
            id="container, version 1, which sees its group as the mount",
        ),
        pytest.param(
            "9:memory:/a\n",
            {
                "memory/a/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/a/memory.usage_in_bytes": "1032000\n",
                "memory/a/memory.stat": STAT_1,
            },
            8000 * 1024,
            id="no limit, version 1",
        ),
        pytest.param(
            "0::/\n",
            {"memory.max": "1000", "memory.current": "4096", "memory.stat": ""},
            0,
            id="more taken than a limit that was lowered",
        ),
    ],
)
def test_free_memory(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    assert free_memory(of_machine(tmp_path, groups, files)) == expected


def test_a_system_that_does_not_say(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == math.inf
