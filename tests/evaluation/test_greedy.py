"""Greedy answers of two models: where one leaves the other's, and by which margin."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.command_line import ok, refused
from tamiz.evaluation.greedy import (
    AnswerDivergence,
    answer,
    compare_answers,
    divergence,
    encode_prompts,
    read_prompts,
    summary,
    until_stop,
)
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer


class Counting:
    """A model whose next token is the last one plus one, by one logit over all others."""

    stop_ids = frozenset({7})
    limit = 100

    def sequence(self, capacity) -> Any:
        return self

    def read(self, prompt) -> np.ndarray:
        return self.step(prompt[-1])

    def step(self, token) -> np.ndarray:
        return np.eye(10, dtype=np.float32)[(token + 1) % 10]


def test_equal_answers_do_not_diverge() -> None:
    model: Any = Counting()
    assert divergence(model, [1, 2], [3, 4, 5]) is None


def test_the_first_other_token_is_found_with_its_margin() -> None:
    model: Any = Counting()
    assert divergence(model, [1, 2], [3, 4, 7, 8]) == AnswerDivergence(2, 5, 7, 1.0)


def test_an_answer_ends_with_a_stop_token_or_where_it_must() -> None:
    model: Any = Counting()
    assert answer(model, [4], 9) == [5, 6, 7]
    assert answer(model, [4], 2) == [5, 6]


def test_a_summary_counts_and_lists() -> None:
    found = summary([None, AnswerDivergence(3, 1, 2, 0.5), AnswerDivergence(7, 4, 5, 0.25)])
    assert (found["prompts"], found["equal"]) == (3, 1)
    assert (found["median_margin"], found["largest_margin"]) == (0.375, 0.5)
    first = {"prompt": 1, "equal_tokens": 3, "own_token": 1, "other_token": 2, "margin": 0.5}
    assert found["divergences"][0] == first


def test_what_follows_a_stop_token_is_left_out() -> None:
    assert until_stop([1, 2, 9, 3, 9], {9, 8}) == [1, 2, 9]
    assert until_stop([1, 2], {9}) == [1, 2]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("hello\n\nWhat is a sieve?\nhello hello\n")
    return path


def test_prompts_are_lines_in_the_chat_template(dense: Model, prompts: Path) -> None:
    lines = read_prompts(prompts)
    assert lines == ["hello", "What is a sieve?", "hello hello"]
    assert read_prompts(prompts, 1) == ["hello"]
    ids = encode_prompts(dense.bundle, lines)
    text = Tokenizer(dense.bundle).decode(ids[0], special=True)
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    prompts.write_text("\n \n")
    with pytest.raises(TamizError, match=r"prompts\.txt: found no prompt, expected one a line"):
        read_prompts(prompts)


def test_a_model_repeats_its_answers(dense: Model, prompts: Path) -> None:
    ids = encode_prompts(dense.bundle, read_prompts(prompts))
    found = compare_answers(dense, dense, ids, 6, at_once=2)
    assert (found["equal"], found["prompts"], found["divergences"]) == (3, 3, [])
    assert found["tokens"] == sum(len(answer(dense, each, 6)) for each in ids)


@pytest.fixture(scope="module")
def window(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that reads the last two tokens only."""
    target = tmp_path_factory.mktemp("window") / "built"
    narrow = ("--window-attention=on", "--window-attention-tokens=2", "--window-attention-sinks=0")
    ok("build", dense_dir, "-o", target, *narrow, "--max-dppl=off")
    return target


def test_the_command_finds_what_the_logits_say(
    dense: Model, dense_dir: Path, window: Path, prompts: Path
) -> None:
    command = ("eval", window, "--against", dense_dir, "--prompts", prompts, "--tokens", 8)
    found = json.loads(ok(*command, "--json"))["greedy"]
    assert found["divergences"]
    model = Model.load(window, threads=1)
    ids = encode_prompts(dense.bundle, read_prompts(prompts))
    first = found["divergences"][0]
    prompt = ids[first["prompt"]]
    said = answer(dense, prompt, 8)
    equal = said[: first["equal_tokens"]]
    logits = model.logits(np.array([prompt + equal]))[0]
    own = logits.argmax(axis=1)[len(prompt) - 1 :]
    assert own[:-1].tolist() == equal
    assert own[-1] == first["own_token"]
    other = said[len(equal)]
    assert first["other_token"] == other != own[-1]
    margin = logits[-1, own[-1]] - logits[-1, other]
    assert first["margin"] == pytest.approx(float(margin), abs=1e-3)
    table = ok(*command)
    assert f"{found['equal']} of 3 answers are equal" in table
    assert f"{first['margin']:.3f}" in table


def test_both_measures_in_one_run(
    dense_dir: Path, window: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamiz.evaluation.windows.cut", lambda ids, n, window: [ids[:60]] * n)
    text = tmp_path / "text"
    text.write_text("hello world " * 30)
    both = ("--prompts", prompts, "--text", text, "--windows", 1, "--count", 1, "--tokens", 2)
    found = json.loads(ok("eval", window, "--against", dense_dir, *both, "--json"))
    assert found["greedy"]["prompts"] == 1
    assert found["dppl"] > 0
    assert "dppl" in ok("eval", window, "--against", dense_dir, *both)


def test_refusals(dense_dir: Path, prompts: Path) -> None:
    assert "neither --text nor --domains nor --prompts" in refused("eval", dense_dir)
    assert "add --against OTHER" in refused("eval", dense_dir, "--prompts", prompts)
    rest = ("--against", dense_dir, "--prompts", prompts)
    assert "expected at most 6" in refused("eval", dense_dir, *rest, "--tokens", 250)
