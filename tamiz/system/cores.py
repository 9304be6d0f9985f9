"""How many cores a process may use."""

from __future__ import annotations

import math
import os

from tamiz.system.quota import cpu_quota


def cores() -> int:
    """Physical cores, as far as this process may run on them."""
    import psutil

    return min(psutil.cpu_count(logical=False) or 1, logical_cores())


def logical_cores() -> int:
    """Logical processors that this process may run on, and that the quota of its cgroups pays for.

    With more threads than that, all of them would be stopped for the rest of each period.
    """
    return quota_cores() or _allowed_cores()


def quota_cores() -> int | None:
    """Cores that the quota pays for where it is the limit, which onnxruntime does not know."""
    quota = cpu_quota()
    if quota is None or quota >= _allowed_cores():
        return None
    return max(1, math.floor(quota))


def _allowed_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
