"""Options that `run` and `chat` share, and what both read from stdin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit import chain
from kit.command_line import ok, refused
from tamiz.cli import main
from tamiz.plugins import Plugins


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Path:
    text = chain.ids("habcde<|im_end|>")
    return chain.bundle(tmp_path_factory.mktemp("talker"), text, plugins)


def answer(folder: Path, *options: object) -> str:
    return ok("run", folder, "h", "--raw", "--max-new-tokens", 8, *options).removesuffix("\n")


def test_options_of_sampling_act(talker: Path) -> None:
    """The chain's text is greedy; `h` comes first, so that penalties count it."""
    assert answer(talker) == "abcde"
    (b,) = chain.ids("b")
    assert answer(talker, "--logit-bias", f"{b}-inf")[:2] != "ab"
    assert answer(talker, "--logit-bias", f"{b}+99") == "bbbbbbbb"
    assert answer(talker, "--logit-bias", f"{b}=99", "--presence-penalty", 200)[:2] != "bb"
    assert answer(talker, "--stop", "cd") == "ab"
    assert len(answer(talker, "--ignore-eos")) >= 8
    drawn = ("--temperature", 1, "--seed", 1)
    assert answer(talker, *drawn, "--min-p", 1) == "abcde"
    assert answer(talker, *drawn, "--top-k", 1) == "abcde"
    repeated = ("--logit-bias", f"{b}+99", "--repeat-penalty", 1e6)
    assert answer(talker, *repeated)[:2] != "bb"
    assert answer(talker, *repeated, "--repeat-last-n", 0) == "bbbbbbbb"
    assert answer(talker, "--logit-bias", f"{b}+9", "--frequency-penalty", 20)[:2] != "bb"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--logit-bias", "a+1", "is no bias of a token such as 15043+1"),
        ("--logit-bias", "5+nan", "is no bias of a token"),
        ("--logit-bias", "5", "is no bias of a token"),
        ("--logit-bias", "5+inf", "logit_bias of token 5 is inf"),
        ("--logit-bias", "999999+1", "token 999999 is unknown to the model"),
        ("--min-p", "2", "--min-p"),
        ("--min-p", "nan", "--min-p"),
        ("--repeat-penalty", "0", "--repeat-penalty"),
        ("--repeat-penalty", "inf", "--repeat-penalty"),
        ("--frequency-penalty", "nan", "--frequency-penalty"),
        ("--presence-penalty", "1e300", "presence_penalty is 1e+300"),
        ("--repeat-last-n", "-2", "--repeat-last-n"),
        ("--template-var", "a", "is no NAME=VALUE such as enable_thinking=false"),
        ("--template-var", "a b=1", "is no NAME=VALUE"),
        ("--template-var", "messages=1", "messages is no variable of a chat template"),
        ("--tools", "missing.json", "missing.json: cannot be read"),
    ],
)
def test_values_that_no_option_takes(talker: Path, option: str, value: str, reason: str) -> None:
    assert reason in refused("run", talker, "h", option, value)


def test_templates_get_system_variables_and_tools(tiny_dense: Path, tmp_path: Path) -> None:
    settings = chain.read(tiny_dense, "tokenizer_config")
    settings["chat_template"] = (
        "{{ raise_exception([messages, tools, documents, thinking, name] | tojson) }}"
    )
    chain.change(tiny_dense, tokenizer_config=settings)
    (tmp_path / "tools.json").write_text('[{"name": "f"}]', "utf-8")
    line = ["run", tiny_dense, "hi", "--system", "Be brief.", "--tools", tmp_path / "tools.json"]
    said = refused(*line, "--template-var", "thinking=false", "--template-var", "name=Ada")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    seen = json.loads(said.partition("chat_template: ")[2])
    assert seen == [messages, [{"name": "f"}], None, False, "Ada"]
    for option in (["--system", "a"], ["--template-var", "a=1"], line[-2:]):
        assert f"{option[0]} needs the chat template" in refused(
            "run", tiny_dense, "hi", "--raw", *option
        )
    (tmp_path / "tools.json").write_text('{"name": "f"}', "utf-8")
    assert "tools.json: expected a JSON list of objects" in refused(*line)


def test_more_tokens_than_the_context_leaves_are_what_it_leaves(dense_dir: Path) -> None:
    line = ["run", dense_dir, "hello", "--raw", "--ignore-eos", "--json"]
    everything = json.loads(ok(*line))
    assert everything["tokens"] == 255
    more = json.loads(ok(*line, "--max-new-tokens", 10**9))
    assert more["text"] == everything["text"]


def test_byte_order_marks_and_line_breaks_are_not_read(dense_dir: Path) -> None:
    def run(text: bytes, *command: str) -> str:
        line = [sys.executable, "-m", "tamiz", command[0], str(dense_dir), *command[1:]]
        done = subprocess.run(line, input=text, capture_output=True, check=True)
        return done.stdout.decode()

    for command in (
        ["chat", "--max-new-tokens", "4"],
        ["run", "-", "--json", "--max-new-tokens=1"],
    ):
        plain, marked = (
            run(text, *command) for text in ("hello\né\n".encode(), "\ufeffhello\r\né\r\n".encode())
        )
        if command[0] == "run":
            plain, marked = (str(json.loads(shown)["prompt_tokens"]) for shown in (plain, marked))
        assert plain == marked


def test_a_full_chat_drops_the_oldest_turns_and_says_so(dense_dir: Path) -> None:
    """Each message has about 50 tokens of a context of 256."""
    lines = "".join(f"{n} {'word ' * 6}\n" for n in range(9))
    options = ["--max-new-tokens", "9", "--ignore-eos", "--system", "Be brief."]
    result = CliRunner().invoke(main, ["chat", str(dense_dir), *options], input=lines)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("[the context is full: the oldest turn was dropped]") >= 3
    long = CliRunner().invoke(main, ["chat", str(dense_dir)], input="hi\n" + "a" * 255 + "\nhi\n")
    assert long.exit_code == 2
    assert "do not fit" in long.stderr


@pytest.mark.parametrize("command", ["run", "inspect"])
def test_a_closed_stdout_costs_one_sentence(dense_dir: Path, command: str) -> None:
    line = f"{sys.executable} -m tamiz {command} {dense_dir} {'hi --raw' * (command == 'run')} >&-"
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "error: stdout is closed, expected a terminal, a file or a pipe\n"
