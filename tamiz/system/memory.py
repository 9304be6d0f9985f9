"""How much memory the machine has left."""

from __future__ import annotations

import math
from pathlib import Path

_MEMORY = Path("/proc/meminfo")


def free_memory() -> float:
    """Bytes that processes can get without swapping; infinite where the system does not say."""
    if not _MEMORY.is_file():
        return math.inf
    lines = dict(line.split(":") for line in _MEMORY.read_text(encoding="ascii").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in lines else math.inf
