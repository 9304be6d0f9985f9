import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from kit.folders import contents
from kit.noisy import is_values, noisy, rewrite_steps, schedule
from kit.patience import PATIENCE
from tamiz.api.technique import Autotune, Technique
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.interface import metadata
from tamiz.planning.plan import choose
from tamiz.plugins import Plugin, Plugins, load
from tamiz.reporting.report import Report

pytestmark = pytest.mark.slow


def loaded(technique: Technique) -> Plugins:
    plugins = load()
    made = Plugin("noisy", "tests", "tests", "1", techniques=[technique])
    return Plugins(plugins.manager, [*plugins.installed, made])


def run(
    dense: Path,
    config: dict[str, Any] | None,
    name: str = "out",
    technique: Technique | None = None,
    **options: Any,
) -> Report:
    plugins = loaded(technique or noisy())
    wanted = {} if config is None else {"noisy": config}
    chosen = choose(plugins.techniques(), wanted)
    return build(dense, dense.parent / name, chosen, plugins, Options(**options))


def policy(dense: Path, **defaults: Any) -> Path:
    path = dense.parent / "policy.json"
    path.write_text(json.dumps({"version": 1, "defaults": defaults}))
    return path


ANYTHING: dict[str, Any] = {"gating": {}}


def test_a_good_technique_stays(tiny_dense: Path) -> None:
    report = run(tiny_dense, {"noise": 1e-4})
    assert report.gate.result.holds
    applied = [s.techniques[-1] for s in report.sites.values()]
    assert sum(t.name == "noisy" and t.decision.applied for t in applied) == 14
    assert Bundle.open(tiny_dense.parent / "out").manifest.unsafe == {}


def test_a_bad_technique_is_backed_off_to_the_fallback(tiny_dense: Path) -> None:
    """The thresholds of the single tensors are off, so only the whole model protects."""
    report = run(tiny_dense, {"noise": 3.0}, policy=policy(tiny_dense, **ANYTHING), max_dppl=1e-4)
    out = tiny_dense.parent / "out"
    trials = report.gate.trials
    assert all(not trial.holds for trial in trials[:-1])
    assert report.check["max_relative_error"] < 0.05
    entry = report.sites["layers.0.ffn_up"].techniques
    assert [(t.name, t.decision.applied) for t in entry] == [
        ("noisy", False),
        ("block-quant", True),
    ]
    assert "backed off by the gate of the whole model" in entry[0].decision.reason
    assert Bundle.open(out).manifest.unsafe["layers.0.ffn_up"] == "noisy"
    plain = run(tiny_dense, None, "int4")
    skipped = "nothing that was applied loses anything"
    assert plain.gate.skipped == skipped
    assert (out / "model.onnx.data").read_bytes() == (
        tiny_dense.parent / "int4" / "model.onnx.data"
    ).read_bytes()


def test_what_acts_on_steps_only_is_scored_step_by_step(tiny_dense: Path) -> None:
    steps = noisy(rewrite=rewrite_steps, decode_only=True)
    # Text that the model wrote: there, what is lost shows in the perplexity.
    own: dict[str, Any] = {"policy": policy(tiny_dense, **ANYTHING), "domains": ("own",)}
    plain = run(tiny_dense, {"noise": 0.3}, technique=steps, max_dppl=100.0, **own).gate
    (trial,) = plain.trials
    assert plain.decode
    assert trial.ppl == pytest.approx(trial.ppl_dense, rel=1e-3)
    assert trial.dppl == pytest.approx(trial.ppl_decode / trial.ppl_decode_dense - 1, 0.01)
    assert trial.kl_decode > 100 * trial.kl_mean
    strict = run(tiny_dense, {"noise": 0.3}, technique=steps, max_dppl=trial.dppl / 2, **own)
    assert strict.gate.trials[0].refused or strict.gate.trials[1].refused
    assert strict.gate.result is None or strict.gate.result.holds


