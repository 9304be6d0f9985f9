"""`tamiz build --min-cosine`: encoders within a limit of quality."""

from pathlib import Path

import pytest

from kit.command_line import ok, refused, tamiz
from kit.encoders import write_text, write_transformer
from tamiz.api.site import SiteKind
from tamiz.files.bundle import Bundle
from tamiz.reporting.reader import bundle_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder and its calibration."""
    folder = tmp_path_factory.mktemp("encoder")
    write_transformer(folder / "dense")
    text = write_text(folder / "text.txt", 4200)
    ok("calibrate", folder / "dense", "-o", folder / "known", "--text", text)
    return folder


def test_formats_are_chosen_within_a_cosine(encoder: Path, tmp_path: Path) -> None:
    dense, out = encoder / "dense", tmp_path / "out"
    given = ["build", dense, "-o", out, "--calibration", encoder / "known"]
    lines = ok(*given, "--min-cosine=0.9995").splitlines()
    assert "weights replaced" in lines[0]
    (quality,) = [line for line in lines if line.startswith("whole model on")]
    assert (
        "windows of 128 tokens of the calibration text: mean cosine of embeddings 0.999" in quality
    )
    assert ", at least 0.9995 accepted; " in quality
    assert lines[-1].endswith(f"see what is in it: tamiz inspect {out}")
    gate = bundle_report(Bundle.open(out)).gate
    assert gate.result.cosine >= 0.9995
    explained = ok("explain", out)
    assert "whole-model gate: limit cosine 0.9995, measured cosine 0.999" in explained


def test_losses_are_cosines_where_bundles_are_explained_and_compared(
    encoder: Path, tiny_dense: Path, tmp_path: Path
) -> None:
    given = ["build", encoder / "dense", "--calibration", encoder / "known"]
    given += ["--block-quant-format=q4_0", "--max-dppl=off"]
    ok(*given, "-o", tmp_path / "loose", "--min-cosine=0.99")
    ok(*given, "-o", tmp_path / "strict", "--min-cosine=0.996")
    trials = bundle_report(Bundle.open(tmp_path / "loose")).gate.trials
    first = next(trial for trial in trials if trial.refused)
    text = ok("explain", tmp_path / "loose", first.refused[0])
    assert f"1 - cosine {first.predicted} predicted, cosine {first.cosine} measured" in text
    assert "Δppl" not in text
    text = tamiz("diff", tmp_path / "loose", tmp_path / "strict").stdout
    a, b = (bundle_report(Bundle.open(tmp_path / n)).gate.result for n in ("loose", "strict"))
    assert f"whole-model gate, result:\n  A: cosine {a.cosine}\n  B: cosine {b.cosine}\n" in text
    ok("build", tiny_dense, "-o", tmp_path / "decoder", "--block-quant-bits=8", "--autotune=on")
    text = tamiz("diff", tmp_path / "loose", tmp_path / "decoder").stdout
    assert f"whole-model gate, result:\n  A: cosine {a.cosine}\n  B: Δppl 0" in text


def test_the_default_bounds_what_flags_ask_for(encoder: Path, tmp_path: Path) -> None:
    given = ["build", encoder / "dense", "--calibration", encoder / "known", "--block-quant=on"]
    ok(*given, "-o", tmp_path / "out")
    gate = bundle_report(Bundle.open(tmp_path / "out")).gate
    assert (gate.min_cosine, gate.max_dppl) == (0.99, None)
    assert gate.result.cosine >= 0.99
    ok(*given, "-o", tmp_path / "free", "--min-cosine=off")
    assert bundle_report(Bundle.open(tmp_path / "free")).gate.skipped == "switched off"


def test_the_recipe_tries_a_scale_for_128_inputs_unless_autotune_is_off(
    encoder: Path, tmp_path: Path
) -> None:
    given = ["build", encoder / "dense", "--calibration", encoder / "known", "--recipe=embed"]
    for name, options, inputs in (("fast", [], 128), ("fine", ["--autotune=off"], 32)):
        ok(*given, *options, "-o", tmp_path / name)
        sites = bundle_report(Bundle.open(tmp_path / name)).sites.values()
        linear = [site for site in sites if site.kind == SiteKind.LINEAR.value]
        applied = [{fit.name: fit.config for fit in site.applied} for site in linear]
        assert {of["block-quant"]["scale_inputs"] for of in applied} == {inputs}
        assert {of["activation-bits"]["bits"] for of in applied} == {8}


def test_without_a_calibration_the_summary_shows_the_shipped_domains(
    encoder: Path, tmp_path: Path
) -> None:
    given = ["build", encoder / "dense", "--block-quant-format=q8_0"]
    lines = ok(*given, "-o", tmp_path / "out").splitlines()
    assert any(" domains: mean cosine of embeddings " in line for line in lines)
    assert any("queries" in line for line in lines)
    assert "not measured" not in ok(*given, "-o", tmp_path / "off", "--min-cosine=off")


def test_what_reads_a_text_says_that_an_encoder_writes_none(encoder: Path, tmp_path: Path) -> None:
    dense = encoder / "dense"
    reason = (
        f"{dense}: a model without logits writes no text; expected --text in 'tamiz calibrate', "
        "and --calibration with its file in a build"
    )
    own = "--domains=own"
    assert refused("calibrate", dense, "-o", tmp_path / "known", own) == reason
    assert refused("build", dense, "-o", tmp_path / "out", "--min-cosine=0.9", own) == reason


def test_a_preference_alone_takes_the_default(encoder: Path, tmp_path: Path) -> None:
    given = ["build", encoder / "dense", "--calibration", encoder / "known", "--prefer=size"]
    ok(*given, "-o", tmp_path / "out")
    assert bundle_report(Bundle.open(tmp_path / "out")).gate.min_cosine == 0.99


@pytest.mark.parametrize("given", ["1", "-0.1", "most", "nan"])
def test_other_values_are_refused(encoder: Path, tmp_path: Path, given: str) -> None:
    message = refused("build", encoder / "dense", "-o", tmp_path / "out", f"--min-cosine={given}")
    assert message == f"--min-cosine={given}: expected a fraction from 0 to below 1, or off"


def test_a_plan_predicts_no_decode(encoder: Path) -> None:
    lines = ok("plan", encoder / "dense").splitlines()
    assert lines[-1] == "predicted decode: none, the model is no decoder"


def test_a_frontier_of_an_encoder_is_refused(encoder: Path, tmp_path: Path) -> None:
    given = [encoder / "dense", "-o", tmp_path / "points.json", "--calibration", encoder / "known"]
    message = refused("frontier", *given)
    assert message.startswith(f"{encoder / 'dense'}: a frontier needs the logits of a decoder")
