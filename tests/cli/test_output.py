import sys
from typing import Any

import pytest

from tamiz.api.site import Site, SiteKind
from tamiz.cli._output import fold, print_answer, print_table, size


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
