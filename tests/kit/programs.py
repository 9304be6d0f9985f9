"""Programs of `examples/` that run as processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.patience import PATIENCE
from kit.rooms import ROOT

EXAMPLES = ROOT / "examples"


def run(script: str, *arguments: object) -> str:
    """What an example prints; it must succeed."""
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def running(script: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """An example that serves; it is ended afterwards."""
    command = [sys.executable, str(EXAMPLES / script), *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def post(url: str, content: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the JSON that answer a request."""
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def bundle_of(folder: Path, dense: Path, *techniques: str) -> Path:
    """A bundle built with some options of `tamiz build`."""
    from kit.command_line import ok

    ok("build", dense, "-o", folder / "built", *techniques)
    return folder / "built"
