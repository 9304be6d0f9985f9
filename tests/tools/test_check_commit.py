"""The hook that reads messages of commits."""

import subprocess
import sys
from pathlib import Path

import pytest

from kit.rooms import ROOT

SCRIPT = ROOT / "tools" / "check_commit.py"
GOOD = "Round keys to 8 bits\n\nA cache of floats is read four times as slowly.\n"


def check(message: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "COMMIT_EDITMSG"
    file.write_text(message, "utf-8")
    command = [sys.executable, str(SCRIPT), str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "message",
    [
        GOOD,
        f"{'x' * 72}\n\nWhy.\n",
        GOOD + "# a comment of git; of more than seventy-two characters, which is long\n",
        GOOD + "# ------------------------ >8 ------------------------\ndiff --git a/x b/x\n",
        "fixup! Round keys to 8 bits\n",
        "Merge branch 'main'\n",
    ],
)
def test_a_good_message_passes(message: str, tmp_path: Path) -> None:
    done = check(message, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        (f"{'x' * 73}\n\nWhy.\n", "title: found 73 characters, expected at most 72"),
        ("Round keys; read pages\n\nWhy.\n", 'title: found "; "'),
        ("Round keys.\n\nWhy.\n", "title: found a full stop"),
        ("Round keys\nWhy.\n", "line 2: found text, expected a blank line"),
        ("Round keys\n", "body: found none"),
        ("Round keys\n\nSigned-off-by: A <a@b.c>\n", "body: found none"),
        ("Round keys\n\n# Please enter the commit message\n", "body: found none"),
    ],
)
def test_a_fault_is_named(message: str, fault: str, tmp_path: Path) -> None:
    done = check(message, tmp_path)
    assert done.returncode == 1
    assert fault in done.stderr
