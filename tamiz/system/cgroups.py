"""What the cgroups of this process allow: containers are limited by them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

#: Where Linux shows cgroups and the process's own.
ROOT = Path("/")

_Reader = Callable[[Path], float | None]


def limits(controller: str, version_2: _Reader, version_1: _Reader, root: Path) -> list[float]:
    """Limits of one kind, of the process's own group and of all above it: each of them limits.

    Args:
        controller: ``cpu`` or ``memory``.
        version_2: Reads the limit of a group's folder of version 2; None if it has none.
        version_1: The same of version 1.
        root: The folder that has `proc` and `sys`.

    Returns:
        All that were found.
    """
    try:
        groups = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:  # not Linux
        return []
    found: list[float] = []
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            found += _each_group(root / "sys/fs/cgroup", path, version_2)
            found += _each_group(root / "sys/fs/cgroup/unified", path, version_2)
        elif controller in controllers.split(","):
            turned = ",".join(reversed(controllers.split(",")))
            for mount in dict.fromkeys((controllers, controller, turned)):
                found += _each_group(root / "sys/fs/cgroup" / mount, path, version_1)
    return found


def _each_group(mount: Path, path: str, read: _Reader) -> list[float]:
    """The limits of a group and of those above it; in a container its own may be the mount."""
    inner = PurePosixPath(path.lstrip("/"))
    values = [read(mount / group) for group in (inner, *inner.parents)]
    return [limit for limit in values if limit is not None]
