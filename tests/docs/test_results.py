"""The pages of results are made from the stored files, and are current."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.stored_results import SCRIPT, run, store, store_peers


def test_the_pages_of_the_repository_are_current() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_without_files_the_readme_stays(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(results, monkeypatch)
    assert "No measurement is stored yet" in (repository / "docs/results/index.md").read_text()
    assert "earlier text" in (repository / "README.md").read_text()


def test_a_comparison_becomes_tables_and_a_chart(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_peers(results)
    with pytest.raises(SystemExit, match="not current"):
        run(results, monkeypatch, "--check")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "### tiny" in page
    assert "| llama.cpp | 20.0 | 10.0 | 40.5 |" in page
    assert (
        "2026-01-02, commit `abc`; CPU, 2 cores, avx2, 8.0 GB, load average 0.1; tamiz 0; 2 threads"
        in page
    )
    assert "Not measured: onnxruntime-genai, no model was given for it." in page
    readme = (repository / "README.md").read_text()
    assert "| decode after 128 tokens | tiny | **1,234** | 20.0 |" in readme
    assert "| prefill of 512 tokens | tiny | **5,000** | 40.5 |" in readme
    assert "earlier text" not in readme
    assert readme.endswith(results.MARKERS[1] + "\n\n## Install\n")
    chart = (repository / "docs/results/speed.svg").read_text()
    assert "tiny" in chart
    assert "1,234" in chart
    with pytest.raises(SystemExit, match="0"):
        run(results, monkeypatch, "--check")


def test_the_readme_has_the_first_processor_and_the_ratios_of_others(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_peers(results)
    store_peers(results, 30.0, "peers-tiny2", "Other")
    run(results, monkeypatch)
    readme = (repository / "README.md").read_text()
    assert "| decode after 128 tokens | tiny | **1,234** | 20.0 |" in readme
    assert "**30.0**" not in readme
    assert "decode at 128 and prefill of 512: Other 1.50 to 1.50 and" in readme
    page = (repository / "docs/results/index.md").read_text()
    assert page.index("### tiny, CPU") < page.index("### tiny, Other")
    assert "1,234" in (repository / "docs/results/speed.svg").read_text()


def test_the_readme_has_users_and_encoders_and_marks_the_fastest(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_peers(results)
    for kind, speed in (("stored", 60.0), ("bytes", 70.0)):
        speeds = {count: {"tok_s": speed, "times_alone": 1.0} for count in ("1", "2", "4", "8")}
        store(
            results.RESULTS, f"batch-{kind}", "batch", {"speed": speeds},
            model="m, bits", bundle=f"m.{kind}",
        )  # fmt: skip
    row: dict[str, Any] = {
        "mb": 1.0,
        "cos_mean": 0.99,
        "cos_p05": 0.9,
        "same_nearest": 1.0,
        "speed": 2.0,
    }
    row |= {"speed_range": [1.0, 3.0]}
    mixed: dict[str, Any] = {"mixed_ms": 500.0, "mixed_speed": 4.0}
    found = {
        "tamiz, as by default": row | mixed | {"ms": 2.0},
        "OpenVINO int8 by NNCF": row | mixed | {"ms": 1.0, "cos_mean": 0.9, "mixed_ms": 1000.0},
    }
    told: dict[str, Any] = {"batch": 2, "length": 64, "texts": 4, "text": "t", "mixed": 16}
    store(results.RESULTS, "encoders-a", "encoders", found, model="mini", **told)
    store(results.RESULTS, "encoders-b", "encoders", found, "Other", model="else", **told)
    run(results, monkeypatch)
    readme = (repository / "README.md").read_text()
    assert "| decode of 8 sequences at once | m | 60.0 | **70.0** |" in readme
    assert "| embed texts | mini |  | 64,000 |  | **128,000** |" in readme
    assert "| embed paragraphs, per second | mini |  | **32.0** |  | 16.0 |" in readme
    assert "tamiz, inputs of 8 bits 0.9900 to 0.9900; OpenVINO 0.9000 to 0.9000" in readme
    assert "else" not in readme
    assert "8 at once" in (repository / "docs/results/speed.svg").read_text()


def test_a_chart_of_other_numbers_is_not_current(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_peers(results)
    run(results, monkeypatch)
    chart = repository / "docs/results/speed.svg"
    chart.write_text(chart.read_text().replace("sha256 of the measurements: ", "\\g<0>0"))
    with pytest.raises(SystemExit, match=r"speed\.svg"):
        run(results, monkeypatch, "--check")
