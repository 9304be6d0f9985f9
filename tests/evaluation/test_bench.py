import subprocess
import sys
from typing import Any

import pytest

from tamiz.building.build import build
from tamiz.evaluation import bench
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose

pytestmark = pytest.mark.slow


@pytest.fixture
def quick(monkeypatch) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 2)
    monkeypatch.setattr(bench, "TOKENS", 3)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 10.0 * threads)


def test_a_bundle_alone(quick, dense_dir) -> None:
    told: list[Any] = []
    report = bench.bench(dense_dir, None, (16, 64), 1, told.append)
    assert set(report["decode_tok_s"]) == set(report["prefill_tok_s"]) == {"16", "64"}
    assert all(speed > 0 for speed in report["decode_tok_s"].values())
    assert report["load_s"] > 0
    assert 20 < report["peak_rss_mb"] < 2000
    size = sum(path.stat().st_size for path in dense_dir.iterdir() if path.name != "tamiz.json")
    assert report["bundle_mb"] == pytest.approx(size / 1e6, abs=0.05)
    assert report["read_gb_s"] == 10.0
    assert "against" not in report
    assert report["step"] == {"weights_mb": 0.0, "disk_mb": 0.0, "faults": 0.0, "in_memory": 1.0}
    assert told == ["prefill of 16", "decode at 16", "prefill of 64", "decode at 64"]


def test_a_bundle_against_another(quick, dense_dir, shared_dir) -> None:
    report = bench.bench(shared_dir, dense_dir, (16,), 1)
    assert set(report["against"]) == {
        "decode_tok_s",
        "prefill_tok_s",
        "spread",
        "load_s",
        "peak_rss_mb",
        "bundle_mb",
    }
    assert report["ratio"]["decode_tok_s"]["16"] > 0


def test_a_step_reads_the_packed_weights(quick, dense_dir, tmp_path, plugins) -> None:
    """Of all products once, and none from the disk: the file was just written."""
    policy = choose(plugins.techniques(), {"block-quant": {"bits": 8}})
    build(dense_dir, tmp_path / "packed", policy, plugins)
    data = (tmp_path / "packed" / "model.onnx.data").stat().st_size
    step = bench.bench(tmp_path / "packed", None, (16,), 1)["step"]
    assert 0 < 1e6 * step["weights_mb"] <= data
    assert (step["disk_mb"], step["in_memory"]) == (0.0, 1.0)


def test_what_comes_from_the_disk_was_not_in_memory(monkeypatch) -> None:
    """Of 8 MB of weights a step, 2 MB."""
    monkeypatch.setattr(bench, "TOKENS", 2)
    steps = bench.WARM_UP + 2
    totals = iter(
        {"weights": 5 + 8e6 * steps * n, "disk": 7 + 2e6 * steps * n, "faults": 3 * steps * n}
        for n in range(2)
    )

    class Steps:
        def request(self, do: str) -> dict[str, float]:
            assert do == "reads"
            return next(totals)

        def decode(self, tokens: int) -> float:
            return 1.0

    step: Any = bench._read_of_a_step(Steps())  # type: ignore[arg-type]
    assert step == {"weights_mb": 8.0, "disk_mb": 2.0, "faults": 3.0, "in_memory": 0.75}


def test_ratios_compare_within_a_round() -> None:
    ours, theirs = {128: [10.0, 100.0, 12.0]}, {128: [5.0, 50.0, 4.0]}
    assert bench.ratios(ours, theirs) == {"128": 2.0}
    assert bench.medians(ours) == {"128": 12.0}


def test_the_spread_is_the_range_relative_to_the_median() -> None:
    assert bench.spreads({128: [10.0, 11.0, 12.0], 512: [7.0]}) == {"128": 0.182, "512": 0.0}


def test_load_by_other_programs_is_measured(quick, dense_dir, monkeypatch) -> None:
    monkeypatch.setattr(bench, "LOAD_SECONDS", 0.3)
    command = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as busy:
        report = bench.bench(dense_dir, None, (16,), 1)
        busy.kill()
    assert report["busy_cores"] > 0.3
    assert set(report["spread"]["decode_tok_s"]) == {"16"}


def test_a_context_beyond_the_limit_is_refused(quick, dense_dir) -> None:
    message = r"--context 254 leaves no room for 11 .* limit is 256 .* expected --context 245 or"
    with pytest.raises(TamizError, match=message):
        bench.bench(dense_dir, None, (16, 254), 1)
    assert set(bench.bench(dense_dir, None, (245,), 1)["decode_tok_s"]) == {"245"}


@pytest.mark.parametrize(
    ("contexts", "measured"), [((64, 128, 2000), {"64", "128"}), ((300,), {"245"})]
)
def test_default_contexts_are_those_that_the_model_can_read(
    quick, dense_dir, monkeypatch, contexts, measured
) -> None:
    monkeypatch.setattr(bench, "CONTEXTS", contexts)
    assert set(bench.bench(dense_dir, None, None, 1)["decode_tok_s"]) == measured


@pytest.mark.parametrize(("prefill", "measured"), [(245, {"16", "245"}), (246, {"16"})])
def test_a_prompt_without_room_behind_it_is_not_measured(
    quick, dense_dir, monkeypatch, prefill: int, measured: set[str]
) -> None:
    """The model's limit is 256 tokens, and 11 are decoded."""
    monkeypatch.setattr(bench, "PREFILL", prefill)
    assert set(bench.bench(dense_dir, None, (16,), 1)["prefill_tok_s"]) == measured


def test_what_is_no_bundle_is_refused(quick, tmp_path) -> None:
    with pytest.raises(TamizError, match="not a tamiz bundle"):
        bench.bench(tmp_path, None, (16,), 1)


def test_an_engine_that_dies_leaves_its_last_words() -> None:
    with pytest.raises(TamizError, match=r"peer: .* ended with code 3: no such peer"):
        bench.Child(
            "peer",
            [
                sys.executable,
                "-c",
                "import sys; print('no such peer', file=sys.stderr); sys.exit(3)",
            ],
        )


#: Reads no command, and ends as soon as its engine is loaded.
DYING = """
import os, sys
os.close(0)
print('{"load_s": 0.1, "limit": 512}', flush=True)
sys.exit("out of memory")
"""


def test_an_engine_that_died_before_a_command_leaves_its_last_words() -> None:
    child = bench.Child("peer", [sys.executable, "-c", DYING])
    with pytest.raises(TamizError, match=r"peer: .* ended with code 1: out of memory"):
        child.prefill(16)
    child.close()  # as what measures several engines does afterwards


def test_the_bandwidth_probe_reads_something() -> None:
    assert 0.1 < bench.read_bandwidth(1) < 10_000
