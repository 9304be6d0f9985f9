"""How many cores a process may use."""

from __future__ import annotations

import os


def cores() -> int:
    """Physical cores, as far as this process may run on them."""
    import psutil

    return min(psutil.cpu_count(logical=False) or 1, logical_cores())


def logical_cores() -> int:
    """Logical processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
