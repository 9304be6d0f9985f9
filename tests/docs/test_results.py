"""The pages of results are made from the stored files, and are current."""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.rooms import ROOT
from tamiz.evaluation.bench import Measurement, ratios

SCRIPT = ROOT / "tools" / "site" / "results.py"
README = "# tamiz\n\n{0}\n\nearlier text\n\n{1}\n\n## Install\n"


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    return importlib.import_module("results")


@pytest.fixture
def repository(results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a README and no results."""
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "RESULTS", tmp_path / "benchmarks" / "results")
    results.RESULTS.mkdir(parents=True)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "README.md").write_text(README.format(*results.MARKERS))
    return tmp_path


def made(decode: float, prefill: float) -> Measurement:
    measured = Measurement(load_s=0.5)
    for length, speed in ((128, decode), (2000, decode / 2)):
        measured.decode[length] = [speed, speed]
    measured.prefill[512] = [prefill, prefill]
    return measured


def store(
    folder: Path, name: str, benchmark: str, found: Any, processor: str = "CPU", **settings: Any
) -> None:
    record = {
        "benchmark": benchmark, "date": "2026-01-02", "commit": "abc",
        "machine": {
            "processor": processor, "cores": 2, "memory_gb": 8.0, "isa": "avx2", "load": 0.1
        },
        "versions": {"tamiz": "0"}, "settings": settings, "results": found,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(record))


def store_peers(
    results: ModuleType, decode: float = 1234.0, name: str = "peers-tiny", processor: str = "CPU"
) -> None:
    ours, theirs = made(decode, 5000.0), made(20.0, 40.5)
    found: dict[str, Any] = {
        "threads": 2,
        "read_gb_s": 9.0,
        "tamiz": ours.summary(),
        "llama.cpp": theirs.summary(),
    }
    found["llama.cpp"]["ratio"] = {
        "decode_tok_s": ratios(ours.decode, theirs.decode),
        "prefill_tok_s": ratios(ours.prefill, theirs.prefill),
    }
    found["skipped"] = {"genai": "no model was given for it"}
    store(results.RESULTS, name, "peers", found, processor, gguf="tiny.gguf", bundle="b")


def run(results: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["results.py", *arguments])
    results.main()


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
    row = {"mb": 1.0, "cos_mean": 0.99, "cos_p05": 0.9, "same_nearest": 1.0, "speed": 2.0}
    row |= {"speed_range": [1.0, 3.0]}
    found = {
        "tamiz q8_0 nearest, inputs of 8 bits": row | {"ms": 2.0},
        "OpenVINO int8 by NNCF": row | {"ms": 1.0, "cos_mean": 0.9},
    }
    told = {"batch": 2, "length": 64, "texts": 4, "text": "t"}
    store(results.RESULTS, "encoders-a", "encoders", found, model="mini", **told)
    store(results.RESULTS, "encoders-b", "encoders", found, "Other", model="else", **told)
    run(results, monkeypatch)
    readme = (repository / "README.md").read_text()
    assert "| decode of 8 sequences at once | m | 60.0 | **70.0** |" in readme
    assert "| embed texts | mini |  | 64,000 |  | **128,000** |" in readme
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


def test_techniques_together_become_a_table_and_a_chart(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quality = {"dppl": 0.01, "dppl_2048": 0.02, "kl": 0.003, "top1": 1.0, "recall": None}
    speed = {"decode_tok_s": {"128": 50.0}, "ratio": {"128": 1.5}}
    found = {
        "int4": {"quality": quality, "speed": speed, "bytes": 97_000_000},
        "kwta": {"flags": ["--kwta=on"]},
    }
    store(results.RESULTS, "composition-tiny", "composition", found, model="dense")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| int4 | 50.0 | 1.50 | 1.00 | 2.00 | 0.00300 | 97.0 |" in page
    assert "kwta" not in page
    assert "int4" in (repository / "docs/results/composition.svg").read_text()


def test_perplexities_of_all_models_are_one_table(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"ppl": {"tamiz": 9.0, "peer": 10.0}, "tamiz_against": {"peer": {"relative": -0.1}}}
    two = {"ppl": {"tamiz": 8.0, "other": 8.0}, "tamiz_against": {"other": {"relative": 1e-6}}}
    store(results.RESULTS, "perplexity-a", "perplexity", one, model="a.gguf")
    store(results.RESULTS, "perplexity-b", "perplexity", two, model="b.gguf")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| model | tamiz | other | tamiz : other, % | peer | tamiz : peer, % |" in page
    assert "| a | 9.000 |  |  | 10.000 | -10.0000 |\n| b | 8.000 | 8.000 | +0.0001 |  |  |" in page
    assert "- a: 2026-01-02" in page


def test_greedy_answers_show_how_far_they_part(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {
        "peer": {"prompts": 20, "equal": 6, "median_margin": 0.0949, "largest_margin": 0.323},
        "float32": {"prompts": 20, "equal": 20, "median_margin": None, "largest_margin": None},
    }
    store(results.RESULTS, "greedy-a", "greedy", found, model="a.gguf")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| a | peer | 20 | 6 | 0.0949 | 0.323 |\n| a | float32 | 20 | 20 |  |  |" in page


def test_situations_in_which_techniques_hold_are_a_table(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = {
        "technique": "tt", "situation": "rank 8", "against": "int4", "size": 0.25, "speed": 1.5,
        "speed_range": [1.0, 2.0], "loss": 0.01, "holds": True,
    }  # fmt: skip
    other = {key: value for key, value in row.items() if key != "size"} | {"holds": False}
    found = {"threads": 2, "rows": [row, other]}
    store(results.RESULTS, "acceptance-a", "acceptance", found, model="made")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| tt | rank 8 | int4 | 25.0 | 1.50 | 1.00 to 2.00 | 1.00 | yes |" in page
    assert "| tt | rank 8 | int4 |  | 1.50 | 1.00 to 2.00 | 1.00 | no |" in page


def test_sequences_at_once_are_a_table(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = {"alone": {"tok_s": 20.0, "times_alone": 1.0}, "4": {"tok_s": 60.0, "times_alone": 3.0}}
    store(results.RESULTS, "batch-a", "batch", {"speed": speed}, bundle="a")
    found = {"speed": speed, "bits": {"answers": 8, "equal": 8}}
    store(results.RESULTS, "batch-b", "batch", found, bundle="b")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| a, CPU | 4 | 60.0 | 3.00 |  |" in page
    assert "| b, CPU | alone | 20.0 | 1.00 | 8 of 8 |" in page


def test_speculation_shows_each_kind_of_answer(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit = {
        "cases": 8, "ratio": 4.07, "ratio_range": [2.5, 6.0], "off_tok_s": 50.0,
        "ngram_tok_s": 203.0, "tokens_per_run": 6.0, "equal": 8,
    }  # fmt: skip
    long = {**edit, "self_tok_s": 90.0, "ratio": 1.8}
    del long["ngram_tok_s"]
    summary = {"edit": edit, "prose": {"cases": 0}, "8000 tokens": long}
    store(results.RESULTS, "speculation-a", "speculation", {"summary": summary}, bundle="a")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| a, CPU | edit | 8 | `ngram` | 50.0 | 203 | 4.07 | 2.50 to 6.00 | 8 |  |  |" in page
    by_itself = (
        "| a, CPU | 8000 tokens | 8 | `self` | 50.0 | 90.0 | 1.80 | 2.50 to 6.00 | 8 |  |  |"
    )
    assert by_itself in page
    assert "| prose |" not in page


def test_other_benchmarks_show_their_numbers(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(results.RESULTS, "rows", "other_rows", {"rows": {"16": {"gflops": 12.5}}, "ok": True})
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "## Other rows" in page
    assert "| rows 16 gflops | 12.5 |" in page


def test_products_of_many_rows_show_their_part_of_the_peak(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = {"ms": 9.5, "gop_s": 1520.0, "peak_percent": 73.1, "speed": [1.4, 1.3, 1.5]}
    found = {"768x768": {"peak_gop_s": 2079.0, "sessions": {"q8_0": product}}}
    store(results.RESULTS, "rows-1", "many-rows", found, shapes="mpnet", rows=1024, threads=2)
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| 768 × 768 | q8_0 | 9.50 | 1,520 | 73.1 | 1.40 |" in page
    assert "1,024 rows, 2 threads. Peak: 2,079 to 2,079 × 10⁹" in page


def test_bundles_of_all_are_called_what_they_are(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundles = {
        "m.stored": {"mb": 90.0, "decode_tok_s": 100.0, "speed": 1.0},
        "m.2": {"mb": 80.0, "max_dppl": 0.02, "decode_tok_s": 120.0, "speed": 1.2},
    }
    store(results.RESULTS, "budgets-m", "budgets", {"threads": 2, "bundles": bundles}, model="m")
    alone = {"alone_ms": 2.0, "beside_ms": 3.0, "slowdown": 1.5, "slowdown_range": [1.0, 2.0]}
    found = {"e.q8_0-bytes": alone}
    store(results.RESULTS, "neighbour-e", "neighbour", found, model="e", length=8, threads=2)
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| source format | 90.0 |" in page
    assert "| --max-dppl 0.02 | 80.0 |" in page
    assert "| tamiz q8_0, inputs of 8 bits | 2.00 | 3.00 | 1.50 | 1.00 to 2.00 |" in page


def test_quantisers_are_sorted_by_size(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"mb": 520.0, "kl": 0.0042, "dppl": 0.0031, "top1": 0.981}
    small = {"mb": 372.4, "kl": 0.02254, "dppl": 0.02512, "top1": 0.943}
    found = {"llama.cpp Q6_K imatrix": large, "tamiz choice 01-372.4MB": small}
    store(results.RESULTS, "quantisers-a", "quantisers", found)
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    rows = [line for line in page.splitlines() if "tamiz choice" in line or "Q6_K" in line]
    assert rows[-2:] == [
        "| tamiz choice 01-372.4MB | 372 | 0.0225 | 2.51 | 94.3 |",
        "| llama.cpp Q6_K imatrix | 520 | 0.0042 | 0.31 | 98.1 |",
    ]


def test_losses_on_unseen_text_are_a_table(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"dppl": 0.011, "dppl_error": 0.002, "kl": 0.0051, "dppl_holds": True, "kl_holds": True}
    lost = held | {"dppl": 0.05, "dppl_holds": False}
    bundle = {
        "max_dppl": 0.02, "mb": 80.1, "mb_before": 97.0, "own_dppl": 0.0152,
        "domains": {"manuals": held, "sources": lost},
    }  # fmt: skip
    store(results.RESULTS, "unseen-a", "unseen", {"bundles": {"a.2": bundle}}, model="a")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| limit, % | size, MB | Δppl of the build, % | manuals | sources |" in page
    cells = "1.10 ± 0.20, 0.0051 | 5.00 ± 0.20, 0.0051 (over)"
    assert f"| 2 | 97.0 to 80.1 | 1.52 | {cells} |" in page


def test_levels_show_their_ratios(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = made(60.0, 300.0), made(20.0, 100.0)
    against = {"decode_tok_s": {"128": 3.0}, "prefill_tok_s": {"512": 2.5}}
    levels = {
        "avx2": {"tamiz": ours.summary(), "times avx2": against, "times llama.cpp": against},
        "portable": {"tamiz": theirs.summary()},
    }
    store(results.RESULTS, "levels-a", "levels", {"threads": 2, "levels": levels}, gguf="a.gguf")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| a, CPU | avx2 | 60.0 | 3.00 | 3.00 | 300 | 2.50 | 2.50 |" in page
    assert "| a, CPU | portable | 20.0 |  |  | 100 |  |  |" in page


def test_quotas_show_speeds_and_how_often_a_group_was_stopped(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free, limited = made(60.0, 300.0).summary(), made(50.0, 270.0).summary()
    once = {"decode_tok_s": {"128": 1.0}, "prefill_tok_s": {"512": 1.0}}
    less = {"decode_tok_s": {"128": 0.8}, "prefill_tok_s": {"512": 0.9}}
    engines = {
        "free": {"speeds": free, "times free": once},
        "limited": {"speeds": limited, "times free": less, "periods": 200, "stopped": 50},
    }
    found = {"quota": 1.0, "threads_chosen": 1, "engines": engines}
    store(results.RESULTS, "quota-a", "quota", found, model="a")
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| a, CPU |  | free | 60.0 | 1.00 | 300 | 1.00 |  |" in page
    assert "| a, CPU | 1 | limited | 50.0 | 0.800 | 270 | 0.900 | 25.0 |" in page


def test_predicted_cycles_of_a_case_are_one_row(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = {"processor": "neoverse-n1", "level": "dotprod", "rows": 1, "form": "q4_k"}
    cycles = {"tamiz_16_bits": 0.392, "llama_cpp_dot": 0.2464, "llama_cpp_gemv": 0.2351}
    found = [case | {"name": name, "cycles_per_byte": value} for name, value in cycles.items()]
    store(results.RESULTS, "mca", "mca", found)
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    assert "| neoverse-n1 | dotprod | 1 | q4_k | 0.392 |  | 0.246 | 0.235 |" in page


def test_files_of_other_tools_show_speeds_and_differences(
    results: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = made(60.0, 300.0), made(20.0, 100.0)
    ratio = {"decode_tok_s": {"128": 3.0}, "prefill_tok_s": {"512": 2.5}}
    both = {"tamiz": ours.summary(), "ratio": ratio}
    agreement = [{"relative_difference": 0.002}, {"relative_difference": 0.003}]
    folder = both | {"genai": theirs.summary(), "agreement": agreement, "threads": 2}
    file = both | {"onnxruntime": theirs.summary(), "relative_difference": 4e-6}
    store(results.RESULTS, "a", "genai-folder", folder, model="qwen", activation_bits=None)
    found = {"threads": 2, "nbits": file}
    store(results.RESULTS, "b", "quantized-onnx", found, model="smollm2", activation_bits=32)
    run(results, monkeypatch)
    page = (repository / "docs/results/index.md").read_text()
    speeds = "60.0 | 20.0 | 3.00 | 2.50"
    assert f"| qwen, CPU | genai, int4 | 16 | onnxruntime-genai | {speeds} | 3.0e-03 |" in page
    assert f"| smollm2, CPU | nbits | 32 | ONNX Runtime | {speeds} | 4.0e-06 |" in page
