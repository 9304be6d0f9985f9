"""Builds within limits: formats are chosen for each site, limits are used and hold."""

import math
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from kit.command_line import ok, refused
from kit.folders import contents
from tamiz.building.build import build
from tamiz.building.fit import fitting
from tamiz.building.options import Options
from tamiz.building.search import what_pays
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.reader import bundle_report
from tamiz.reporting.report import Report
from tamiz.survey.export import export
from tamiz.testing.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow

TEXT = "The quick brown fox jumps over the lazy dog. Hello world, hello allocator! " * 200


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose weights are Q8_0, and its calibration."""
    from tamiz.plugins import load

    folder = tmp_path_factory.mktemp("reference")
    write_tiny_llama(folder / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    dense = export(str(folder / "tiny.gguf"), folder / "dense", load()).path
    (folder / "text.txt").write_text(TEXT)
    calibrate_bundle(dense, folder / "known", load(), texts=[folder / "text.txt"])
    return folder


def built(reference: Path, out: Path, plugins: Plugins, **fields: object) -> Report:
    options = Options(calibration=reference / "known", goal=Goal(**fields))  # type: ignore[arg-type]
    chosen = choose(plugins.techniques())
    return build(reference / "dense", out, chosen, plugins, options)


def formats(report: Report) -> list[str]:
    return [
        str(site.applied[0].config.get("format")) if site.applied else "stored"
        for site in report.sites.values()
    ]


def test_a_limit_of_size_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    most = 70_000  # of 85,096
    report = built(reference, tmp_path / "out", plugins, max_bytes=most, prefer="quality")
    assert 0.97 * most <= report.totals.bytes_after <= most
    assert report.gate.trials[0].bytes == report.totals.bytes_after
    assert len(set(formats(report))) > 1


def test_a_limit_of_kl_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    loose = built(reference, tmp_path / "loose", plugins, max_kl=1.0, prefer="size")
    most = loose.gate.result.kl_mean / 3
    report = built(reference, tmp_path / "out", plugins, max_kl=most, prefer="size")
    assert 0.5 * most <= report.gate.result.kl_mean <= most
    assert report.totals.bytes_after > loose.totals.bytes_after
    assert report.gate.result.kl_error is not None


def test_a_limit_of_dppl_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    # Text that the model wrote: there, what is lost shows in the perplexity.
    def own(name: str, most: float) -> Report:
        options = Options(goal=Goal(max_dppl=most, prefer="size"), domains=("own",))
        chosen = choose(plugins.techniques())
        return build(reference / "dense", tmp_path / name, chosen, plugins, options)

    loose = own("loose", 10.0)
    most = loose.gate.result.dppl / 3
    report = own("out", most)
    assert report.gate.result.dppl <= most
    assert 0.5 <= report.gate.result.used <= 1
    assert report.totals.bytes_after > loose.totals.bytes_after
    assert report.gate.result.dppl_error is not None
    assert all(trial.predicted >= 0 for trial in report.gate.trials)


def test_a_limit_of_dppl_bounds_the_divergence(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    # Text that the model finds as unlikely as any: there, its perplexity hides what is lost.
    loose = built(reference, tmp_path / "loose", plugins, max_dppl=10.0, prefer="size").gate.result
    most = math.expm1(loose.kl_mean / 2)
    assert loose.dppl < most
    report = built(reference, tmp_path / "out", plugins, max_dppl=most, prefer="size")
    assert 0.5 * math.log1p(most) <= report.gate.result.kl_mean <= math.log1p(most)


def test_a_limit_of_nothing_is_held_by_what_loses_nothing(
    reference: Path, tiny_dense: Path, plugins: Plugins, tmp_path: Path
) -> None:
    report = built(reference, tmp_path / "stored", plugins, max_dppl=0.0, prefer="size")
    assert set(formats(report)) == {"stored"}
    # The weights of this bundle are floats of a format, so that packing them loses nothing.
    options = Options(goal=Goal(max_dppl=0.0, prefer="size"))
    report = build(tiny_dense, tmp_path / "exact", choose(plugins.techniques()), plugins, options)
    assert report.totals.exact == report.totals.replaced > 0
    assert report.gate.result.holds


def test_a_limit_of_nothing_that_a_forced_technique_breaks_is_one_sentence(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    with pytest.raises(TamizError, match=r"no trial is within the limits: the closest loses \S+ %"):
        built(reference, tmp_path / "out", plugins, max_dppl=0.0, force=("kwta",))


def test_a_technique_that_is_switched_off_is_not_chosen(
    reference: Path, tiny_dense: Path, tmp_path: Path
) -> None:
    def build_of(source: Path, *options: str) -> tuple[object, ...]:
        return ("build", source, "-o", tmp_path / "out", "--block-quant=off", *options)

    reason = refused(*build_of(tiny_dense, "--max-dppl=0.02"))
    assert reason == (
        "a build within limits has nothing to choose from with --block-quant=off; name techniques "
        "with --allow"
    )
    reason = refused(*build_of(tiny_dense, "--max-dppl=0.02", "--allow=kwta"))
    assert reason.endswith("may choose can act there; name others with --allow")
    reason = refused(*build_of(tiny_dense, "--max-kl=1", "--kwta=off", "--force=kwta"))
    assert reason == (
        "--kwta=off: found the technique in --allow or --force as well; remove one of the two"
    )
    dense, known = reference / "dense", f"--calibration={reference / 'known'}"
    ok(*build_of(dense, "--max-kl=1", "--allow=kv-int8", known))
    assert set(formats(bundle_report(Bundle.open(tmp_path / "out")))) <= {"stored", "None"}


def test_equal_builds_have_equal_bytes(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    for name in ("one", "two"):
        built(reference, tmp_path / name, plugins, max_kl=1e-3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_the_order_of_fits_changes_no_byte(
    reference: Path, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built(reference, tmp_path / "one", plugins, max_kl=1e-3)
    monkeypatch.setattr(fitting, "_LARGE", 3000)  # some weights are large
    built(reference, tmp_path / "two", plugins, max_kl=1e-3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_an_interrupted_build_is_resumed(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    """On text that ships with tamiz: the calibration is kept, and the bytes are equal."""
    goal, chosen = Goal(max_kl=1e-3), choose(plugins.techniques())

    def interrupt(what: str, done: int, total: int) -> None:
        if what == "score a candidate" and done:
            raise KeyboardInterrupt

    options = Options(domains=("prose", "code", "lists"), goal=goal)
    with pytest.raises(KeyboardInterrupt):
        build(reference / "dense", tmp_path / "out", chosen, plugins, options, progress=interrupt)
    assert (tmp_path / ".out.work" / "calibration.safetensors").exists()
    assert list((tmp_path / ".out.work" / "fits").iterdir())
    assert not (tmp_path / "out").exists()
    resumed = replace(options, resume=True)
    build(reference / "dense", tmp_path / "out", chosen, plugins, resumed)
    report = build(reference / "dense", tmp_path / "whole", chosen, plugins, options)
    assert report.gate.text == "domains"
    assert set(report.gate.result.domains) == {"prose", "code", "lists"}
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_report_repeats_the_choice(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    built(reference, tmp_path / "one", plugins, max_kl=1e-3)
    options = Options(calibration=reference / "known", report=tmp_path / "one" / "report.json")
    build(reference / "dense", tmp_path / "two", [], plugins, options)
    data = "model.onnx.data"
    assert (tmp_path / "one" / data).read_bytes() == (tmp_path / "two" / data).read_bytes()


def test_an_impossible_size_is_refused(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="no choice meets the limits: the smallest model has 0"):
        built(reference, tmp_path / "out", plugins, max_bytes=1000, prefer="quality")
    assert not (tmp_path / "out").exists()


def test_the_bundle_runs(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    built(reference, tmp_path / "out", plugins, max_kl=1e-2)
    bundle = Bundle.open(tmp_path / "out")
    assert bundle.manifest.unsafe == {}


def applied(report: Report, technique: str) -> list[str]:
    return [
        name
        for name, site in report.sites.items()
        if technique in [fitted.name for fitted in site.applied]
    ]


def test_techniques_are_rungs(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    names = ("bits", "kwta", "kv-int8", "state-pack")
    wanted = {"max_kl": 0.5, "allow": names, "context": 200_000, "measured": False}
    report = built(reference, tmp_path / "out", plugins, **wanted)
    # A long context makes reading keys dear, so attentions take what reads less of them.
    assert applied(report, "kv-int8")
    assert report.gate.decode
    assert report.gate.result.kl_mean <= 0.5
    assert Bundle.open(tmp_path / "out").manifest.unsafe == {}


def test_a_forced_technique_acts(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    report = built(reference, tmp_path / "out", plugins, max_kl=1.0, force=("kwta",))
    down = [name for name in applied(report, "kwta") if name.endswith("ffn_down")]
    assert len(down) == 2
    config = report.sites[down[0]].applied[-1].config
    assert config["k"] in (0.5, 0.4, 0.3, 0.2)
    assert report.sites[down[0]].applied[0].config["mask_block"] == 1


def test_limits_that_a_forced_technique_cannot_hold_are_named(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    reason = r"the closest loses \S+ % of perplexity and \S+ nats of KL a token; raise .* of kwta$"
    with pytest.raises(TamizError, match=reason):
        built(reference, tmp_path / "out", plugins, max_kl=1e-9, force=("kwta",))
    assert not (tmp_path / "out").exists()


def test_a_technique_that_does_not_pay_is_left_out(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    report = built(reference, tmp_path / "out", plugins, max_kl=1e-4, allow=("bits", "kwta"))
    assert not applied(report, "kwta")
    (entry,) = report.gate.paying
    assert not entry.applied
    assert "kwta 0.2 takes 0." in entry.reason


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_what_makes_the_model_slower_is_not_applied(
    reference: Path,
    plugins: Plugins,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ratio: float,
) -> None:
    # The clock is replaced: what it says decides.
    measured = what_pays.Speedup(ratio, ratio, ratio)
    monkeypatch.setattr(what_pays, "measure_speedup", lambda *_: measured)
    wanted = {"max_kl": 0.5, "allow": ("kv-int8",), "context": 200_000}
    report = built(reference, tmp_path / "out", plugins, **wanted)
    assert bool(applied(report, "kv-int8")) == (ratio > 1)
    # Only a technique that does not beat the prediction is compared with a measured choice.
    (entry,) = report.gate.paying
    which = "predicted best" if ratio > 1 else "best"
    assert f"measured {ratio:.2f} × as fast as the {which} choice without it" in entry.reason


def test_what_a_technique_saves_is_measured(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    wanted = {"max_kl": 0.5, "allow": ("kv-int8",), "context": 200_000}
    report = built(reference, tmp_path / "out", plugins, **wanted)
    (entry,) = report.gate.paying
    assert entry.reason.startswith(("measured ", "not measured: the machine is busy; predicted "))
    assert bool(applied(report, "kv-int8")) == entry.applied


def test_an_unmeasured_machine_is_refused_before_a_text_is_written(
    reference: Path, plugins: Plugins, tmp_path: Path
) -> None:
    steps: list[str] = []
    options = Options(goal=Goal(min_tok_s=1.0))
    with pytest.raises(TamizError, match="run 'tamiz doctor --profile' first"):
        build(
            reference / "dense",
            tmp_path / "out",
            choose(plugins.techniques()),
            plugins,
            options,
            progress=lambda what, done, total: steps.append(what),
        )
    assert set(steps) == {"recognise"}
