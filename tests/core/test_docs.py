"""The reference pages are what the declarations say."""

import subprocess
import sys
from pathlib import Path

GENERATE = Path(__file__).parents[2] / "docs" / "generate.py"


def test_reference_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, GENERATE, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
