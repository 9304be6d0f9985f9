"""What a running bundle keeps in memory."""

import mmap
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tamiz.evaluation.bench import bundle_child
from tamiz.files.bundle import Bundle

pytestmark = pytest.mark.slow

#: Beyond the bundle: 12 MB of KV cache (256 tokens, large pages are resident as a whole), the
#: session and activations.
OWN = 26e6
#: Of its peak a process may give so much back, so that nothing large was there twice for a while.
PASSING = 4e6

IMPORTS = "import numpy, onnxruntime; print(open('/proc/self/statm', encoding='ascii').read())"


def test_nothing_is_kept_twice(int4: Path) -> None:
    """At context 128.

    Memory of files is left out: how much of the libraries is resident is the system's choice (46 to
    62 MB seen for the same ones).
    """
    statm = subprocess.check_output([sys.executable, "-c", IMPORTS], text=True).split()
    imports = (int(statm[1]) - int(statm[2])) * mmap.PAGESIZE
    others = psutil.Process().children()
    child = bundle_child(int4, threads=2)
    try:
        child.prefill(128)
        child.decode(32)
        (process,) = set(psutil.Process().children()) - set(others)
        memory = process.memory_info()
        assert memory.rss - memory.shared - imports <= Bundle.open(int4).size + OWN
        assert child.peak_rss() <= memory.rss + PASSING
    finally:
        child.close()
