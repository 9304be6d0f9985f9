"""Records what a process and its children look up and connect to.

A library that is loaded before all others notes every look-up of a name and every connection.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
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


def recorder(folder: Path) -> Path:
    """The library, compiled into a folder; skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "notes.c").write_text(NOTES, "utf-8")
    library = folder / "notes.so"
    line = [compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "notes.c"), "-ldl"]
    subprocess.run(line, check=True)
    return library


def recording(library: Path, folder: Path, **more: str) -> Mapping[str, str]:
    """The environment of a process that is recorded, with a folder of its own as HOME."""
    environment = {k: v for k, v in os.environ.items() if k != "ORT_DISABLE_TELEMETRY"}
    own = {"LD_PRELOAD": str(library), "NOTES": str(folder / "notes"), "HOME": str(folder)}
    return environment | own | more


def noted(folder: Path) -> list[str]:
    """What was looked up, and connections."""
    notes = folder / "notes"
    return notes.read_text("utf-8").splitlines() if notes.exists() else []
