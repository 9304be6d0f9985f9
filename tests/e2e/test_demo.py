"""What `tamiz demo` shows in the end."""

import re
from pathlib import Path

import pytest

from kit.command_line import tamiz

pytestmark = pytest.mark.slow


def test_the_demo_ends_with_a_chart_and_the_path_of_the_report(dense: Path, int4: Path) -> None:
    folder = dense.parent
    assert (folder / "dense", folder / "int4") == (dense, int4)  # used as they are
    result = tamiz("demo", "--dir", folder)
    assert result.exit_code == 0, result.output
    assert re.findall(r"^(\d) of 4, ", result.stderr, re.M) == ["3", "4"]
    shown = result.stdout
    charts = re.findall(
        r"^(Decode|Prefill) .*, tokens per second\n  float32  █+ .*\n  int4     █+ ", shown, re.M
    )
    assert charts == ["Decode", "Prefill"]
    (row,) = re.findall(r"^ *perplexity +([\d.]+) +([\d.]+) *$", shown, re.M)
    assert row[0] == row[1], "the page says that they are equal"
    (page,) = re.findall(r"^Report, .*: (/.*)$", shown, re.M)
    assert Path(page) == (int4 / "report.html").absolute()
    assert Path(page).is_file()
    assert "> What is the capital of France?\n" in shown
    assert "Paris" in shown
