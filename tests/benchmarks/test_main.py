"""`python -m benchmarks`: every benchmark is listed, imports and has a help text."""

import sys

import pytest

from benchmarks import __main__ as benchmarks
from tamiz.files.errors import TamizError


def test_the_list_has_a_title_for_every_benchmark() -> None:
    listing = benchmarks.listing()
    for name, (room, title) in benchmarks.titles().items():
        assert room in benchmarks.ROOMS
        assert title
        assert f"  {name} " in listing
    assert "peer-child" not in listing


@pytest.mark.parametrize("name", benchmarks.titles())
def test_a_benchmark_shows_its_options(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)
    with pytest.raises(SystemExit) as ended:
        benchmarks.run(name, ["--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks {name}" in capsys.readouterr().out


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(TamizError, match=r"no benchmark 'peer'; .*lists them"):
        benchmarks.run("peer", [])
