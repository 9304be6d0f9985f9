"""The engine gives each job the answer that it has alone, however busy it is."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.equal_runs import MODELS, build_model
from kit.patience import PATIENCE
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.batching.page_files import FilesOfPages
from tamiz.runtime.logprobs import TokenLogprob
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.engine import Engine, Limits, OverloadedError
from tamiz.serving.grammar import Grammars
from tamiz.serving.requests import End, Event, Failure, Job, Piece

RANDOM = np.random.default_rng(2)
GREEDY, DRAWN = Sampling(), Sampling(temperature=0.9, top_p=0.95, seed=5)
PROMPTS = [RANDOM.integers(2, 250, count).tolist() for count in (5, 130, 70, 20, 200, 64, 65, 90)]


@dataclass
class Waiting:
    """Collects the events of a job."""

    events: queue.Queue[Event] = field(default_factory=queue.Queue)

    def result(self) -> tuple[list[TokenLogprob], str, End | Failure]:
        """Logprobs, text and end; waits for them."""
        tokens: list[TokenLogprob] = []
        text = ""
        while True:
            event = self.events.get(timeout=PATIENCE)
            if not isinstance(event, Piece):
                return tokens, text, event
            tokens += event.tokens
            text += event.text


Make = Callable[..., Engine]


@pytest.fixture
def make(model: Model) -> Iterator[Make]:
    engines: list[Engine] = []

    def start(tokens: int = 4096, **limits: Any) -> Engine:
        engines.append(Engine(model, Tokenizer(model.bundle), Limits(tokens, **limits)))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def submit(
    engine: Engine, prompt: list[int], sampling: Sampling, count: int, **more: object
) -> Waiting:
    waiting = Waiting()
    engine.submit(Job(prompt, sampling, count, waiting.events.put, top_logprobs=2, **more))  # type: ignore[arg-type]
    return waiting


@contextlib.contextmanager
def held(engine: Engine) -> Iterator[None]:
    """The engine waits until the block ends, so that what is submitted in it runs together."""
    go = threading.Event()

    def wait(event: Event) -> None:
        go.wait(PATIENCE)

    engine.submit(Job(PROMPTS[0], GREEDY, 1, wait))
    yield
    go.set()


def idle(engine: Engine) -> bool:
    """Whether all pages are free again within a few seconds."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if engine.load.running == engine.load.waiting == 0 and engine.load.free_tokens == 4096:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_answers_have_the_bits_that_they_have_alone(
    make: Make, model: Model, sampling: Sampling
) -> None:
    busy = make()
    waiting = [submit(busy, prompt, sampling, 40) for prompt in PROMPTS]
    together = [one.result() for one in waiting]
    again = [submit(busy, prompt, sampling, 40).result() for prompt in PROMPTS]
    for prompt, first, second in zip(PROMPTS, together, again, strict=True):
        tokens = [one.token for one in first[0]]
        assert tokens == list(model.generate(prompt, sampling, 40))
        assert first[0] == second[0]  # logprobs: equal floats
        assert first[1] == second[1]
    assert sum(end.cached_tokens for _, _, end in again if isinstance(end, End)) > 0


def test_a_new_engine_finds_what_an_earlier_one_read(model: Model, tmp_path: Path) -> None:
    results = []
    for _ in range(2):
        engine = Engine(
            model,
            Tokenizer(model.bundle),
            Limits(4096, files=FilesOfPages(tmp_path, 1_000_000_000)),
        )
        results.append(submit(engine, PROMPTS[4], DRAWN, 20).result())
        engine.close()
    first, second = results
    assert first[:2] == second[:2]  # logprobs and text
    assert isinstance(second[2], End)
    assert second[2].cached_tokens == 192


def test_drafts_do_not_change_answers(make: Make, model: Model) -> None:
    engine = make()
    repeated = [([7, 8, 9, 10] * 20)[: 40 + n] for n in range(4)]
    waiting = [submit(engine, prompt, GREEDY, 200) for prompt in repeated]
    for prompt, one in zip(repeated, waiting, strict=True):
        tokens, _, _ = one.result()
        assert [t.token for t in tokens] == list(model.generate(prompt, GREEDY, 200))
    assert engine.load.accepted > 0


