"""How much processor time the cgroups of this process allow: containers are limited by it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

#: Where Linux shows cgroups and the process's own.
_ROOT = Path("/")


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Processors' worth of time that the cgroups of this process allow.

    Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us` and `cpu.cfs_period_us`), of the
    process's own group and of all above it: each of them limits.

    Args:
        root: The folder that has `proc` and `sys`.

    Returns:
        The least limit, as 1.5 for 150 ms in every 100 ms; None if there is none.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return None
    limits = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _each_group(root / "sys/fs/cgroup", path, _version_2)
            limits += _each_group(root / "sys/fs/cgroup/unified", path, _version_2)
        elif "cpu" in controllers.split(","):
            for mount in dict.fromkeys((controllers, "cpu", "cpu,cpuacct", "cpuacct,cpu")):
                limits += _each_group(root / "sys/fs/cgroup" / mount, path, _version_1)
    return min(limits, default=None)


def _each_group(mount: Path, path: str, read: Callable[[Path], float | None]) -> list[float]:
    """The limits of a group and of those above it; in a container its own may be the mount."""
    inner = PurePosixPath(path.lstrip("/"))
    values = [read(mount / group) for group in (inner, *inner.parents)]
    return [limit for limit in values if limit is not None]


def _version_2(group: Path) -> float | None:
    """`cpu.max` is "QUOTA PERIOD", QUOTA a number of microseconds or max."""
    try:
        quota, period = (group / "cpu.max").read_text("utf-8").split()
        return int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _version_1(group: Path) -> float | None:
    """A quota of -1 is none."""
    try:
        quota = int((group / "cpu.cfs_quota_us").read_text("utf-8"))
        period = int((group / "cpu.cfs_period_us").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 and period > 0 else None
