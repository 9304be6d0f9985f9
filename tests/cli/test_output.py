import io
import json
import sys
from typing import Any

import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.cli._output import BAR, fold, print_answer, print_bars, print_json, print_table, size


def site(name: str, layer: int | None) -> Site:
    return Site(name, SiteKind.LINEAR, "node", layer=layer)


def test_folds_sites_that_differ_in_the_layer_only() -> None:
    rows = [(site(f"layers.{i}.attn_q", i), ("small" if i == 3 else "large",)) for i in range(6)]
    rows.append((site("output", None), ("large",)))
    assert fold(rows) == [
        ("layers.0-2,4-5.attn_q", "5", "large"),
        ("layers.3.attn_q", "1", "small"),
        ("output", "1", "large"),
    ]


def test_json_has_null_for_what_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"a": float("inf"), "b": [float("nan"), 0.1, ({"c": -float("inf"), "d": "x"}, None)]}
    print_json(found)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"a": None, "b": [None, 0.1, [{"c": None, "d": "x"}, None]]}


def test_json_has_a_list_of_numbers_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"rows": [[1, -2.5e-8], [], [3]], "texts": ["[\n 1,\n 2\n]"], "mixed": [1, "2"]}
    print_json(value)
    printed = capsys.readouterr().out
    assert json.loads(printed) == value
    assert "  [1, -2.5e-08],\n" in printed
    assert '"mixed": [\n' in printed


def test_folds_names_that_hold_braces() -> None:
    assert fold([(site("linear.{x}", None), ())]) == [("linear.{x}", "1")]


@pytest.mark.parametrize(
    ("count", "text"),
    [(999, "999 B"), (1000, "1.0 kB"), (96_600_000, "96.6 MB"), (2_500_000_000, "2.50 GB")],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_tables_show_names_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["site"], [("linear.[bold]w[/bold] :smile:",)])
    assert "linear.[bold]w[/bold] :smile:" in capsys.readouterr().out


def test_tables_print_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["site"], [("a\x1b[2Jb\nc",)])
    assert "a\\x1b[2Jb\\nc" in capsys.readouterr().out


def test_bars_are_as_long_as_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    print_bars("decode, tok/s", {"dense": 50.0, "int4": 200.0, "none": 0.0})
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "decode, tok/s"
    assert [line.count("█") for line in lines] == [BAR // 4, BAR, 0]
    assert [line.split()[0] for line in lines] == ["dense", "int4", "none"]
    assert [line.split()[-1] for line in lines] == ["50", "200", "0"]
    assert len({len(line) for line in lines}) == 1


def test_bars_of_zeros_are_empty(capsys: pytest.CaptureFixture[str]) -> None:
    print_bars("nothing", {"a": 0.0})
    assert "█" not in capsys.readouterr().out


def test_bars_in_an_encoding_without_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", write_through=True))
    print_bars("decode, tok/s", {"dense": 1.0, "int4": 2.0})
    assert [line.count(b"#") for line in written.getvalue().splitlines()] == [0, BAR // 2, BAR]


#: A model's answer that would change a terminal's title, clear it and beep.
HOSTILE = ["a\x1b]0;title\x07", "b\x1b[2J\x9b", "ü\t\r\n\x00"]


@pytest.mark.parametrize(
    ("is_terminal", "shown"),
    [(True, "a]0;titleb[2Jü\t\n\n"), (False, "".join(HOSTILE) + "\n")],
)
def test_a_terminal_obeys_no_answer(
    is_terminal: bool, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal, raising=False)
    print_answer(HOSTILE)
    assert capsys.readouterr().out == shown
