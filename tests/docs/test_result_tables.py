"""Each benchmark's stored results become a table of its own."""

from pathlib import Path
from types import ModuleType

import pytest

from kit.stored_results import made, run, store


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
