"""What a process that runs the bundle holds in memory."""

from pathlib import Path

from tamiz.bench import bundle_child
from tamiz.bundle import Bundle


def test_weights_are_mapped_and_nothing_is_kept_twice(int4: Path) -> None:
    """Python, numpy and onnxruntime take 46 MB of the 80; at context 128."""
    child = bundle_child(int4, threads=2)
    try:
        child.prefill(128)
        child.decode(32)
        assert child.peak_rss() <= Bundle.open(int4).size + 80e6
    finally:
        child.close()