def test_the_worst_goes_first(tiny_dense: Path) -> None:
    worse = "layers.1.ffn_down"
    loose = policy(tiny_dense, **ANYTHING)
    everything = run(tiny_dense, {"noise": 0.3, "worse": worse}, policy=loose, max_dppl=100.0)
    assert everything.gate.trials[-1].refused == []
    full = everything.gate.trials[-1].dppl
    report = run(
        tiny_dense, {"noise": 0.3, "worse": worse}, policy=loose, max_dppl=max(full * 0.8, 1e-5)
    )
    refused = [trial.refused for trial in report.gate.trials if trial.refused]
    assert refused
    assert all(sites[0] == worse for sites in refused)
    assert report.sites["layers.1.ffn_down"].decision.refused == ["noisy"]


def test_refused_fits_mark_their_nodes(tiny_dense: Path) -> None:
    report = run(tiny_dense, {"noise": 1.0})
    decision = report.sites["layers.0.attn_q"].decision
    assert decision.applied == ["block-quant"]
    assert decision.refused == ["noisy"]
    assert "noisy: refused: rel_l2 is" in decision.reason
    model = ir.load(tiny_dense.parent / "out" / "model.onnx")
    marked = ",".join(n.metadata_props.get(metadata.UNSAFE, "") for n in model.graph)
    assert "layers.0.attn_q:noisy" in marked.split(",")
    assert marked.count(":noisy") == 14


def test_autotune_stops_at_the_first_that_passes(tiny_dense: Path) -> None:
    report = run(tiny_dense, {"noise": 9.0}, autotune=True, max_dppl=None)
    tensor = report.sites["layers.0.ffn_up"]
    attempts = tensor.autotune.attempts
    assert [a.config["noise"] for a in attempts] == [1.0, 0.5, 0.01]
    assert [a.passed for a in attempts] == [False, False, True]
    assert all(a.seconds >= 0 for a in attempts)
    assert tensor.decision.applied == ["noisy"]
    assert tensor.applied[0].config["noise"] == 0.01
    inside = Bundle.open(tiny_dense.parent / "out").json("report.json")
    assert inside["sites"]["layers.0.ffn_up"]["autotune"]["attempts"][0]["seconds"] is None


def test_a_policys_schedule_and_best_effort(tiny_dense: Path) -> None:
    tuned = {"enabled": True, "schedule": [2.0, {"noise": 0.8}, 1.5, 0.001], "max_iters": 3}
    report = run(tiny_dense, {}, policy=policy(tiny_dense, autotune=tuned))
    tensor = report.sites["layers.1.attn_o"]
    attempts = tensor.autotune.attempts
    noises = [a.config["noise"] for a in attempts if a.technique == "noisy"]
    assert noises == [2.0, 0.8, 1.5]
    best = report.sites["layers.1.attn_o"].techniques[0]
    assert (best.config["noise"], best.decision.applied) == (0.8, False)


def test_the_dense_weight_stays_where_a_technique_can_use_it(tiny_dense: Path) -> None:
    kept: dict[str, bool] = {}
    for fallback in (True, False):
        report = run(
            tiny_dense, {"noise": 1e-4}, technique=noisy(fallback=fallback), strip_dense=False
        )
        decision = report.sites["layers.0.ffn_up"].decision
        kept[str(fallback)] = decision.strip_applied
    assert kept == {"True": False, "False": True}


def test_fits_see_the_calibration(tiny_dense: Path) -> None:
    path = tiny_dense.parent / "c.safetensors"
    calibrate_bundle(tiny_dense, path, load(), windows=2, domains=["own"])
    report = run(tiny_dense, {"noise": 0.02}, calibration=path)
    (entry,) = report.sites["layers.0.ffn_up"].techniques
    assert entry.metrics["tokens"] == 512
    assert entry.metrics["cos_p05_x"] < entry.metrics["cos_mean_x"] <= 1
    gating = report.sites["layers.0.ffn_up"].gating
    assert (gating.judged, gating.fallback) == ("cos_x_w", False)
    assert report.gate.text == "calibration"


