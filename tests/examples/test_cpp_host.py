"""The host in C++, built where ONNX Runtime's headers are found."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import onnxruntime
import pytest

import tamiz_ops
from kit.programs import EXAMPLES, bundle_of
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling

pytestmark = pytest.mark.slow

PLACES = ["/usr/include/onnxruntime", "/usr/include/onnxruntime/core/session"]
PROMPT, COUNT = [5, 9, 33, 70], 12


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library of the Python package, under the names that programs look for."""
    capi = Path(onnxruntime.__file__).parent / "capi"
    found = sorted(capi.glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("this wheel of onnxruntime has no libonnxruntime.so")
    folder = tmp_path_factory.mktemp("lib")
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (folder / name).symlink_to(found[0])
    return folder


@pytest.fixture(scope="module")
def host(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program."""
    places = [os.environ.get("ONNXRUNTIME_INCLUDE_DIR", ""), *PLACES]
    found = [place for place in places if (Path(place) / "onnxruntime_cxx_api.h").is_file()]
    if not found:
        pytest.skip("no onnxruntime_cxx_api.h: set ONNXRUNTIME_INCLUDE_DIR to a release's include")
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    build = tmp_path_factory.mktemp("build")
    options = [f"-DONNXRUNTIME_INCLUDE_DIR={found[0]}", f"-DONNXRUNTIME_ROOT={library.parent}"]
    options.append(f"-DONNXRUNTIME_LIBRARY={library / 'libonnxruntime.so'}")
    subprocess.run([cmake, "-S", EXAMPLES / "cpp_host", "-B", build, *options], check=True)
    subprocess.run([cmake, "--build", build], check=True)
    return build / "cpp_host"


def decode(host: Path, library: Path, model: Path) -> subprocess.CompletedProcess[str]:
    ids = [str(token) for token in PROMPT]
    command = [str(host), str(model), str(tamiz_ops.library_path()), str(COUNT), *ids]
    environment = {**os.environ, "LD_LIBRARY_PATH": str(library)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("techniques", [(), ("--kv-int8=on", "--state-pack=on")])
def test_the_host_decodes_as_tamiz_does(
    host: Path, library: Path, dense_dir: Path, tmp_path: Path, techniques: tuple[str, ...]
) -> None:
    built = bundle_of(tmp_path, dense_dir, *techniques)
    done = decode(host, library, built / "model.onnx")
    assert done.returncode == 0, done.stderr
    model = Model.load(built, threads=1)
    expected = list(model.generate(PROMPT, Sampling(), COUNT))  # ends where the model does
    found = [int(token) for token in done.stdout.split()]
    assert len(found) == COUNT
    assert found[: len(expected)] == expected


def test_the_host_says_what_is_wrong(host: Path, library: Path, tmp_path: Path) -> None:
    done = decode(host, library, tmp_path / "none.onnx")
    assert done.returncode == 1
    assert done.stderr.startswith("cpp_host: ")


def test_the_host_is_short() -> None:
    lines = (EXAMPLES / "cpp_host" / "main.cc").read_text("utf-8").splitlines()
    assert len(lines) <= 60
