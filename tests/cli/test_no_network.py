"""No process of tamiz makes a network connection that its user did not ask for.

onnxruntime 1.29 and newer look up a host about 20 s after their start,
where ORT_DISABLE_TELEMETRY is not set.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kit import network

#: Runs the commands in one process, which then lives on for so many seconds.
COMMANDS = """
import os, sys, time
from click.testing import CliRunner
from tamiz.cli import main

dense, folder = sys.argv[1:3]
start = time.monotonic()
for line, said in (
    (["run", dense, "hello", "--max-new-tokens", "3"], None),
    (["chat", dense, "--max-new-tokens", "3"], "hello"),
    (["build", dense, "-o", f"{folder}/built", "--block-quant=on"], None),
    (["eval", f"{folder}/built", "--text", f"{folder}/text", "--window=32", "--windows=2"], None),
):
    result = CliRunner().invoke(main, line, input=said)
    assert result.exit_code == 0, result.output
assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
time.sleep(max(0, 25 - (time.monotonic() - start)))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return network.recorder(tmp_path_factory.mktemp("recorder"))


def noted(library: Path, folder: Path, program: str, *arguments: object, **env: str) -> list[str]:
    """What a program looks up and connects to."""
    environment = network.recording(library, folder, **env)
    line = [sys.executable, "-c", program, *map(str, arguments)]
    subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)
    return network.noted(folder)


def test_the_recorder_notes_what_is_looked_up(library: Path, tmp_path: Path) -> None:
    program = "import socket\ntry: socket.getaddrinfo('example.org', 80)\nexcept OSError: pass"
    assert noted(library, tmp_path, program) == ["example.org"]


@pytest.mark.slow
def test_commands_and_their_children_make_no_connection(
    library: Path, dense_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("hello world, " * 100, "utf-8")
    assert noted(library, tmp_path, COMMANDS, dense_dir, tmp_path) == []
    assert not list((tmp_path / ".cache").glob("Microsoft*"))


def test_the_user_s_setting_stays(library: Path, tmp_path: Path) -> None:
    program = "import os, tamiz; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    assert noted(library, tmp_path, program, ORT_DISABLE_TELEMETRY="0") == []
