"""What the tests for ARM say where they cannot run."""

import subprocess
import sys
from pathlib import Path

from kit.rooms import ROOT

SCRIPT = ROOT / "tools" / "arm.py"


def arm(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    env = {"PATH": ""}  # as on a machine without the programs, and without apt-get
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, env=env)


def test_a_machine_without_the_compiler_skips_and_says_what_to_install(tmp_path: Path) -> None:
    skipped = arm("folder", cwd=tmp_path)
    assert (skipped.returncode, skipped.stderr) == (0, "")
    (line,) = skipped.stdout.splitlines()
    assert line.startswith("arm: SKIPPED: ")
    assert "apt-get install g++-aarch64-linux-gnu qemu-user-static" in line


def test_an_unknown_level_is_refused(tmp_path: Path) -> None:
    refused = arm("folder", "--levels", "neon,sve", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--levels: found sve, expected neon, dotprod, i8mm" in refused.stderr
