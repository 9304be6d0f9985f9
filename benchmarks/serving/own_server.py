"""A server that a benchmark starts itself."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from tamiz.files.errors import TamizError


@dataclass(frozen=True)
class OwnServer:
    """A running server.

    Attributes:
        url: Its address.
        pid: Its process.
    """

    url: str
    pid: int


@contextlib.contextmanager
def own_server(source: str, *flags: str) -> Iterator[OwnServer]:
    """`tamiz serve SOURCE` on a free port, loaded; it ends with the context.

    Raises:
        TamizError: It has ended before it served.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "tamiz", "serve", source, "--port=0", *flags],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    url, log = "", ""
    try:
        for line in process.stderr:
            log += line
            if found := re.search(r"serving at (\S+)", line):
                url = found[1]
            if line.rstrip().endswith(": ready"):
                break
        else:
            raise TamizError(f"{source}: the server has ended: {log.strip()}")
        # Nobody reads the rest of the log, and a full pipe would stop the server.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield OwnServer(url, process.pid)
    finally:
        process.terminate()
        process.wait(60)
