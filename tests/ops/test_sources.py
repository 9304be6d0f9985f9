"""Headers of ort_ops/src are guarded, and kernels stay free of C++ libraries."""

import re
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "ort_ops" / "src"
FILES = sorted(path for path in SOURCES.rglob("*") if path.suffix in {".h", ".cc"})


def test_headers_are_guarded() -> None:
    headers = [path for path in FILES if path.suffix == ".h"]
    assert [str(h) for h in headers if "\n#pragma once\n" not in f"\n{h.read_text()}"] == []


def test_kernels_use_no_cpp_library() -> None:
    """Inline functions of the standard library would leak wide instructions into other files."""
    wrong = []
    for path in FILES:
        own = path.relative_to(SOURCES).as_posix()
        if own.startswith(("simd/", "kernels/")) and not own.startswith("kernels/dispatch."):
            found = re.findall(r"^#include <([a-z_/]+)>", path.read_text(), re.MULTILINE)
            wrong += [f"{own} includes <{name}>" for name in found]
    assert wrong == []
