"""tamiz as Windows would import it: `python tests/kit/windows.py [arguments of tamiz]`.

A stand-in on another system: for modules of tamiz and of its plugins the modules and functions that
Windows lacks are missing, `tamiz.platforms` takes its branch for Windows, and `msvcrt` is a double.
Other packages find their system as it is. Imports every module, then runs the command line.
"""

import builtins
import fcntl
import importlib.util
import os
import pkgutil
import signal
import socket
import sys
import types
from pathlib import Path
from typing import Any

import click
import psutil  # noqa: F401  # before os lacks what it needs to know this system

PACKAGES = ("tamiz", "tamiz_exporters", "tamiz_passes")
#: A program, and a module whose package few install.
NOT_IMPORTED = ("tamiz.__main__", "tamiz.serving.ray")
#: What tamiz[serve] installs.
SERVE = ("fastapi", "llguidance", "orjson", "prometheus_client", "starlette", "uvicorn")
#: Modules of the standard library that Windows has not.
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty")
#: Of modules that Windows has, what is missing there.
NAMES = {
    os: ("O_DIRECTORY", "O_NOFOLLOW", "sched_getaffinity", "sysconf"),
    signal: ("SIGALRM", "SIGPROF", "setitimer"),
    socket: ("AF_UNIX",),
}


def double_of_msvcrt() -> types.ModuleType:
    """`msvcrt` with `locking`: a lock of the file's first byte, which belongs to its handle."""
    made: Any = types.ModuleType("msvcrt")

    def locking(handle: int, mode: int, count: int) -> None:
        assert (mode, count) == (made.LK_NBLCK, 1)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PermissionError(13, "Permission denied") from error  # as Windows says it

    made.LK_NBLCK, made.locking = 2, locking
    return made


def double_of_os() -> types.ModuleType:
    """`os` whose `unlink` refuses a file that is locked, as Windows refuses one that is open."""
    made: Any = types.ModuleType("os")
    vars(made).update(vars(os))

    def unlink(path: Path) -> None:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()

    made.unlink = unlink
    return made


def platforms() -> types.ModuleType:
    """`tamiz.platforms` with its branch for Windows, as a module of its own."""
    spec = importlib.util.find_spec("tamiz.platforms")
    module: Any = importlib.util.module_from_spec(spec)
    before, sys.platform = sys.platform, "win32"
    sys.modules["msvcrt"] = double_of_msvcrt()
    try:
        spec.loader.exec_module(module)
    finally:
        sys.platform = before
        del sys.modules["msvcrt"]
    module.os = double_of_os()
    return module


def hide() -> None:
    """Makes this process what the module's docstring says."""
    imported = builtins.__import__

    def checked(name: str, globals=None, *others, **named) -> types.ModuleType:
        if name in MODULES and (globals or {}).get("__name__", "").startswith("tamiz"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, globals, *others, **named)

    builtins.__import__ = checked
    for module, names in NAMES.items():
        for name in names:
            delattr(module, name)
    sys.modules["tamiz.platforms"] = platforms()


def import_all() -> tuple[int, int]:
    """Imports every module of tamiz and of the installed plugins.

    Returns:
        How many there are, and how many of them lack the packages of tamiz[serve].
    """
    plugins = Path(__file__).parents[2] / "plugins"
    count = lacking = 0
    for package in (*PACKAGES, *(path.name for path in plugins.glob("tamiz_*"))):
        found = importlib.import_module(package)
        for module in pkgutil.walk_packages(found.__path__, f"{package}."):
            if module.name in NOT_IMPORTED:
                continue
            count += 1
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                if error.name is None or error.name.partition(".")[0] not in SERVE:
                    raise
                lacking += 1
    return count, lacking


if __name__ == "__main__":
    hide()
    click.echo("{} modules, {} of them without their packages".format(*import_all()), err=True)
    from tamiz.cli import main

    main()
