"""Every measured number of the pages is in a file of results or in the notebook.

A paragraph or table that claims a speed, a size or a loss has a comment before it:
``<!-- measured: FILE, FILE -->`` names files of `benchmarks/results` or `lab`, and each number of
the paragraph is in one of them. ``<!-- not measured: REASON -->`` says why it needs none.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.rooms import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
]
#: What `tools/site/results.py` writes from the results, and code.
_MADE = re.compile(r"<!-- results: .*?<!-- end of results -->", re.S)
_CODE = re.compile(r"^(`{3,}).*?^\1$", re.M | re.S)
_MARK = re.compile(r"<!-- (measured|not measured): (.*?) -->\n")
#: What claims a measurement: a number with such a unit, a range, or a column of them.
_CLAIM = re.compile(
    r"\d ?(?:×|times\b|tokens per second|tok/s|MB\b|GB\b|GB/s|µs|ms\b)|\| Δppl, |, ×|, times source"
    r"|\d\.\d+ to \d\.\d|\| [−-]?\d+\.\d+ \||(?:twice|half) as (?:fast|slow)|twice the time"
    r"|(?:KL divergence|change in perplexity).*\d\.\d|cosines? of \d"
    r"|\d (?:texts per second|minutes)"
    r"|\d %\s(?:smaller|larger|faster|slower|more|less|of the (?:bytes|time|speed))",
    re.S,
)
_NUMBER = re.compile(r"(?<![\w.,-])[−-]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?(?![\w-]| bits\b)")
_NO_PROSE = re.compile(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)")


def paragraphs(page: str) -> Iterator[str]:
    """Paragraphs and tables of a page that are written by hand."""
    for part in re.split(r"\n\s*\n", _CODE.sub("", _MADE.sub("", page))):
        if part.strip():
            yield part


def numbers(text: str) -> set[str]:
    """The numbers of a text, but for bits and single digits: they count things."""
    found = {each.replace(",", "").replace("−", "-") for each in _NUMBER.findall(text)}
    return {each for each in found if not re.fullmatch(r"-?\d", each)}


def values(stored: Any) -> Iterator[float]:
    """All numbers of a file of results; lengths of prompts and contexts are keys."""
    if isinstance(stored, dict):
        yield from (float(key) for key in stored if key.isdigit())
        for each in stored.values():
            yield from values(each)
    elif isinstance(stored, list):
        for each in stored:
            yield from values(each)
    elif isinstance(stored, (int, float)) and not isinstance(stored, bool):
        yield float(stored)


def is_in(number: str, file: Path) -> bool:
    """Whether a file has a number, also with more digits.

    Files of results have percentages as fractions.
    """
    text = file.read_text("utf-8")
    if file.suffix == ".md":
        found = [float(each) for each in numbers(text)]
    else:
        found = [scale * value for value in values(json.loads(text)) for scale in (1, 100)]
    digits = len(number.partition(".")[2])
    return any(_rounded(value, number, digits) == number for value in found)


def _rounded(value: float, like: str, digits: int) -> str:
    """A number with as many digits as another one; 2.4e-4 is written so."""
    if "e" in like:
        return f"{value:.1e}".replace("e-0", "e-")
    rounded = f"{value:.{digits}f}"
    return rounded if float(rounded) else rounded.removeprefix("-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_numbers_of_a_page_are_in_the_files_that_it_names(page: Path) -> None:
    missing = []
    for text in paragraphs(page.read_text("utf-8")):
        mark = _MARK.search(text)
        if mark is None:
            if _CLAIM.search(_NO_PROSE.sub("", text)):
                missing.append(f"no file is named for: {text[:80]}")
            continue
        if mark[1] == "not measured":
            continue
        files = [ROOT / name for name in mark[2].split(", ")]
        missing += [
            f"{number} is in none of {mark[2]}"
            for number in sorted(numbers(_NO_PROSE.sub("", _MARK.sub("", text))))
            if not any(is_in(number, file) for file in files)
        ]
    assert missing == []


@pytest.mark.parametrize(
    "claim",
    [
        "It decodes 1.5 × as fast.",
        "The ratio is 0.26 to 0.34.",
        "It reads twice as fast.",
        "A file is 7 % smaller.",
        "Embeddings have a cosine of 0.9 with float32.",
        "The tests take 20 minutes.",
        "| loss |\n| --- |\n| 0.11 |",
    ],
)
def test_a_claim_without_a_file_is_seen(claim: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{claim}\n", "utf-8")
    with pytest.raises(AssertionError, match="no file is named"):
        test_numbers_of_a_page_are_in_the_files_that_it_names(page)


def test_a_number_that_no_file_has_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    name = "benchmarks/results/speculation-1-qwen-0.5b.json"
    page.write_text(f"<!-- measured: {name} -->\nIt decodes 98.7654 × as fast.\n", "utf-8")
    with pytest.raises(AssertionError, match=r"98\.7654 is in none"):
        test_numbers_of_a_page_are_in_the_files_that_it_names(page)
