"""What differs between systems: locks, limits, timers and the memory of a process.

No other module of tamiz uses what one system has and another one lacks. Where a system cannot do
what a function is for, its docstring says what that leaves open. Of other modules only the standard
library's are imported at the top: other interpreters import this one, too.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

#: Enough open files for any server, where the system sets no bound.
_MOST_OPEN_FILES = 65_536


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Holds a folder alone; the system lets go when the process ends.

    Windows opens no folders, so that a file beside it, ``<folder>.lock``, is locked there. A killed
    process leaves that file, which the next one that holds the folder removes.

    Yields:
        Whether it is held: not where another process holds it, or where it is gone.

    Raises:
        OSError: It is no folder, or it cannot be opened or locked.
    """
    try:
        handle = _opened(folder)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _locked(handle, folder)
    finally:
        _close(handle, folder)


if sys.platform == "win32":
    #: Exit code of a process that `limit_time` ended: it ends none.
    OUT_OF_TIME: int | None = None
    #: Signals that ask this process to end.
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM,)

    def _lock_file(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.lock")

    def _opened(folder: Path) -> int:
        return os.open(_lock_file(folder), os.O_CREAT | os.O_RDWR)

    def _locked(handle: int, folder: Path) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return folder.is_dir()

    def _close(handle: int, folder: Path) -> None:
        os.close(handle)
        with contextlib.suppress(OSError):  # refused while another process has it open
            os.unlink(_lock_file(folder))

    def confine(growth: int) -> None:
        """Bounds the growth of this process' memory; Windows does not bound it."""

    def limit_time(seconds: float) -> None:
        """Ends this process after so much work; Windows does not end it."""

    def send_again(seconds: float) -> None:
        """Repeats SIGTERM after a while; in Windows only the process itself could send one."""

    def raise_open_files() -> None:
        """Raises the number of files that may be open; Windows does not limit sockets."""

    def own_address(made: socket.socket) -> None:
        """Keeps other programs from the address of a socket, which SO_REUSEADDR would not."""
        from socket import SO_EXCLUSIVEADDRUSE, SOL_SOCKET

        made.setsockopt(SOL_SOCKET, SO_EXCLUSIVEADDRUSE, 1)

    def total_memory() -> int:
        """Bytes of this machine's memory."""
        import psutil

        return int(psutil.virtual_memory().total)

    def anonymous_memory(size: int) -> mmap.mmap:
        """So many bytes of zeros, in ordinary pages."""
        return mmap.mmap(-1, size)

    def peak_rss() -> int:
        """Peak resident set of this process, in bytes."""
        import psutil

        return int(psutil.Process().memory_info().peak_wset)

    def disk_reads() -> tuple[int, int]:
        """Bytes that this process read from files, and how often a page was not in its memory."""
        import psutil

        process = psutil.Process()
        return process.io_counters().read_bytes, process.memory_info().num_page_faults

else:
    #: Exit code of a process that `limit_time` ended.
    OUT_OF_TIME: int | None = -signal.SIGPROF
    #: Signals that ask this process to end: SIGTERM, and SIGALRM, as which it comes again.
    ENDING: tuple[signal.Signals, ...] = (signal.SIGTERM, signal.SIGALRM)

    def _opened(folder: Path) -> int:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def _locked(handle: int, folder: Path) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return os.path.samestat(os.fstat(handle), os.lstat(folder))
        except (BlockingIOError, FileNotFoundError):  # held, or just removed, by another process
            return False

    def _close(handle: int, folder: Path) -> None:
        os.close(handle)

    def confine(growth: int) -> None:
        """Bounds the growth of this process' memory, in bytes, and forbids it a core dump.

        Linux alone bounds the memory: macOS takes the limit and does not enforce it.
        """
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if sys.platform != "linux":
            return
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = size + growth if hard == resource.RLIM_INFINITY else min(size + growth, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))

    def limit_time(seconds: float) -> None:
        """Ends this process after so many seconds of processor time; 0 for no end."""
        signal.setitimer(signal.ITIMER_PROF, seconds)

    def send_again(seconds: float) -> None:
        """Repeats SIGTERM, as SIGALRM, after so many seconds; 0 for never."""
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def raise_open_files() -> None:
        """Raises the number of files and connections that may be open to what the system allows.

        Shells start programs with 1,024, which programs that do not use `select` may raise.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        endless = resource.RLIM_INFINITY
        wanted = _MOST_OPEN_FILES if hard == endless else min(hard, _MOST_OPEN_FILES)
        if soft == endless or soft >= wanted:
            return
        with contextlib.suppress(OSError, ValueError):  # a system that allows less than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    def own_address(made: socket.socket) -> None:
        """Lets a socket have the address of a program that has just ended."""
        from socket import SO_REUSEADDR, SOL_SOCKET

        made.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)

    def total_memory() -> int:
        """Bytes of this machine's memory."""
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def anonymous_memory(size: int) -> mmap.mmap:
        """So many bytes of zeros, on Linux in large pages as far as there are any."""
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def peak_rss() -> int:
        """Peak resident set of this process, in bytes.

        Linux: VmHWM, because ru_maxrss also counts the parent that this process was forked from.
        """
        try:
            with open("/proc/self/status", encoding="ascii") as status:
                for line in status:
                    if line.startswith("VmHWM:"):
                        return int(line.split()[1]) * 1024
        except OSError:
            pass
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

    def disk_reads() -> tuple[int, int]:
        """Bytes that this process read from the disk, and how often a page was not in memory."""
        block = 512  # of ru_inblock
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return block * usage.ru_inblock, usage.ru_majflt
