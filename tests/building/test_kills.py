"""Builds that are ended at random moments write nothing half, and are resumed byte for byte."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from kit.command_line import ok, refused
from kit.folders import TIMED, contents
from kit.patience import PATIENCE

pytestmark = pytest.mark.slow

#: Times that a build is ended by each signal; TAMIZ_KILLS sets another number.
KILLS = int(os.environ.get("TAMIZ_KILLS", "2"))
#: The files of a build that nobody ended, and the seconds that it took.
Whole = tuple[dict[str, bytes], float]


def start(dense: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tamiz", "build", str(dense), "-o", str(out)]
    return subprocess.Popen(
        [*command, "--jobs", "2", "--resume"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """What a build holds that nobody ends, and the seconds that it takes."""
    out, began = tmp_path_factory.mktemp("whole") / "out", time.monotonic()
    build = start(dense_dir, out)
    assert build.communicate()[1].count("Traceback") == 0
    assert build.returncode == 0
    return contents(out, TIMED), time.monotonic() - began


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_a_build_that_is_ended_is_resumed(
    tiny_dense: Path, tmp_path: Path, whole: Whole, number: int
) -> None:
    expected, seconds = whole
    out, choice = tmp_path / "out", random.Random(int(number))
    for kill in range(KILLS):
        build = start(tiny_dense, out)
        # The first second is when plugins are imported.
        time.sleep(choice.uniform(0, min(1, seconds) if kill % 3 == 0 else seconds))
        workers = descendants(build.pid)
        build.send_signal(number)
        _, stderr = build.communicate()
        # Before Python has begun, the signal itself ends the process; 0 if the build was faster.
        assert build.returncode in (128 + number, -number, 0), stderr
        assert "Traceback" not in stderr
        assert "broken" not in stderr
        if out.exists():  # whole or not at all
            assert contents(out, TIMED) == expected
            shutil.rmtree(out)
        _, alive = psutil.wait_procs(workers, timeout=PATIENCE)
        assert not alive
        assert {path.name for path in tmp_path.iterdir()} <= {"tiny-dense", ".out.work"}
    resumed = start(tiny_dense, out)
    assert "Traceback" not in resumed.communicate()[1]
    assert resumed.returncode == 0
    assert contents(out, TIMED) == expected
    assert {path.name for path in tmp_path.iterdir()} == {"tiny-dense", "out"}


def is_worker(process: psutil.Process) -> bool:
    """Whether it fits weights; a worker has another command line until it is one."""
    try:
        return any("popen_loky" in word for word in process.cmdline())
    except psutil.Error:
        return False


def ended_worker(dense: Path, out: Path) -> subprocess.Popen[str]:
    """A build that has lost a worker; where the machine was too busy to end one, another try."""
    for _ in range(10):
        build = start(dense, out)
        while build.poll() is None:
            for worker in filter(is_worker, descendants(build.pid)):
                with suppress(psutil.NoSuchProcess):  # it ended by itself
                    worker.kill()
            time.sleep(0.01)
        if build.returncode != 0:
            break
        shutil.rmtree(out)
    return build


def test_a_worker_that_the_system_ends_is_one_sentence(tiny_dense: Path, tmp_path: Path) -> None:
    build = ended_worker(tiny_dense, tmp_path / "out")
    assert build.stderr is not None
    stderr = build.stderr.read()
    assert "Traceback" not in stderr
    assert "error: a worker process was ended, as the system does when memory runs out" in stderr
    assert build.returncode == 1
    resumed = start(tiny_dense, tmp_path / "out")
    assert "Traceback" not in resumed.communicate()[1]
    assert resumed.returncode == 0


@pytest.mark.parametrize("size", [1000, 20_000, 60_000])
def test_a_build_without_space_is_resumed(
    tiny_dense: Path, tmp_path: Path, whole: Whole, size: int
) -> None:
    """No file may be longer than `size` bytes, as on a full disk."""
    limited = ["prlimit", f"--fsize={size}"]
    command = [sys.executable, "-m", "tamiz", "build", str(tiny_dense), "--resume", "-o"]
    done = subprocess.run(
        [*limited, *command, str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "cannot be written" in error
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    subprocess.run([*command, str(tmp_path / "out")], check=True, capture_output=True)
    assert contents(tmp_path / "out", TIMED) == whole[0]
    assert {path.name for path in tmp_path.iterdir()} == {"tiny-dense", "out"}


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_a_bundle_that_a_killed_build_moved_aside_returns(
    tiny_dense: Path, tmp_path: Path, options: list[str]
) -> None:
    out, aside = tmp_path / "out", tmp_path / ".out.work" / "bundle" / "old"
    ok("build", tiny_dense, "-o", out)
    before = contents(out, TIMED)
    aside.parent.mkdir(parents=True)
    out.rename(aside)  # as between the two renames of a build over it
    missing = ("--policy", tmp_path / "none.json")
    refused("build", tiny_dense, "-o", out, *options, *missing)
    assert contents(out, TIMED) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
def test_an_export_that_is_ended_leaves_nothing_for_long(
    tiny_gguf: Path, tmp_path: Path, number: int
) -> None:
    out, choice = tmp_path / "out", random.Random(int(number))
    command = [sys.executable, "-m", "tamiz", "export", str(tiny_gguf), "-o", str(out)]
    for _ in range(KILLS):
        export = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        time.sleep(choice.uniform(0, 1.5))
        export.send_signal(number)
        _, stderr = export.communicate()
        assert b"Traceback" not in stderr
        assert export.returncode in (0, 128 + number, -number)
    subprocess.run(command, check=True, capture_output=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
