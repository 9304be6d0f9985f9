"""The rooms of ort_ops/src: includes point down only, and kernels stay free of C++ libraries."""

import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "ort_ops" / "src"
#: Lowest first. A file includes files of its own room and of rooms before it.
ROOMS = ["base", "simd", "kernels", "engine", "ops", "abi", "python", "tests"]
FILES = sorted(path for path in SOURCES.rglob("*") if path.suffix in {".h", ".cc"})


def room(path: str) -> int:
    return ROOMS.index(path.split("/")[0])


@pytest.mark.parametrize("name", ROOMS[:-1])
def test_includes_point_down(name):
    wrong = []
    files = [path for path in FILES if path.relative_to(SOURCES).parts[0] == name]
    assert files
    for path in files:
        own = path.relative_to(SOURCES).as_posix()
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            if not (SOURCES / included).is_file() or room(included) > room(own):
                wrong.append(f"{own} includes {included}")
    assert wrong == []


def test_headers_are_guarded():
    headers = [path for path in FILES if path.suffix == ".h"]
    assert [str(h) for h in headers if "\n#pragma once\n" not in f"\n{h.read_text()}"] == []


def test_kernels_use_no_cpp_library():
    """Inline functions of the standard library would leak wide instructions into other files."""
    wrong = []
    for path in FILES:
        own = path.relative_to(SOURCES).as_posix()
        if own.startswith(("simd/", "kernels/")) and not own.startswith("kernels/dispatch."):
            found = re.findall(r"^#include <([a-z_/]+)>", path.read_text(), re.MULTILINE)
            wrong += [f"{own} includes <{name}>" for name in found]
    assert wrong == []