def test_drafts_have_a_limit(make: Make, model: Model) -> None:
    prompt = [7, 8, 9, 10] * 10
    expected = list(model.generate(prompt, GREEDY, 200))
    engine = make(drafts=0)
    tokens, _, _ = submit(engine, prompt, GREEDY, 200).result()
    assert [t.token for t in tokens] == expected
    assert idle(engine)
    assert (engine.load.drafted, engine.load.runs) == (0, len(expected))


def test_earlier_answers_do_not_change_later_ones(make: Make, model: Model) -> None:
    engine = make()
    for number in range(6):  # as long as before, and cut elsewhere
        waiting = [submit(engine, prompt, GREEDY, 30 + 5 * number) for prompt in PROMPTS[:4]]
        for prompt, one in zip(PROMPTS[:4], waiting, strict=True):
            tokens, _, _ = one.result()
            expected = list(model.generate(prompt, GREEDY, 30 + 5 * number))
            assert [t.token for t in tokens] == expected


def test_logprobs_are_those_of_the_logits(make: Make, model: Model) -> None:
    tokens, _, end = submit(make(), PROMPTS[1], GREEDY, 3).result()
    logits = model.sequence().read(PROMPTS[1]).astype(np.float64)
    expected = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
    assert tokens[0].logprob == pytest.approx(expected.max(), abs=1e-12)
    assert [number for number, _ in tokens[0].top] == np.argsort(-logits, kind="stable")[
        :2
    ].tolist()
    assert end == End("length", 130, 0, 3)


def test_short_memory_makes_answers_wait_but_does_not_change_them(make: Make, model: Model) -> None:
    engine = make(384)
    # Their answers have 150 tokens. The first two begin together, and need four of six pages each.
    prompts = [PROMPTS[2], PROMPTS[6], PROMPTS[7]]
    with held(engine):
        waiting = [submit(engine, prompt, DRAWN, 150) for prompt in prompts]
    for prompt, one in zip(prompts, waiting, strict=True):
        tokens, _, end = one.result()
        assert [t.token for t in tokens] == list(model.generate(prompt, DRAWN, 150))
        assert isinstance(end, End)
    assert engine.load.preempted > 0


def test_steps_that_choose_keys_are_the_same_after_waiting(
    plugins: Plugins, tmp_path: Path
) -> None:
    kind, _, write = MODELS["q4_1"]
    chosen = {"state-pack": {"keep": 20, "recent": 9}, "head-shortlist": {"dims": 8, "keep": 32}}
    model = Model.load(build_model(tmp_path, kind, chosen, write, plugins), 2)
    engine = Engine(model, Tokenizer(model.bundle), Limits(384))
    with held(engine):
        waiting = [submit(engine, prompt, DRAWN, 150) for prompt in PROMPTS]
    for prompt, one in zip(PROMPTS, waiting, strict=True):
        tokens, _, _ = one.result()
        assert [t.token for t in tokens] == list(model.generate(prompt, DRAWN, 150))
    assert engine.load.preempted > 0
    engine.close()


@pytest.mark.parametrize(
    "name", ["lfm2", "qwen35", "granite4", "deepseek", "gemma3n", "gemma4", "gemma4 moe"]
)
def test_all_kinds_of_layers_have_pages_and_drafts(
    name: str, plugins: Plugins, tmp_path: Path
) -> None:
    model = Model.load(build_model(tmp_path, *MODELS[name], plugins), 2)
    engine = Engine(model, Tokenizer(model.bundle), Limits(2048))
    prompts = [PROMPTS[0], PROMPTS[2], [7, 8, 9, 10] * 20]
    expected = [list(model.generate(prompt, GREEDY, 25)) for prompt in prompts]
    for cached in (False, True):
        results = [one.result() for one in [submit(engine, p, GREEDY, 25) for p in prompts]]
        assert [[one.token for one in tokens] for tokens, _, _ in results] == expected
        assert any(end.cached_tokens for _, _, end in results if isinstance(end, End)) == cached
    engine.close()


def test_a_cancelled_job_leaves_its_pages(make: Make) -> None:
    engine = make()
    waiting = Waiting()
    job = Job(PROMPTS[0], GREEDY, 400, waiting.events.put)
    engine.submit(job)
    waiting.events.get(timeout=60)
    engine.cancel(job)
    assert idle(engine)


