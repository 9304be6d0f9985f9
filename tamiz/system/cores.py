"""How many cores a process may use."""

from __future__ import annotations

import math
import os

from tamiz.system.quota import cpu_quota
from tamiz.system.topology import fast_cores


def cores() -> int:
    """Physical cores, as far as this process may run on them; the fast ones of a hybrid machine."""
    import psutil

    return min(psutil.cpu_count(logical=False) or 1, limited_cores() or len(allowed()))


def logical_cores() -> int:
    """Logical processors that this process may run on, and that the quota of its cgroups pays for.

    With more threads than that, all of them would be stopped for the rest of each period.
    """
    return _quota_cores() or len(allowed())


def limited_cores() -> int | None:
    """Cores to use where a quota or slow cores are the limit, which onnxruntime does not know."""
    limits = [limit for limit in (_quota_cores(), fast_cores(allowed())) if limit is not None]
    return min(limits, default=None)


def allowed() -> frozenset[int]:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _quota_cores() -> int | None:
    """Cores that the quota pays for where it is the limit."""
    quota = cpu_quota()
    if quota is None or quota >= len(allowed()):
        return None
    return max(1, math.floor(quota))
