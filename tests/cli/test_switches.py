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

pytestmark = pytest.mark.slow

WINDOW = {"tokens": 4, "sinks": 0}
PROMPT = "hello " * 12


@pytest.fixture
def bundles(plugins: Plugins, tiny_dense: Path) -> tuple[Path, Path]:
    """The tiny model with a window and without."""
    needs("window-attention")
    window = built(plugins, tiny_dense, "window", window_attention=WINDOW)
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
    assert output("run", window, *rest, "--without", "window-attention") == expected
    assert output("run", window, *rest, env={"TAMIZ_WITHOUT": "window-attention"}) == expected


def test_chat_without_a_technique(bundles: tuple[Path, Path]) -> None:
    window, plain = bundles
    expected = output("chat", plain, "--max-new-tokens", 12, input=PROMPT)
    rest = ["--max-new-tokens", 12, "--without", "window-attention"]
    assert output("chat", window, *rest, input=PROMPT) == expected


def test_eval_and_bench_without_a_technique(
    bundles: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n, _: [ids[:100]] * n)
    window, plain = bundles
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 300, "utf-8")
    rest = ["--text", text, "--windows", 1, "--json"]
    expected = json.loads(output("eval", plain, *rest))
    assert json.loads(output("eval", window, *rest))["ppl"] != expected["ppl"]
    assert json.loads(output("eval", window, *rest, "--without", "window-attention")) == expected
    rest = ["--against", plain, "--without", "window-attention", "--context", 16, "--json"]
    assert json.loads(output("bench", window, *rest))["ratio"]["decode_tok_s"]["16"] > 0


@pytest.fixture
def slower(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step with the window takes 1.25 times as long."""
    monkeypatch.setattr(
        "tamiz.runtime.gains._seconds",
        lambda sequence, token, off, clock: 4.0 if "window-attention" in off else 5.0,
    )


@pytest.mark.usefixtures("slower")
def test_run_switches_off_what_is_slower(bundles: tuple[Path, Path]) -> None:
    window, plain = bundles
    rest = ["--prompt", PROMPT, "--max-new-tokens", 12]
    expected = json.loads(output("run", plain, *rest, "--json"))
    command = ["run", str(window), *map(str, rest), "--without", "auto", "--json"]
    result = CliRunner().invoke(main, command)
    found = json.loads(result.stdout)
    assert found["text"] == expected["text"]
    context = found["prompt_tokens"]
    assert found["switched_off"] == {
        "window-attention": {"ratio": 1.25, "spread": 0, "context": context}
    }
    assert result.stderr.splitlines() == [
        "auto: switched off window-attention (a step takes 1.25 ± 0.00 times as long with it), "
        f"measured at {context} tokens"
    ]
    assert "switched_off" not in expected


@pytest.mark.usefixtures("slower")
def test_chat_switches_off_what_is_slower(bundles: tuple[Path, Path]) -> None:
    window, plain = bundles
    rest = ["--max-new-tokens", "12"]
    expected = output("chat", plain, *rest, input=PROMPT)
    command = ["chat", str(window), *rest, "--without", "auto"]
    result = CliRunner().invoke(main, command, input=PROMPT)
    assert result.stdout == expected
    assert result.stderr.count("auto: switched off window-attention") == 1


def test_auto_where_nothing_can_be_switched_off(bundles: tuple[Path, Path]) -> None:
    _, plain = bundles
    command = ["run", str(plain), "hello", "--max-new-tokens", "2", "--without", "auto"]
    assert CliRunner().invoke(main, command).stderr == "auto: no technique was measured\n"


def test_bench_measures_at_each_context(bundles: tuple[Path, Path]) -> None:
    window, _ = bundles
    command = ["bench", str(window), "--context", "16,20", "--without", "auto", "--json"]
    result = CliRunner().invoke(main, command)
    found = json.loads(result.stdout)["switched_off"]
    assert set(found) == {"16", "20"}
    assert all(set(each) <= {"window-attention"} for each in found.values())
    assert "measured at 16 tokens" in result.stderr
    assert "measured at 20 tokens" in result.stderr


def test_eval_has_no_steps_to_measure(bundles: tuple[Path, Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello", "utf-8")
    command = ["eval", str(bundles[0]), "--text", str(text), "--without", "auto"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 2
    assert "name the techniques to switch off" in result.stderr


def test_names_that_are_refused(bundles: tuple[Path, Path]) -> None:
    window, _ = bundles
    for names, reason in {
        "kwta": "kwta cannot be switched off: the bundle does not use it",
        "window-attention,block-quant": "block-quant cannot be switched off: the bundle stores",
        "window-attention,": "has an empty name",
    }.items():
        result = CliRunner().invoke(main, ["run", str(window), "hi", "--without", names])
        assert result.exit_code == 2
        assert reason in result.stderr
