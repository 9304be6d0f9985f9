"""Kinds of cores and memory nodes of this machine, as Linux shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

#: Where Linux shows devices.
_ROOT = Path("/sys/devices")
#: A core is a fast one from this part of the fastest one's capacity on. Middle cores of ARM have
#: 0.75 and more, small ones less than 0.5.
_FAST = 0.6


def fast_cores(allowed: Iterable[int], root: Path = _ROOT) -> int | None:
    """Physical cores of the fast kind, of a machine that has slow ones as well.

    Intel's hybrid processors list their performance cores (`cpu_core`); ARM's kernels give each
    processor a capacity. Rounds of a run end together, so that a slow core holds up the fast ones.

    Args:
        allowed: Logical processors that count.
        root: The folder of devices.

    Returns:
        Their number; None where all allowed processors are of one kind, or nothing says so.
    """
    processors = frozenset(allowed)
    fast = _listed(root / "cpu_core/cpus") or _most_capable(processors, root)
    found = processors & fast
    if not found or found == processors:
        return None
    return len({_siblings(cpu, root) for cpu in found})


def memory_nodes(allowed: Iterable[int], root: Path = _ROOT) -> int:
    """Memory nodes (NUMA) whose processors count; at least 1."""
    processors = frozenset(allowed)
    files = (root / "system/node").glob("node[0-9]*/cpulist")
    return max(1, sum(bool(_listed(file) & processors) for file in files))


def _most_capable(processors: frozenset[int], root: Path) -> frozenset[int]:
    capacities = {cpu: _number(_cpu(cpu, root) / "cpu_capacity") for cpu in processors}
    if 0 in capacities.values():  # unknown
        return processors
    least = _FAST * max(capacities.values(), default=0)
    return frozenset(cpu for cpu, capacity in capacities.items() if capacity >= least)


def _siblings(cpu: int, root: Path) -> frozenset[int]:
    """The logical processors of the core that `cpu` is on."""
    return _listed(_cpu(cpu, root) / "topology/thread_siblings_list") or frozenset({cpu})


def _cpu(cpu: int, root: Path) -> Path:
    return root / f"system/cpu/cpu{cpu}"


def _number(file: Path) -> int:
    try:
        return int(file.read_text("ascii"))
    except (OSError, ValueError):
        return 0


def _listed(file: Path) -> frozenset[int]:
    """Processors of a list such as ``0-3,8``; none where there is no such file."""
    try:
        return frozenset(_ranges(file.read_text("ascii").strip()))
    except (OSError, ValueError):
        return frozenset()


def _ranges(text: str) -> Iterator[int]:
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)
