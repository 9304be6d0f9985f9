"""Kinds of cores and memory nodes, of files as Linux lays them out for machines of these kinds."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tamiz.runtime.session import session_options
from tamiz.system import cores
from tamiz.system.topology import fast_cores, memory_nodes


def made(root: Path, files: dict[str, str]) -> Path:
    """A folder of devices."""
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n", "ascii")
    return root


def siblings(*cores: str) -> dict[str, str]:
    """The files of cores, each given as its logical processors, such as ``0-1``."""
    files = {}
    for core in cores:
        first, _, last = core.partition("-")
        for cpu in range(int(first), int(last or first) + 1):
            files[f"system/cpu/cpu{cpu}/topology/thread_siblings_list"] = core
    return files


#: A Core i5-1240P: 4 performance cores with 2 threads each, 8 efficient ones.
ALDER_LAKE = {
    "cpu_core/cpus": "0-7",
    "cpu_atom/cpus": "8-15",
    **siblings("0-1", "2-3", "4-5", "6-7", *map(str, range(8, 16))),
}
#: A Snapdragon 8 Gen 2 as its device tree has it: 3 small cores, 4 middle ones, a large one.
SNAPDRAGON = {
    f"system/cpu/cpu{cpu}/cpu_capacity": capacity
    for cpu, capacity in enumerate(["328"] * 3 + ["828"] * 4 + ["1024"])
}


@pytest.mark.parametrize(
    ("files", "allowed", "expected"),
    [
        pytest.param(ALDER_LAKE, range(16), 4, id="performance and efficient cores"),
        pytest.param(ALDER_LAKE, range(4), None, id="bound to performance cores"),
        pytest.param(ALDER_LAKE, range(8, 16), None, id="bound to efficient cores"),
        pytest.param(ALDER_LAKE, [0, 1, 2, 8, 9], 2, id="bound to a part of both"),
        pytest.param(SNAPDRAGON, range(8), 5, id="large, middle and small cores"),
        pytest.param(SNAPDRAGON, range(3, 8), None, id="bound to what is fast"),
        pytest.param(siblings("0-1", "2-3"), range(4), None, id="cores of one kind"),
        pytest.param(
            {f"system/cpu/cpu{cpu}/cpu_capacity": "1024" for cpu in range(4)},
            range(4),
            None,
            id="ARM cores of one kind",
        ),
        pytest.param(SNAPDRAGON, range(9), None, id="a core that says nothing"),
        pytest.param({}, range(4), None, id="a system that says nothing"),
        pytest.param({"cpu_core/cpus": "what"}, range(4), None, id="a file of another form"),
    ],
)
def test_fast_cores(
    tmp_path: Path, files: dict[str, str], allowed: range, expected: int | None
) -> None:
    assert fast_cores(allowed, made(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "allowed", "expected"),
    [
        pytest.param({}, range(4), 1, id="a system that says nothing"),
        pytest.param({"system/node/node0/cpulist": "0-3"}, range(4), 1, id="one node"),
        pytest.param(
            {"system/node/node0/cpulist": "0-3,8-11", "system/node/node1/cpulist": "4-7,12-15"},
            range(16),
            2,
            id="two sockets",
        ),
        pytest.param(
            {"system/node/node0/cpulist": "0-3", "system/node/node1/cpulist": "4-7"},
            range(4, 8),
            1,
            id="bound to one of two",
        ),
        pytest.param(
            {"system/node/node0/cpulist": "0-7", "system/node/node1/cpulist": ""},
            range(8),
            1,
            id="a node of memory only",
        ),
    ],
)
def test_memory_nodes(tmp_path: Path, files: dict[str, str], allowed: range, expected: int) -> None:
    assert memory_nodes(allowed, made(tmp_path, files)) == expected


def test_threads_of_a_hybrid_machine_are_its_fast_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 16 if logical else 12)
    monkeypatch.setattr(cores, "allowed", lambda: frozenset(range(16)))
    monkeypatch.setattr(cores, "fast_cores", lambda allowed: 4)
    assert cores.cores() == 4
    assert session_options(None).intra_op_num_threads == 4
    assert session_options(7).intra_op_num_threads == 7
    monkeypatch.setattr(cores, "cpu_quota", lambda: 2.5)
    assert cores.cores() == session_options(None).intra_op_num_threads == 2
