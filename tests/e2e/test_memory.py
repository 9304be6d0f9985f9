"""What a running bundle keeps in memory."""

import subprocess
import sys
from pathlib import Path

from tamiz.bench import bundle_child
from tamiz.bundle import Bundle

#: Of the 80 MB that a process may take beyond its bundle, numpy and onnxruntime take about 46.
#: How much of their libraries is resident is the system's choice (46 to 62 MB seen for the same
#: files), so the test holds what is left: session, KV cache and activations.
OWN = 34e6

IMPORTS = "import numpy, onnxruntime; from tamiz.bench_child import peak_rss; print(peak_rss())"


def test_weights_are_mapped_and_nothing_is_kept_twice(int4: Path) -> None:
    """At context 128."""
    imports = int(subprocess.check_output([sys.executable, "-c", IMPORTS], text=True))
    child = bundle_child(int4, threads=2)
    try:
        child.prefill(128)
        child.decode(32)
        assert child.peak_rss() - imports <= Bundle.open(int4).size + OWN
    finally:
        child.close()
