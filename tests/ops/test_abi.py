"""Our header of ONNX Runtime's C ABI against the official ones, where they are installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "ort_ops" / "src"
PLACES = ["/usr/include/onnxruntime", "/usr/include/onnxruntime/core/session"]


def test_slots_are_those_of_the_official_headers() -> None:
    places = [os.environ.get("ONNXRUNTIME_INCLUDE_DIR", ""), *PLACES]
    found = [place for place in places if (Path(place) / "onnxruntime_c_api.h").is_file()]
    if not found:
        pytest.skip(
            "no onnxruntime_c_api.h: install libonnxruntime-dev or set ONNXRUNTIME_INCLUDE_DIR"
        )
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    check = SOURCES / "abi" / "check" / "official.cc"
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{SOURCES}", f"-I{found[0]}", str(check)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
