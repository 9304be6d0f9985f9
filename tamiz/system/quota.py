"""How much processor time the cgroups of this process allow."""

from __future__ import annotations

from pathlib import Path

from tamiz.system.cgroups import ROOT, limits


def cpu_quota(root: Path = ROOT) -> float | None:
    """Processors' worth of time that the cgroups of this process allow.

    Reads version 2 (`cpu.max`) and version 1 (`cpu.cfs_quota_us` and `cpu.cfs_period_us`).

    Args:
        root: The folder that has `proc` and `sys`.

    Returns:
        The least limit, as 1.5 for 150 ms in every 100 ms; None if there is none.
    """
    return min(limits("cpu", _version_2, _version_1, root), default=None)


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
