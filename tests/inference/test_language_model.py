"""The door for programs: answers of decoders, against the plain loop over logits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tamiz
from kit import chain
from tamiz import TamizError
from tamiz.inference.language_model import LanguageModel
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat

PROMPT = "hello there"
HEAVY = (
    "onnx",
    "onnx_ir",
    "onnxscript",
    "pydantic",
    "pluggy",
    "rich",
    "tamiz.api",
    "tamiz.plugins",
)


@pytest.fixture
def door(shared_dir: Path) -> LanguageModel:
    return LanguageModel.load(shared_dir, threads=1)


def follow(model: Model, prompt: list[int], count: int) -> tuple[list[int], np.ndarray]:
    """Greedy tokens by whole forward passes, and the logits from which they were drawn."""
    ids, rows = list(prompt), []
    for _ in range(count):
        rows.append(model.logits(np.array([ids]))[0, -1])
        ids.append(int(rows[-1].argmax()))
    return ids[len(prompt) :], np.array(rows)


def test_a_text_continues_as_the_plain_loop_does(door: LanguageModel) -> None:
    answer = door.generate(PROMPT, raw=True, max_new_tokens=12, logprobs=3, ignore_eos=True)
    prompt = door.tokenizer.encode(PROMPT)
    tokens, rows = follow(door.parts, prompt, 12)
    assert list(answer.tokens) == tokens
    assert answer.text == door.tokenizer.decode(tokens)
    assert answer.finish_reason == "length"
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), 12)
    assert answer.usage.cached_tokens == 0
    assert answer.speed.tokens == 12
    wide = rows.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    assert answer.logprobs is not None
    for entry, token, row in zip(answer.logprobs, tokens, expected, strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(row[token], abs=1e-4)
        assert [number for number, _ in entry.top] == np.argsort(-row)[:3].tolist()
        np.testing.assert_allclose([p for _, p in entry.top], np.sort(row)[::-1][:3], atol=1e-4)


def test_a_text_becomes_the_message_of_a_user(door: LanguageModel) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    ids = encode_chat(door.tokenizer, ChatTemplate(door.tokenizer.settings), messages)
    answers = [door.generate(prompt, max_new_tokens=5) for prompt in (PROMPT, messages)]
    assert answers[0].tokens == answers[1].tokens
    assert answers[0].usage.prompt_tokens == len(ids) == door.count_tokens(messages)
    assert door.count_tokens(PROMPT) == len(door.tokenizer.encode(PROMPT)) < len(ids)


def test_tools_and_variables_reach_the_template(
    door: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "{{ tools | tojson }}{{ place }}{{ messages[0].content }}"
    template = ChatTemplate({"chat_template": source})
    monkeypatch.setattr(door, "template", template)
    values: dict[str, Any] = {"tools": [{"name": "weigh"}], "template_vars": {"place": "here"}}
    expected = door.tokenizer.encode('[{"name": "weigh"}]herehi', bos=False)
    assert door.encode("hi", **values) == expected
    assert door.generate("hi", max_new_tokens=1, **values).usage.prompt_tokens == len(expected)
    assert door.batch(["hi"], max_new_tokens=1, **values)[0].usage.prompt_tokens == len(expected)
    assert door.chat(max_new_tokens=1, **values).send("hi").usage.prompt_tokens == len(expected)


def test_the_oldest_turns_are_dropped_where_the_context_is_full(shared_dir: Path) -> None:
    model = LanguageModel.load(shared_dir, threads=1, context=160)
    chat = model.chat(system="s", max_new_tokens=8, ignore_eos=True)
    dropped = []
    for turn in ("one " * 6, "two " * 6, "three " * 6, "four " * 6):
        answer = chat.send(turn)
        dropped.append(chat.dropped)
        assert answer.usage.prompt_tokens + answer.usage.completion_tokens <= 160
    assert dropped[0] == 0
    assert sum(dropped) > 0
    assert len(chat.history) == 9
    kept = chat.history[1 + 2 * sum(dropped) : -1]
    fresh = model.generate([chat.history[0], *kept], max_new_tokens=8, ignore_eos=True)
    assert fresh.text == answer.text


def test_pieces_of_a_stream_are_the_text(door: LanguageModel) -> None:
    expected = door.generate(PROMPT, max_new_tokens=9, temperature=0.8, seed=4)
    stream = door.stream(PROMPT, max_new_tokens=9, temperature=0.8, seed=4)
    with pytest.raises(TamizError, match="not complete"):
        stream.result  # noqa: B018
    assert "".join(stream) == expected.text == stream.result.text
    assert stream.result.tokens == expected.tokens


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Path:
    """After `a` it says `bcdef`, and ends."""
    folder = tmp_path_factory.mktemp("chain")
    return chain.bundle(folder, chain.ids("abcdef<|im_end|>"), plugins)


def test_the_reason_of_an_end(chained: Path) -> None:
    with LanguageModel.load(chained, threads=1) as model:
        ends = {
            "whole": model.generate("a", raw=True),
            "exactly": model.generate("a", raw=True, max_new_tokens=5),
            "short": model.generate("a", raw=True, max_new_tokens=4),
            "string": model.generate("a", raw=True, stop="de"),
            "last": model.generate("a", raw=True, stop=["x", "f"], max_new_tokens=5),
        }
    found = {name: (end.text, end.finish_reason) for name, end in ends.items()}
    assert found == {
        "whole": ("bcdef", "stop"),
        "exactly": ("bcdef", "length"),
        "short": ("bcde", "length"),
        "string": ("bc", "stop"),
        "last": ("bcde", "stop"),
    }
    with pytest.raises(TamizError, match="the model is closed"):
        model.generate("a")


@pytest.mark.parametrize("kind", ["dense_dir", "shared_dir"])
def test_a_batch_has_the_answers_of_single_prompts(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = LanguageModel.load(request.getfixturevalue(kind), threads=1)
    prompts: list[Any] = ["one", "two and three", [{"role": "user", "content": "four"}], "one"]
    options: dict[str, Any] = {
        "max_new_tokens": 8,
        "temperature": 0.7,
        "seed": 2,
        "logprobs": 2,
        "stop": "e",
    }
    together = model.batch(prompts, **options)
    for prompt, answer in zip(prompts, together, strict=True):
        alone = model.generate(prompt, **options)
        assert answer.text == alone.text
        assert answer.tokens == alone.tokens
        assert answer.finish_reason == alone.finish_reason
        assert answer.logprobs == alone.logprobs
    assert model.batch([]) == []


def test_more_prompts_than_run_together(shared_dir: Path) -> None:
    model = LanguageModel.load(shared_dir, threads=1)
    prompts = [f"number {n}" for n in range(20)]
    found = [answer.tokens for answer in model.batch(prompts, max_new_tokens=3)]
    assert found == [model.generate(prompt, max_new_tokens=3).tokens for prompt in prompts]


def test_a_second_turn_is_that_of_a_fresh_run(door: LanguageModel) -> None:
    chat = door.chat(system="Be brief.", max_new_tokens=6, ignore_eos=True)
    first = chat.send("one")
    assert first.usage.cached_tokens == 0
    history = [*chat.history, {"role": "user", "content": "two"}]
    second = chat.send("two")
    fresh = door.generate(history, max_new_tokens=6, ignore_eos=True)
    assert second.tokens == fresh.tokens
    assert second.usage.prompt_tokens == fresh.usage.prompt_tokens
    assert 0 < second.usage.cached_tokens < second.usage.prompt_tokens
    assert [message["role"] for message in chat.history] == ["system", *["user", "assistant"] * 2]
    assert chat.history[2]["content"] == first.text
    chat.reset(chat.system)
    assert chat.send("one").tokens == first.tokens


def test_an_interrupted_answer_is_kept_as_far_as_it_came(door: LanguageModel) -> None:
    chat = door.chat(max_new_tokens=20, ignore_eos=True)
    stream = chat.stream("one")
    piece = next(stream)
    stream.close()
    assert chat.history[-1] == {"role": "assistant", "content": piece}
    assert chat.cached_tokens == 0
    again = door.generate([*chat.history, {"role": "user", "content": "two"}], max_new_tokens=20)
    assert chat.send("two").text.startswith(again.text)


def test_a_message_that_does_not_fit_is_not_kept(shared_dir: Path) -> None:
    chat = tamiz.load(shared_dir, context=40).chat(max_new_tokens=2)  # type: ignore[union-attr]
    with pytest.raises(TamizError, match="do not fit"):
        chat.send("long " * 40)
    assert chat.history == []


def test_arguments_of_load(shared_dir: Path, dense_dir: Path) -> None:
    model = tamiz.load(shared_dir, threads=1, context=50, speculation="off")
    assert isinstance(model, tamiz.LanguageModel)
    assert model.context == 50
    assert model.generate(PROMPT, raw=True, ignore_eos=True).finish_reason == "length"
    with pytest.raises(TamizError, match="context is 100000, expected 1 to the model's limit"):
        tamiz.load(shared_dir, context=100_000)
    with pytest.raises(TamizError, match="kwta cannot be switched off"):
        tamiz.load(shared_dir, without="kwta")
    with pytest.raises(TamizError, match="speculate is 'often'"):
        tamiz.load(shared_dir, speculation="often")


def test_unknown_options_are_named(door: LanguageModel) -> None:
    with pytest.raises(TypeError, match="unknown option 'temprature'; did you mean 'temperature'"):
        door.generate(PROMPT, temprature=1)
    with pytest.raises(TamizError, match="max_new_tokens is 0"):
        door.generate(PROMPT, max_new_tokens=0)
    with pytest.raises(TamizError, match="top_p is 2"):
        door.generate(PROMPT, top_p=2)


def test_a_program_that_generates_loads_nothing_heavy(shared_dir: Path) -> None:
    code = (
        "import sys, tamiz\n"
        "light = 'onnxruntime' not in sys.modules and tamiz.TamizError\n"
        f"model = tamiz.load({str(shared_dir)!r}, threads=1)\n"
        "model.generate('hello', max_new_tokens=3)\n"
        "model.chat(max_new_tokens=2).send('hi'); model.batch(['a', 'b'], max_new_tokens=2)\n"
        "assert light\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