def test_a_late_answer_fails(make: Make) -> None:
    engine = make()
    _, _, end = submit(engine, PROMPTS[0], GREEDY, 400, deadline=time.monotonic()).result()
    assert end == Failure(408, "the answer was not complete within its time limit")
    assert idle(engine)


def test_too_many_jobs_are_refused(make: Make) -> None:
    engine = make(queue=2, concurrent=1)
    waiting: list[Waiting] = []

    def fill() -> None:
        while True:
            waiting.append(submit(engine, PROMPTS[4], GREEDY, 200))

    with pytest.raises(OverloadedError, match="2 requests wait already"):
        fill()
    assert all(isinstance(one.result()[2], End) for one in waiting)


def test_closing_lets_answers_end(make: Make) -> None:
    engine = make()
    waiting = submit(engine, PROMPTS[0], GREEDY, 20)
    engine.close(60)
    assert isinstance(waiting.result()[2], End)
    with pytest.raises(OverloadedError, match="shutting down"):
        submit(engine, PROMPTS[0], GREEDY, 5)


@pytest.mark.parametrize("prompt", [[], [5] * 512])
def test_a_prompt_that_does_not_fit_is_refused(make: Make, prompt: list[int]) -> None:
    with pytest.raises(TamizError, match=rf"{len(prompt)} tokens, expected 1 to 511"):
        submit(make(), prompt, GREEDY, 5)


def test_a_token_that_the_model_does_not_know_is_refused_and_disturbs_no_other(
    make: Make, model: Model
) -> None:
    engine = make()
    with held(engine):
        other = submit(engine, PROMPTS[0], GREEDY, 5)
        with pytest.raises(TamizError, match=f"token {model.vocabulary} is unknown to the model"):
            submit(engine, [2, model.vocabulary], GREEDY, 5)
    assert isinstance(other.result()[2], End)


def test_a_scope_finds_its_own_pages_only(make: Make) -> None:
    engine = make()
    cached = []
    for scope in (b"a", b"b", b"a"):
        _, _, end = submit(engine, PROMPTS[4], GREEDY, 2, scope=scope).result()
        assert isinstance(end, End)
        cached.append(end.cached_tokens)
    assert cached == [0, 0, 192]


@pytest.mark.parametrize("logprobs", [None, 0], ids=["forced tokens together", "one by one"])
def test_a_grammar_is_followed_to_its_end(make: Make, model: Model, logprobs: int | None) -> None:
    text = model.bundle.file("tokenizer.json").read_text("utf-8")
    grammars = Grammars(text, model.vocabulary, sorted(model.stop_ids))
    waiting = Waiting()
    matcher = grammars.regex(r"sieve-[0-9]{3}!")
    job = Job(PROMPTS[0], DRAWN, 100, waiting.events.put, matcher=matcher, top_logprobs=logprobs)
    make().submit(job)
    _, answer, end = waiting.result()
    assert isinstance(end, End)
    assert end.reason == "stop"
    prefix, digits = answer[:6], answer[6:9]
    assert (prefix, digits.isdigit(), answer[9:]) == ("sieve-", True, "!")


def test_penalties_count_tokens_that_a_grammar_forces(make: Make, model: Model) -> None:
    """Whether they are drawn one by one, or follow together."""
    text = model.bundle.file("tokenizer.json").read_text("utf-8")
    grammars = Grammars(text, model.vocabulary, sorted(model.stop_ids))
    sampling, answers = Sampling(presence_penalty=1e3), []
    for logprobs in (None, 0):
        waiting = Waiting()
        matcher = grammars.regex(r"135792468[0-9]{3}!")
        job = Job([5, 6], sampling, 100, waiting.events.put, matcher=matcher, top_logprobs=logprobs)
        make().submit(job)
        answers.append(waiting.result()[1])
    assert answers[0] == answers[1]
    assert answers[0][9] == "0"  # the only digit that the text lacks


def test_a_stop_string_ends_an_answer_and_is_left_out(make: Make) -> None:
    engine = make()
    _, whole, _ = submit(engine, PROMPTS[0], GREEDY, 30).result()
    stop = whole[10:13]
    _, text, end = submit(engine, PROMPTS[0], GREEDY, 30, stop=(stop,)).result()
    assert isinstance(end, End)
    assert end.reason == "stop"
    assert text == whole[: whole.index(stop)]
