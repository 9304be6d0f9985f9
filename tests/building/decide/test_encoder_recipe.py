"""What a build of an encoder applies where nothing is requested: the recipe `embed`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kit.encoders import write_text, write_transformer
from tamiz.api.site import SiteKind
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.planning.plan import choose
from tamiz.planning.recipes import recipes
from tamiz.plugins import Plugins, load
from tamiz.reporting.report import Report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an encoder in float32 and its calibration."""
    folder = tmp_path_factory.mktemp("encoder")
    write_transformer(folder / "dense")
    text = write_text(folder / "text.txt", 4200)
    calibrate_bundle(folder / "dense", folder / "known", load(), texts=[text])
    return folder


def built(encoder: Path, out: Path, plugins: Plugins, requested=None, **options) -> Report:
    given = Options(calibration=encoder / "known", **options)
    return build(encoder / "dense", out, choose(plugins.techniques(), requested), plugins, given)


def input_bits(report: Report) -> list[int]:
    """Bits of the inputs of the linear sites; 16 where no technique says another number."""
    linear = [site for site in report.sites.values() if site.kind == SiteKind.LINEAR.value]
    bits = [
        {fit.name: fit.config for fit in site.applied}.get("activation-bits", {"bits": 16})["bits"]
        for site in linear
    ]
    assert bits
    return bits


def shared(report: Report) -> list[int]:
    """How many inputs share a scale of the weight, of the linear sites."""
    return [
        {fit.name: fit.config for fit in site.applied}["block-quant"]["scale_inputs"]
        for site in report.sites.values()
        if site.kind == SiteKind.LINEAR.value
    ]


def test_inputs_have_8_bits_by_default(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    report = built(encoder, tmp_path / "out", plugins)
    assert set(input_bits(report)) == {8}
    assert report.gate.min_cosine == recipes()["embed"].min_cosine == 0.999
    assert report.gate.result is not None
    assert report.gate.result.cosine >= 0.999
    assert len(report.gate.trials) == 1, "what inputs lose is not predicted: all are tried first"
    assert set(shared(report)) == {128}


def test_sites_get_a_scale_for_32_inputs_before_they_keep_16_bits(
    encoder: Path, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Between the cosines of a scale for 128 inputs and of one for 32 at all sites.
    strict = {"embed": replace(recipes()["embed"], min_cosine=0.999925)}
    monkeypatch.setattr("tamiz.building.decide.by_policy.recipes", lambda: strict)
    report = built(encoder, tmp_path / "out", plugins)
    assert set(input_bits(report)) == {8}
    assert set(shared(report)) == {32, 128}
    refused = {
        fit.decision.reason
        for site in report.sites.values()
        for fit in site.techniques
        if not fit.decision.applied
    }
    assert refused == {"refused: backed off by the gate of the whole model, to scale_inputs=32"}
    assert report.gate.result is not None
    assert report.gate.result.holds


def test_without_autotune_32_inputs_share_a_scale(
    encoder: Path, plugins: Plugins, tmp_path: Path
) -> None:
    report = built(encoder, tmp_path / "out", plugins, autotune=False)
    assert set(shared(report)) == {32}
    assert set(input_bits(report)) == {8}


def test_a_number_that_is_requested_stays(encoder: Path, plugins: Plugins, tmp_path: Path) -> None:
    requested = {"block-quant": {"scale_inputs": 32}, "activation-bits": {"bits": 8}}
    report = built(encoder, tmp_path / "out", plugins, requested, autotune=True)
    assert set(shared(report)) == {32}
    assert set(input_bits(report)) == {8}


def test_where_the_cosine_is_too_small_sites_keep_16_bits(
    encoder: Path, plugins: Plugins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict = {"embed": replace(recipes()["embed"], min_cosine=0.99999)}
    monkeypatch.setattr("tamiz.building.decide.by_policy.recipes", lambda: strict)
    report = built(encoder, tmp_path / "out", plugins)
    assert report.gate.min_cosine == 0.99999
    assert 16 in input_bits(report)
    assert [not trial.refused for trial in report.gate.trials].count(True) == 1, "measured twice"


@pytest.mark.parametrize(
    ("requested", "options"),
    [
        ({"activation-bits": None}, {"off": frozenset({"activation-bits"})}),
        ({"block-quant": {"format": "q8_0"}}, {}),
        ({}, {"min_cosine": None}),
    ],
    ids=["switched off", "something is requested", "not measured"],
)
def test_otherwise_inputs_have_16_bits(
    encoder: Path, plugins: Plugins, tmp_path: Path, requested, options
) -> None:
    report = built(encoder, tmp_path / "out", plugins, requested, **options)
    assert set(input_bits(report)) == {16}
    assert report.gate.min_cosine == options.get("min_cosine", 0.99)