def test_any_number_of_jobs_gives_the_same_bytes(tiny_dense: Path) -> None:
    for jobs in (1, 2):
        run(tiny_dense, {"noise": 0.05}, f"jobs{jobs}", jobs=jobs, autotune=True)
    folder = tiny_dense.parent
    assert contents(folder / "jobs1") == contents(folder / "jobs2")


def test_a_build_from_a_report_is_the_same_model(tiny_dense: Path) -> None:
    loose = policy(tiny_dense, autotune={"enabled": True}, noise={"up": 2.0})
    run(tiny_dense, {"noise": 0.02}, policy=loose, max_dppl=0.001)
    first = tiny_dense.parent / "out"
    run(tiny_dense, None, "again", report=first / "report.json")
    again = contents(tiny_dense.parent / "again")
    for name, content in contents(first).items():
        if not name.startswith("report") and name != "tamiz.json":
            assert again[name] == content, name


def test_a_report_of_something_else_is_refused(tiny_dense: Path) -> None:
    run(tiny_dense, {"noise": 1e-4})
    path = tiny_dense.parent / "out" / "report.json"
    report = json.loads(path.read_text())
    site = report["sites"]["layers.0.ffn_up"]
    for change, reason in (
        ({"fingerprint": "0"}, "another model"),
        ({"fingerprint": None, "source_sha256": "0"}, "another model"),
        ({"sites": {"layers.7.ffn_up": site}}, "layers.7.ffn_up is no site"),
        ({"build": {}}, "build: lacks the key 'policy_file'"),
        ({"build": {**report["build"], "calibration": "x"}}, "another calibration"),
    ):
        broken = tiny_dense.parent / "broken.json"
        broken.write_text(json.dumps({**report, **change}))
        with pytest.raises(TamizError, match=reason):
            run(tiny_dense, None, "again", report=broken)


def slow(dense: Path, resume: bool) -> None:
    run(dense, {"noise": 0.01, "seconds": 0.05}, resume=resume)


def test_a_killed_build_is_resumed(tiny_dense: Path) -> None:
    """Killed at different moments; the result has the same bytes as one that nobody killed."""
    run(tiny_dense, {"noise": 0.01, "seconds": 0.05}, "whole")
    work = tiny_dense.parent / ".out.work"
    moments: list[Callable[[], bool]] = [
        lambda: len(list(work.glob("fits/*.safetensors"))) >= 3,
        lambda: len(list(work.glob("fits/*.safetensors"))) >= 9,
        lambda: (work / "candidate").exists() or not process.is_alive(),
    ]
    for moment in moments:
        process = multiprocessing.get_context("fork").Process(
            target=slow, args=(tiny_dense, True), daemon=True
        )
        process.start()
        limit = time.monotonic() + PATIENCE
        while not moment() and time.monotonic() < limit:
            time.sleep(0.005)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert not (tiny_dense.parent / "out").exists()
        assert work.exists()
    with pytest.raises(TamizError):  # an error on the way loses nothing
        run(tiny_dense, {}, policy=tiny_dense / "none.json", resume=True)
    assert len(list(work.glob("fits/*.safetensors"))) >= 14
    slow(tiny_dense, resume=True)
    assert contents(tiny_dense.parent / "out") == contents(tiny_dense.parent / "whole")
    assert not work.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: bytes(len(data)),
        lambda data: data[:-4] + b"\0\0\x80?",
    ],
    ids=["empty", "truncated", "zeros", "another value"],
)
def test_a_damaged_fit_is_made_again(
    tiny_dense: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[bytes], bytes],
) -> None:
    def fail(*_: Any, **_options: Any) -> None:
        raise RuntimeError("crash")

    run(tiny_dense, {"noise": 0.01}, "whole", max_dppl=None)
    monkeypatch.setattr("tamiz.building.build.write_model", fail)
    with pytest.raises(RuntimeError, match="crash"):
        run(tiny_dense, {"noise": 0.01}, max_dppl=None)
    monkeypatch.undo()
    fit = sorted((tiny_dense.parent / ".out.work" / "fits").glob("*.safetensors"))[0]
    fit.write_bytes(damage(fit.read_bytes()))
    run(tiny_dense, {"noise": 0.01}, max_dppl=None, resume=True)
    assert contents(tiny_dense.parent / "out") == contents(tiny_dense.parent / "whole")
    (said,) = caplog.messages
    assert f"{fit}: the fit of " in said
    assert "is damaged and is made again" in said


