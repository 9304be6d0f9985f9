"""``--metrics`` of the commands that run a bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit.composed import needs
from kit.decoding import built
from kit.unfused import Unfused
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.cli import main
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.tokenizer import Tokenizer

pytestmark = pytest.mark.slow

PROMPT, COUNT = "hello world " * 6, 5


@pytest.fixture
def bundle(plugins: Plugins, tiny_dense: Path) -> Path:
    """The tiny model with masks and a window."""
    needs("kwta", "window-attention")
    calibration = tiny_dense.parent / "calibration.safetensors"
    calibrate_bundle(tiny_dense, calibration, plugins)
    options: dict[str, Any] = {"kwta": {"k": 0.7, "temp": 0.5}, "window_attention": {"tokens": 8}}
    return built(plugins, tiny_dense, "built", calibration, **options)


def output(*arguments: Any, **settings: Any) -> str:
    """What a command prints that must succeed."""
    result = CliRunner().invoke(main, [str(a) for a in arguments], **settings)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_run_counts_what_its_masks_keep(bundle: Path) -> None:
    rest = ["--raw", "--prompt", PROMPT, "--max-new-tokens", COUNT, "--json"]
    found = json.loads(output("run", bundle, *rest, "--metrics-by-layer"))
    assert set(found["metrics"]) - {"block-quant"} == {"kwta"}
    model = Model.load(bundle, threads=1)
    ids = Tokenizer(model.bundle).encode(PROMPT)
    new = list(model.generate(ids, Sampling(), COUNT))
    _, masks = Unfused.of(bundle).read(ids, new[:-1])
    kept = sum(mask.sum() for mask in masks.values())
    read = len(ids) + COUNT - 1
    values = found["metrics"]["kwta"]
    assert values["kwta.keep_ratio"] == kept / sum(mask.size for mask in masks.values())
    assert values["kwta.duty_hits"] == len(masks) * (read - 4)  # the first 4 are dense
    assert values["kwta.temp"] == 0.5
    layers = found["metrics_by_layer"]["kwta"]
    assert list(layers) == ["layers.0", "layers.1"]
    assert sum(layer["kwta.duty_hits"] for layer in layers.values()) == values["kwta.duty_hits"]


def test_every_command_prints_a_table(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n, _: [ids[:60]] * n)
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 300, "utf-8")
    short = ["--max-new-tokens", 2]
    for printed in (
        output("run", bundle, "hello", *short, "--metrics"),
        output("chat", bundle, *short, "--metrics", input="hello"),
        output("eval", bundle, "--text", text, "--windows", 1, "--metrics"),
        output("bench", bundle, "--context", 16, "--metrics"),
    ):
        assert "kwta.keep_ratio" in printed
        assert "layers.0" not in printed
    assert "layers.0" in output("run", bundle, "hello", *short, "--metrics-by-layer")


def test_a_bundle_without_techniques_counts_nothing(dense_dir: Path) -> None:
    rest = ["--prompt", "hello", "--max-new-tokens", 2, "--metrics"]
    assert "no technique of the bundle counts anything" in output("run", dense_dir, *rest)
    assert json.loads(output("run", dense_dir, *rest, "--json"))["metrics"] == {}
    assert "metrics" not in json.loads(output("run", dense_dir, *rest[:-1], "--json"))
