"""The installed wheels hold every file that the packages have in the sources."""

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

from kit.rooms import PACKAGES


def installed(name: str) -> set[str]:
    """The files of an installed wheel; skips where the distribution is installed otherwise."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    if '"editable": true' in (found.read_text("direct_url.json") or ""):
        pytest.skip(f"{name} is installed as editable")
    return {str(path) for path in found.files or ()}


def sources(package: str) -> set[str]:
    """The files of a package in the repository, as they are named in a wheel."""
    folder = PACKAGES[package]
    return {
        path.relative_to(folder.parent).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not _made(path)
    }


def _made(path: Path) -> bool:
    return "__pycache__" in path.parts or path.suffix in (".so", ".pyc")


def test_tamiz_ops_has_its_files() -> None:
    files = installed("tamiz-ops")
    assert {"tamiz_ops/py.typed", "tamiz_ops/_native.pyi"} <= files
    assert any(name.startswith("tamiz_ops/libtamiz_ops.") for name in files)
    assert sources("tamiz_ops") - files == set()


@pytest.mark.parametrize("package", [name for name in PACKAGES if name != "tamiz_ops"])
def test_tamiz_has_the_files_of_all_its_packages(package: str) -> None:
    files = installed("tamiz")
    assert {"tamiz/py.typed", "tamiz/reporting/templates/report.html"} <= files
    assert sources(package) - files == set()