def test_a_fit_under_the_name_of_another_is_made_again(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A whole file, but of another site: it says what it is of."""

    def fail(*_: Any, **_options: Any) -> None:
        raise RuntimeError("crash")

    run(tiny_dense, {"noise": 0.01}, "whole", max_dppl=None)
    monkeypatch.setattr("tamiz.building.build.write_model", fail)
    with pytest.raises(RuntimeError, match="crash"):
        run(tiny_dense, {"noise": 0.01}, max_dppl=None)
    monkeypatch.undo()
    one, other = sorted((tiny_dense.parent / ".out.work" / "fits").glob("*.safetensors"))[:2]
    one.write_bytes(other.read_bytes())
    run(tiny_dense, {"noise": 0.01}, max_dppl=None, resume=True)
    assert contents(tiny_dense.parent / "out") == contents(tiny_dense.parent / "whole")
    assert f"{one}: the fit of " in caplog.text


def test_the_next_configuration_comes_before_the_fallback(tiny_dense: Path) -> None:
    loose = policy(tiny_dense, gating={}, autotune={"enabled": True, "schedule": [2.0, 1e-5]})
    report = run(tiny_dense, {}, policy=loose, max_dppl=1e-4)
    tensors = [site for name, site in report.sites.items() if name.startswith("layers.")]
    assert all(t.decision.applied == ["noisy"] for t in tensors)
    assert all(t.decision.refused == [] for t in tensors)
    tuned = [t for t in tensors if t.applied[0].config["noise"] == 1e-5]
    assert tuned
    assert [a.config["noise"] for a in tuned[0].autotune.attempts] == [2.0, 1e-5]
    assert report.gate.result.dppl <= 1e-4


def test_fragile_sites_go_first(tiny_dense: Path) -> None:
    loose = policy(tiny_dense, gating={}, autotune={"enabled": True, "schedule": [0.5, 1e-5]})
    technique = noisy(autotune=Autotune("noise", schedule, fragile=is_values))
    report = run(tiny_dense, {}, technique=technique, policy=loose, max_dppl=0.02)
    first = next(trial.refused for trial in report.gate.trials if trial.refused)
    fragile = [site.endswith(".attn_v") for site in first]
    assert sum(fragile) == 2
    assert all(fragile[:2])


def test_a_dask_cluster_gives_the_same_bytes(tiny_dense: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="the extra dask is not installed")
    run(tiny_dense, {"noise": 0.05}, "here", autotune=True)
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None)
    with cluster, distributed.Client(cluster):
        run(tiny_dense, {"noise": 0.05}, "there", autotune=True, backend="dask")
    assert contents(tiny_dense.parent / "here") == contents(tiny_dense.parent / "there")


def test_two_builds_of_one_folder_are_refused(tiny_dense: Path) -> None:
    process = multiprocessing.get_context("fork").Process(
        target=slow, args=(tiny_dense, False), daemon=True
    )
    process.start()
    work = tiny_dense.parent / ".out.work"
    limit = time.monotonic() + PATIENCE
    while not list(work.glob("fits/*.safetensors")) and time.monotonic() < limit:
        time.sleep(0.005)
    with pytest.raises(TamizError, match="another build is writing it"):
        run(tiny_dense, {"noise": 0.01})
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert Bundle.open(tiny_dense.parent / "out").manifest.kind == "built"
    run(tiny_dense, {"noise": 0.01})  # one after the other is fine
