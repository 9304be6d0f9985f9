"""Tests each technique with few others installed: `python tests/kit/alone.py [TECHNIQUE …]`."""

from __future__ import annotations

import os
import subprocess
import sys

#: Every technique, with what it requires and its rivals in tests of conflicts.
COMPANIONS = {
    "activation-bits": ("block-quant",),
    "block-quant": (),
    "event-driven": (
        "kwta", "block-quant", "state-pack", "ternary", "window-attention", "kv-int8",
    ),
    "head-shortlist": ("block-quant",),
    "key-filter": ("block-quant",),
    "kv-int8": ("block-quant",),
    "kwta": ("block-quant",),
    "proc-sparse": ("block-quant",),
    "seed-delta": ("proc-sparse", "block-quant"),
    "state-pack": ("ternary", "block-quant"),
    "tensor-train": ("block-quant",),
    "ternary": ("block-quant",),
    "window-attention": ("block-quant",),
}  # fmt: skip


def main() -> None:
    """Exits with 1 where the tests of a technique fail, and names it."""
    names = sys.argv[1:] or list(COMPANIONS)
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", "pytest", "tests/plugins"]
        environment = {**os.environ, "TAMIZ_TEST_ONLY": name}
        if subprocess.run(command, env=environment, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
