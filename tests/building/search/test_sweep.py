"""``tamiz bench --sweep``: losses in steps, losses that are not finite, and where it fails."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import tamiz
from kit.noisy import noisy, rewrite_steps
from tamiz.building.search import sweep
from tamiz.building.search.sweep import Sweep, run_sweep
from tamiz.calibration.generated_text import generate_windows
from tamiz.evaluation import windows
from tamiz.evaluation.windows import cut
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugin, Plugins
from tamiz.runtime.model import Model

pytestmark = pytest.mark.slow

TEXT = "a sieve lets the small things through and keeps the large ones " * 200


def bench(dense: Path, values: str, text: str) -> str:
    """Why a sweep that must be refused is."""
    file = dense.parent / "text.txt"
    file.write_text(text, "utf-8")
    wanted = f"block-quant.bits={values}"
    out = dense.parent / "sweep"
    result = tamiz("bench", dense, "--sweep", wanted, "--context", 8, "--text", file, "-o", out)
    assert result.exit_code == 2, result.output
    return result.stderr


def test_the_text_is_checked_before_the_first_build(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "build", lambda *_: pytest.fail("builds"))
    assert "text.txt: the text has " in bench(tiny_dense, "8,4", "short")
    assert sorted(os.listdir(tiny_dense.parent)) == ["text.txt", tiny_dense.name]


def test_a_sweep_that_fails_leaves_nothing(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **_options: object) -> None:
        raise TamizError("no luck")

    # the tiny model reads 256 tokens
    monkeypatch.setattr(windows, "cut", lambda ids, count, _: cut(ids, count, 100))
    monkeypatch.setattr(sweep, "check_context", lambda *_: None)
    monkeypatch.setattr(sweep, "evaluate", fail)
    for _ in range(2):  # the first is not in the way of the second
        assert "no luck" in bench(tiny_dense, "8,8", TEXT)
        assert sorted(os.listdir(tiny_dense.parent)) == ["text.txt", tiny_dense.name]


@pytest.mark.usefixtures("quick")
def test_what_acts_on_steps_only_is_scored_in_steps(
    tiny_dense: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = noisy(rewrite=rewrite_steps, decode_only=True)
    made = Plugin("noisy", "tests", "tests", "1", techniques=[steps])
    known = Plugins(plugins.manager, [*plugins.installed, made])
    # On a text that is not its own, noise may help a model of random weights.
    written = [window.tokens for window in generate_windows(Model.load(tiny_dense, 1), 4, 200)]
    monkeypatch.setattr(sweep, "read_windows", lambda *_: written)
    wanted, out = Sweep.parse("noisy.noise=0.02,0.1"), tiny_dense.parent / "sweep"
    report = run_sweep(tiny_dense, out, wanted, known, tiny_dense, context=8, threads=1)
    base, less, more = report["points"]
    assert set(base) == {"value", "dppl", "kl_mean", "decode_tok_s", "speed"}
    assert set(more) == {*base, "kl_decode"}
    assert more["kl_mean"] == pytest.approx(0, abs=1e-6)  # a prompt loses nothing
    assert 0 < 10 * less["kl_decode"] < more["kl_decode"]
    assert more["dppl"] > 0.1 * more["kl_decode"]


@pytest.mark.usefixtures("quick")
def test_a_loss_that_is_not_finite_is_null(
    tiny_dense: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = iter([0.01, float("inf"), float("nan")])

    def evaluate(*_: object) -> dict[str, Any]:
        return {"dppl": next(losses), "kl_mean": 0.125}

    monkeypatch.setattr(sweep, "evaluate", evaluate)
    text, out = tiny_dense.parent / "text.txt", tiny_dense.parent / "sweep"
    text.write_text(TEXT, "utf-8")
    given = ["bench", tiny_dense, "--sweep", "block-quant.bits=8,4", "--context", 8]
    result = tamiz(*given, "--text", text, "-o", out)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("not finite") == 2
    points = json.loads((out / "sweep.json").read_text("utf-8"))["points"]
    assert [point["dppl"] for point in points] == [0.01, None, None]
    assert (out / "sweep.svg").read_text("utf-8").count("<circle") == 1
