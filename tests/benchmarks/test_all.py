"""`python -m benchmarks all`: what it runs, what it makes first, and what it leaves out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import __main__ as benchmarks
from benchmarks import all as module
from benchmarks.all import BY_HAND, RUNS, MissingError, Places, Run, file_of, is_stored, main
from benchmarks.common import record

RESULTS = Path(module.__file__).parent / "results"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for folder in ("models", "work"):
        (tmp_path / folder).mkdir()
    return Places(tmp_path / "models", tmp_path / "work", None, {"llama.cpp": "python-of-it"})


def test_all_stored_results_are_measured_again_but_those_made_by_hand() -> None:
    stored = {json.loads(path.read_text())["benchmark"] for path in RESULTS.glob("*.json")}
    assert stored - {run.benchmark for run in RUNS} <= set(BY_HAND)
    assert not set(BY_HAND) & {run.benchmark for run in RUNS}
    assert len({run.result for run in RUNS}) == len(RUNS)


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.result)
def test_every_benchmark_has_the_options(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [each for each in run.arguments.split()[:1] if each.isalpha()]
    with pytest.raises(SystemExit):
        benchmarks.run(run.benchmark, [*parts, "--help"])
    told = capsys.readouterr().out
    flags = [re.split("[={]", each.lstrip("?"))[0] for each in run.arguments.split()]
    assert [flag for flag in flags if flag.startswith("--") and flag not in told] == []
    assert "--json" in told


def test_arguments_are_filled_and_optional_ones_left_out(places: Places) -> None:
    source = places.models / module.SOURCES["smollm2"]
    source.touch()
    (places.work / "smollm2.stored").mkdir()
    given = "{smollm2.stored} --gguf={smollm2} --python=llama.cpp={python:llama.cpp} "
    given += "?--x={text} {url}/v1"
    assert places.arguments(given, "http://here") == [
        str(places.work / "smollm2.stored"),
        f"--gguf={source}",
        "--python=llama.cpp=python-of-it",
        "http://here/v1",
    ]


def test_what_is_made_of_a_dense_bundle_is_made_once(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, ...]] = []
    monkeypatch.setattr(module, "_run", lambda *arguments: ran.append(tuple(map(str, arguments))))
    dense, target = places.work / "gemma.dense", places.work / "gemma.1"
    dense.mkdir()
    (places.models / module.SOURCES["gemma"]).touch()
    assert places.arguments("{gemma.1}") == [str(target)]
    made = ("-m", "tamiz", "build", str(dense), "-o", str(target), "--max-dppl=0.01")
    assert ran == [made]
    target.mkdir()
    places.arguments("{gemma.1}")
    assert ran == [made]


def test_results_without_speeds_are_named_after_no_processor(tmp_path: Path) -> None:
    by_name = {run.result: file_of(run, tmp_path).stem for run in RUNS}
    assert by_name["greedy-smollm2-135m"] == "greedy-smollm2-135m"
    assert by_name["budgets-smollm2-135m"] != "budgets-smollm2-135m"


@pytest.mark.parametrize(
    "given", ["{gemma}", "{gemma.stored}", "{text}", "{python:openvino}", "{module:no_such_module}"]
)
def test_what_is_missing_is_told(places: Places, given: str) -> None:
    with pytest.raises(MissingError, match="needs "):
        places.arguments(given)


def test_a_result_of_this_commit_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[str] = []
    monkeypatch.setattr(module, "measure", lambda run, places, path: measured.append(run.result))
    zeros = next(run for run in RUNS if run.benchmark == "zeros")
    arguments = ["--models", tmp_path, "--work", tmp_path / "work", "--results", tmp_path]
    arguments += ["--only", "zeros", "--only", "quantized-onnx"]
    path = file_of(zeros, tmp_path)
    record.write(path, "zeros", {})
    assert is_stored(path)
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert measured == ["quantized-onnx-smollm2-135m"]
    assert "zeros-made-1b: stored" in done.output
    path.write_text(path.read_text().replace(record.commit(), "another"))
    CliRunner().invoke(main, [*map(str, arguments)])
    assert measured[1:] == ["zeros-made-1b", "quantized-onnx-smollm2-135m"]


def test_what_could_not_be_measured_ends_the_list(tmp_path: Path) -> None:
    arguments = ["--models", tmp_path, "--work", tmp_path / "work", "--only", "peers"]
    done = CliRunner().invoke(main, [*map(str, arguments), "--results", str(tmp_path)])
    assert done.exit_code == 1
    lines = [line for line in done.output.splitlines() if line.startswith("NOT MEASURED: peers-")]
    assert len(lines) == 4
