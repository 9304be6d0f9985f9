"""How much memory is left: of the machine, and of what the cgroups of this process allow."""

from __future__ import annotations

import math
from pathlib import Path

from tamiz.system.cgroups import ROOT, limits

#: Pages of files, which the system gives up where a group needs memory, in `memory.stat`; groups of
#: version 1 count those of the groups below them under other names.
_FILES = ("active_file", "inactive_file")
_FILES_BELOW = tuple(f"total_{name}" for name in _FILES)


def free_memory(root: Path = ROOT) -> float:
    """Bytes that this process can get without swapping; infinite where the system does not say.

    That is what the machine has left, or less where a cgroup has a limit. Reads version 2
    (`memory.max` and `memory.current`) and version 1 (`memory.limit_in_bytes` and
    `memory.usage_in_bytes`); pages of files count as free.

    Args:
        root: The folder that has `proc` and `sys`.
    """
    return min([_of_machine(root), *limits("memory", _version_2, _version_1, root)])


def _of_machine(root: Path) -> float:
    try:
        lines = (root / "proc/meminfo").read_text("ascii").splitlines()
    except OSError:  # not Linux
        return math.inf
    sizes = dict(line.split(":") for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in sizes else math.inf


def _version_2(group: Path) -> float | None:
    return _left(group, "memory.max", "memory.current", _FILES)


def _version_1(group: Path) -> float | None:
    return _left(group, "memory.limit_in_bytes", "memory.usage_in_bytes", _FILES_BELOW)


def _left(group: Path, limit: str, used: str, files: tuple[str, ...]) -> float | None:
    """What a group may still take; None where its files name no limit, as a `memory.max` of max."""
    try:
        free = int((group / limit).read_text("ascii")) - int((group / used).read_text("ascii"))
        pairs = (line.split() for line in (group / "memory.stat").read_text("ascii").splitlines())
        sizes = {name: int(size) for name, size in pairs}
    except (OSError, ValueError):
        return None
    return max(0, free + sum(sizes.get(name, 0) for name in files))
