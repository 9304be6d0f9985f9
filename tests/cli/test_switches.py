"""``--without`` of the commands that run a bundle."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kit.composed import needs
from kit.decoding import built
from tamiz.cli import main
from tamiz.plugins import Plugins

WINDOW = {"tokens": 4, "sinks": 0}
PROMPT = "hello " * 12


@pytest.fixture
def bundles(plugins: Plugins, tiny_dense: Path) -> tuple[Path, Path]:
    """The tiny model with a window and without."""
    needs("win-attn")
    window = built(plugins, tiny_dense, "window", win_attn=WINDOW)
    return window, built(plugins, tiny_dense, "plain")


def output(*arguments: Any, **settings: Any) -> str:
    """What a command prints that must succeed."""
    result = CliRunner().invoke(main, [str(a) for a in arguments], **settings)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_run_without_a_technique(bundles: tuple[Path, Path]) -> None:
    window, plain = bundles
    rest = ["--prompt", PROMPT, "--max-new-tokens", 12]
    expected = output("run", plain, *rest)
    assert output("run", window, *rest) != expected
    assert output("run", window, *rest, "--without", "win-attn") == expected
    assert output("run", window, *rest, env={"TAMIZ_WITHOUT": "win-attn"}) == expected


def test_chat_without_a_technique(bundles: tuple[Path, Path]) -> None:
    window, plain = bundles
    expected = output("chat", plain, "--max-new-tokens", 12, input=PROMPT)
    rest = ["--max-new-tokens", 12, "--without", "win-attn"]
    assert output("chat", window, *rest, input=PROMPT) == expected


def test_eval_and_bench_without_a_technique(
    bundles: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n: [ids[:100]] * n)
    window, plain = bundles
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 300, "utf-8")
    rest = ["--text", text, "--windows", 1, "--json"]
    expected = json.loads(output("eval", plain, *rest))
    assert json.loads(output("eval", window, *rest))["ppl"] != expected["ppl"]
    assert json.loads(output("eval", window, *rest, "--without", "win-attn")) == expected
    rest = ["--against", plain, "--without", "win-attn", "--context", 16, "--json"]
    assert json.loads(output("bench", window, *rest))["ratio"]["decode_tok_s"]["16"] > 0


def test_names_that_are_refused(bundles: tuple[Path, Path]) -> None:
    window, _ = bundles
    for names, reason in {
        "kwta": "kwta cannot be switched off: the bundle does not use it",
        "win-attn,block-quant": "block-quant cannot be switched off: the bundle stores nothing",
        "win-attn,": "has an empty name",
    }.items():
        result = CliRunner().invoke(main, ["run", str(window), "hi", "--without", names])
        assert result.exit_code == 2
        assert reason in result.stderr
