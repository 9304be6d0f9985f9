"""What differs between systems: this system's functions, and the branch for Windows on a double."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

from kit import windows
from kit.rooms import PACKAGES, ROOT, imports
from tamiz import platforms

HOLDER = """
import sys
from pathlib import Path
from kit import windows
from tamiz import platforms
held = {"here": platforms, "Windows": windows.platforms()}[sys.argv[1]].held
with held(Path(sys.argv[2])) as alone:
    print(alone, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["here", "Windows"])
def system(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def held(system: str) -> Callable[[Path], AbstractContextManager[bool]]:
    return (platforms if system == "here" else windows.platforms()).held


def test_one_holds_a_folder(held, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    with held(folder) as first:
        with held(folder) as second:
            assert (first, second) == (True, False)
        with held(folder) as third:
            assert not third
    with held(folder) as again:
        assert again
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_is_gone_is_not_held(held, tmp_path: Path) -> None:
    with held(tmp_path / "a") as alone:
        assert not alone
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_killed_process_is_free(system: str, held, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, system, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT / "tests",
    )  # fmt: skip
    assert process.stdout.readline() == "True\n"
    with held(folder) as alone:
        assert not alone
    process.kill()
    process.communicate()
    with held(folder) as alone:
        assert alone
    assert list(tmp_path.iterdir()) == [folder]


def test_a_link_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path)
    with pytest.raises(OSError, match="a"), platforms.held(tmp_path / "a"):
        pass


def test_memory_of_a_process() -> None:
    for system in (platforms, windows.platforms()):
        assert system.anonymous_memory(5000)[:] == bytes(5000)
        assert system.total_memory() == psutil.virtual_memory().total
    assert psutil.Process().memory_info().rss / 2 < platforms.peak_rss() < platforms.total_memory()


@pytest.mark.parametrize("package", PACKAGES)
def test_one_module_uses_what_some_systems_lack(package: str) -> None:
    """Looks at imports; `mypy --platform win32` looks at functions and constants."""
    only = {*windows.MODULES, "msvcrt", "winreg", "_winapi"}
    found = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGES[package].rglob("*.py")
        if only.intersection(imports(path))
    }
    assert found <= {"tamiz/platforms.py"}


def test_all_modules_are_imported_as_in_windows() -> None:
    done = as_in_windows("--help")
    assert done.returncode == 0, done.stderr
    assert "Make transformer models faster" in done.stdout
    modules = sum(
        path.name != "__init__.py" or bool(ast.parse(path.read_text("utf-8")).body)
        for name in ("tamiz", "tamiz_exporters", "tamiz_passes")
        for path in PACKAGES[name].rglob("*.py")
    )
    count, _, lacking, *_ = done.stderr.split()
    assert int(count) >= modules - len(windows.NOT_IMPORTED)
    assert int(lacking) < 40  # those of the server


@pytest.mark.slow
def test_a_build_as_in_windows(tiny_dense: Path, tmp_path: Path) -> None:
    done = as_in_windows("build", str(tiny_dense), "-o", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {tiny_dense.name, "out"}


def test_a_server_has_no_unix_socket_in_windows(tiny_dense: Path, tmp_path: Path) -> None:
    for package in windows.SERVE:
        pytest.importorskip(package, reason="needs the server: pip install 'tamiz[serve]'")
    done = as_in_windows("serve", f"m={tiny_dense}", f"--uds={tmp_path / 'socket'}")
    assert "0 of them without their packages" in done.stderr
    assert done.returncode == 2
    assert done.stderr.endswith("this system has no Unix sockets; try --port\n")


def as_in_windows(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(windows.__file__)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)
