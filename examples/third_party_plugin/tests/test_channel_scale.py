"""The contract of every technique, what this one is for, and that tamiz knows it."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tamiz.api import FitError, Site, SiteKind, Statistics
from tamiz.cli import main
from tamiz.plugins import load
from tamiz.testing import Case, TechniqueTests, export_tiny_llama
from tamiz_channel_scale.plugin import ChannelScaleConfig, dequantize, fit

README = Path(__file__).parents[1] / "README.md"


class TestConformance(TechniqueTests):
    @pytest.fixture
    def case(self) -> Case:
        return Case("channel-scale", full_budget={"alpha": 0}, readme=README)


def test_loud_channels_are_rounded_finer() -> None:
    random = np.random.default_rng(0)
    weight = random.standard_normal((32, 64)).astype(np.float32)
    samples = random.standard_normal((200, 64)).astype(np.float32)
    samples[:, ::16] *= 30
    known = Statistics(200, np.square(samples).mean(axis=0), samples)
    site = Site("s", SiteKind.LINEAR, "node", in_features=64, out_features=32)
    errors = []
    for alpha in (None, 0.0):
        made = fit(site, weight, known, ChannelScaleConfig(alpha=alpha))
        errors.append(np.linalg.norm(samples @ (weight - dequantize(site, made)).T))
    assert errors[0] < 0.7 * errors[1]


def test_without_a_calibration_it_refuses() -> None:
    site = Site("s", SiteKind.LINEAR, "node", in_features=32, out_features=16)
    with pytest.raises(FitError, match="made from a calibration"):
        fit(site, np.ones((16, 32), np.float32), None, ChannelScaleConfig())


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_tamiz_lists_it_with_its_distribution() -> None:
    listed = {p["name"]: p for p in json.loads(run("plugins", "--json"))["plugins"]}
    mine = listed["channel-scale"]
    assert (mine["distribution"], mine["version"]) == ("tamiz-channel-scale", "0.1.0")
    assert mine["error"] is None
    assert mine["techniques"][0]["claims"][0]["resource"] == "weights"


def test_its_flags_are_those_of_the_commands(tmp_path: Path) -> None:
    assert "alpha" in json.loads(run("schema", "channel-scale"))["properties"]
    assert "--channel-scale" in run("build", "--help")
    assert "--channel-scale-alpha" in run("help", "channel-scale")
    dense = export_tiny_llama(tmp_path, load())
    plan = json.loads(run("plan", str(dense), "--channel-scale-alpha=0.5", "--json"))
    linears = [site for site in plan["sites"] if site["kind"] == "linear"]
    assert linears
    for site in linears:
        assert site["techniques"]["channel-scale"]["config"] == {"alpha": 0.5}
