"""No process of tamiz makes a network connection that its user did not ask for.

A library that is loaded before all others notes every look-up of a name and every connection of a
process and of its children. onnxruntime 1.29 and newer look up a host about 20 s after their start,
where ORT_DISABLE_TELEMETRY is not set.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static void note(const char* what) {
  FILE* file = fopen(getenv("NOTES"), "a");
  if (file) { fprintf(file, "%s\n", what); fclose(file); }
}

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints,
                struct addrinfo** result) {
  note(node ? node : "getaddrinfo");
  return EAI_FAIL;
}

int connect(int socket, const struct sockaddr* address, socklen_t size) {
  if (address->sa_family == AF_INET || address->sa_family == AF_INET6) note("connect");
  int (*next)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  return next(socket, address, size);
}
"""
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
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("recorder")
    (folder / "notes.c").write_text(NOTES, "utf-8")
    library = folder / "notes.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, folder / "notes.c", "-ldl"], check=True
    )
    return library


def noted(recorder: Path, folder: Path, program: str, *arguments: object, **env: str) -> list[str]:
    """What a program looks up and connects to."""
    notes = folder / "notes"
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    environment |= {"LD_PRELOAD": str(recorder), "NOTES": str(notes), "HOME": str(folder), **env}
    line = [sys.executable, "-c", program, *map(str, arguments)]
    subprocess.run(line, env=environment, check=True, stdout=subprocess.DEVNULL)
    return notes.read_text("utf-8").splitlines() if notes.exists() else []


def test_the_recorder_notes_what_is_looked_up(recorder: Path, tmp_path: Path) -> None:
    program = "import socket\ntry: socket.getaddrinfo('example.org', 80)\nexcept OSError: pass"
    assert noted(recorder, tmp_path, program) == ["example.org"]


@pytest.mark.slow
def test_commands_and_their_children_make_no_connection(
    recorder: Path, dense_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("hello world, " * 100, "utf-8")
    assert noted(recorder, tmp_path, COMMANDS, dense_dir, tmp_path) == []
    assert not list((tmp_path / ".cache").glob("Microsoft*"))


def test_the_user_s_setting_stays(recorder: Path, tmp_path: Path) -> None:
    program = "import os, tamiz; assert os.environ['ORT_DISABLE_TELEMETRY'] == '0'"
    assert noted(recorder, tmp_path, program, ORT_DISABLE_TELEMETRY="0") == []
