"""``tamiz bench --sweep kwta.k=…``: one bundle a value, scored, timed and plotted."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.cli import main
from tamiz.plugins import load

TEXT = "a sieve lets the small things through and keeps the large ones " * 200


@pytest.mark.usefixtures("quick")
def test_a_sweep(tiny_dense: Path) -> None:
    calibration, text = tiny_dense.parent / "calibration", tiny_dense.parent / "text.txt"
    calibrate_bundle(tiny_dense, calibration, load())
    text.write_text(TEXT, "utf-8")
    out = tiny_dense.parent / "sweep"
    arguments = ["bench", str(tiny_dense), "--sweep", "kwta.k=0.9,0.4", "--context", "8", "--json"]
    files = ["--text", str(text), "-o", str(out), "--calibration", str(calibration)]
    result = CliRunner().invoke(main, [*arguments, *files])
    assert result.exit_code == 0, result.output
    report = json.loads((out / "sweep.json").read_text("utf-8"))
    assert json.loads(result.stdout) == report
    assert [point["value"] for point in report["points"]] == [None, "0.9", "0.4"]
    assert report["points"][0]["speed"] == 1.0
    losses = [point["kl_mean"] for point in report["points"]]
    assert losses[0] < losses[1] < losses[2]
    drawn = ElementTree.fromstring((out / "sweep.svg").read_text("utf-8"))
    assert len(drawn.findall("{http://www.w3.org/2000/svg}circle")) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sweep", "kwta.k=0.5"], "--sweep needs --text and --output"),
        (["--text", "x"], "belong to --sweep"),
    ],
)
def test_what_does_not_belong_together(
    tiny_dense: Path, arguments: list[str], message: str
) -> None:
    result = CliRunner().invoke(main, ["bench", str(tiny_dense), *arguments])
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("sweep", ["kwta", "kwta.k=", "kwta=0.5", "nothing.k=1", "kwta.k=2"])
def test_a_sweep_of_nothing_is_refused(tiny_dense: Path, sweep: str) -> None:
    text = tiny_dense.parent / "text.txt"
    text.write_text(TEXT, "utf-8")
    out = tiny_dense.parent / "sweep"
    arguments = ["bench", str(tiny_dense), "--sweep", sweep, "--text", str(text), "-o", str(out)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert result.output.startswith("error: ")
    assert not out.exists()
