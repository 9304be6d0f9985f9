"""window-attention on models that have sliding windows of their own."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit import tiny_gguf
from kit.command_line import ok
from tamiz.runtime.model import Model

IDS = np.random.default_rng(1).integers(3, 250, (1, 33))
#: One layer of six sees all keys; the others see the last 8.
GEMMA: dict[str, Any] = {"architecture": "gemma3", "layers": 7, "window": 8}


def built(folder: Path, model: tiny_gguf.TinyModel, *flags: str) -> tuple[Path, dict[str, str]]:
    """A bundle with narrower windows, and why each attention has its window."""
    tiny_gguf.write(folder / "model.gguf", model)
    out = folder / "built"
    ok("build", folder / "model.gguf", "-o", out, *flags, "--max-dppl=off", "--block-quant=off")
    report = json.loads((out / "report.json").read_text())
    decisions = {
        site: fitted["decision"]["reason"]
        for site, entry in report["sites"].items()
        for fitted in entry["techniques"]
        if fitted["name"] == "window-attention"
    }
    return out, decisions


def test_a_narrower_window_is_that_of_a_model_that_has_it(tmp_path: Path) -> None:
    model = tiny_gguf.random_model(window=9, tied=False)
    narrow = ("--window-attention=on", "--window-attention-tokens=4", "--window-attention-sinks=0")
    out, decisions = built(tmp_path, model, *narrow)
    assert decisions == {f"layers.{n}.attention": "passed the gate" for n in range(2)}
    found = Model.load(out, threads=1)
    ones, positions = np.ones_like(IDS), np.arange(IDS.shape[1])[None]
    for loaded, width in (
        (found, 4),
        (Model.load(out, threads=1, without=["window-attention"]), 9),
    ):
        expected = tiny_gguf.logits(replace(model, window=width), IDS, ones, positions)
        np.testing.assert_allclose(
            loaded.logits(IDS), expected, rtol=0, atol=1e-4 * np.abs(expected).max()
        )


@pytest.mark.parametrize("tokens", [8, 16])
def test_a_window_that_is_not_narrower_acts_where_all_keys_are_seen(
    tokens: int, tmp_path: Path
) -> None:
    model = tiny_gguf.random_model(**GEMMA)
    _, decisions = built(
        tmp_path, model, "--window-attention=on", f"--window-attention-tokens={tokens}"
    )
    assert decisions.pop("layers.5.attention") == "passed the gate"
    assert set(decisions.values()) == {"refused: the model's own window of 8 keys is not longer"}
    assert len(decisions) == 6


def test_a_plan_lists_every_attention_of_such_a_model(tmp_path: Path) -> None:
    tiny_gguf.write(tmp_path / "model.gguf", tiny_gguf.random_model(**GEMMA))
    ok("export", tmp_path / "model.gguf", "-o", tmp_path / "dense")
    plan = json.loads(ok("plan", tmp_path / "dense", "--window-attention=on", "--json"))
    sites = {at["site"] for at in plan["sites"] if "window-attention" in at["techniques"]}
    assert sites == {f"layers.{n}.attention" for n in range(7)}
