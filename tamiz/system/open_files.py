"""How many files and connections a process may have open."""

from __future__ import annotations

import contextlib
import resource

#: Enough for any server, where the system sets no bound.
_MOST = 65_536


def raise_open_files() -> None:
    """Raises the number of files and connections that may be open to what the system allows.

    Shells start programs with 1,024, which programs that do not use `select` may raise.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):  # a system that allows less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
