"""Several sequences in one run: each has the text and the logits that it has alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.command_line import ok
from kit.equal_runs import MODELS, build_model
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling

pytestmark = pytest.mark.slow

#: Ways to keep keys, and products that choose what they read.
NAMES = ["q4_1", "q8_0 kv-int8", "q4_1 window", "kwta", "gemma2 kv-int8", "gpt-oss", "lfm2"]
NAMES += ["deepseek", "gemma3n", "gemma4", "gemma4 moe", "qwen35", "granite4", "falcon-h1"]
NAMES += ["nemotron-h", "nemotron-h moe", "mamba2", "falcon-mamba", "jamba"]
RANDOM = np.random.default_rng(0)
#: Some longer than a range of keys that attention sums.
TEXTS = [RANDOM.integers(2, 250, count).tolist() for count in (300, 20, 129, 64, 65, 200, 90)]


@pytest.fixture(scope="module")
def built(plugins: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Model:
    path = build_model(tmp_path_factory.mktemp("batch"), *MODELS["q4_1"], plugins)
    return Model.load(path, 2)


def bits(logits: np.ndarray | None) -> np.ndarray:
    assert logits is not None
    return logits.view(np.int32).copy()


class Schedule:
    """A batch whose sequences come, go and step as a test draws it; all logits are checked."""

    def __init__(
        self, model: Model, expected: list[np.ndarray], slowdown: float, prefixes: bool
    ) -> None:
        self.batch = Batch(model, 12 * PAGE, slowdown, prefixes)
        self.expected = expected
        self.texts: dict[Member, int] = {}

    def add(self, text: int, prompt: int) -> None:
        """Adds a sequence with a part of a text as its prompt, if there is room."""
        ids = TEXTS[text]
        if len(ids) <= self.batch.free:
            self.texts[self.batch.add(ids[: prompt % len(ids) + 1], len(ids))] = text

    def run(self, waiting: int, drafts: int = 0) -> None:
        """Gives all that have been read but one their next token, and runs.

        Each also gets drafts, the last of which is wrong.
        """
        for place, (member, text) in enumerate(list(self.texts.items())):
            at = len(member.tokens) + len(member.unread)
            if member.unread or place == waiting:
                continue
            if at == len(TEXTS[text]):
                self.remove(place)
            else:
                right = TEXTS[text][at + 1 : at + drafts]
                member.append(TEXTS[text][at])
                member.propose([*right, 0][:drafts])
        for member in self.batch.run():
            assert member.rows is not None
            text = self.texts[member]
            first = len(member.tokens) - len(member.rows)
            right = [0 for n in range(first + 1, len(member.tokens)) if self.right(member, text, n)]
            member.accept(len(right))
            rows = self.expected[text][first : first + 1 + len(right)]
            np.testing.assert_array_equal(bits(member.rows), rows)

    def right(self, member: Member, text: int, place: int) -> bool:
        """Whether a token that was read is the text's, as are all before it."""
        return member.tokens[: place + 1] == TEXTS[text][: place + 1]

    def remove(self, place: int) -> None:
        """Removes the sequence at a place, if there is one."""
        if place < len(self.texts):
            member = list(self.texts)[place]
            self.batch.remove(member)
            del self.texts[member]


ACTION = st.one_of(
    st.tuples(st.just("add"), st.integers(0, len(TEXTS) - 1), st.integers(0, 300)),
    st.tuples(st.just("run"), st.integers(0, 8)),
    st.tuples(st.just("run"), st.integers(0, 8), st.integers(0, 4)),
    st.tuples(st.just("remove"), st.integers(0, 8)),
)


@pytest.mark.parametrize("name", NAMES)
def test_logits_have_the_bits_that_a_sequence_has_alone(
    name: str, plugins: Plugins, tmp_path: Path
) -> None:
    path = build_model(tmp_path, *MODELS[name], plugins)
    models = [Model.load(path, threads) for threads in (1, 2)]
    expected = []
    for text in TEXTS:
        sequence = models[0].sequence()
        expected.append(np.stack([bits(sequence.step(token)) for token in text]))

    @given(
        st.sampled_from(models),
        st.lists(ACTION, min_size=10, max_size=50),
        st.sampled_from([1.0, 1.5, 1e6]),
        st.booleans(),
    )
    @settings(max_examples=10, database=None, derandomize=True)
    def check(
        model: Model, actions: list[tuple[Any, ...]], slowdown: float, prefixes: bool
    ) -> None:
        schedule = Schedule(model, expected, slowdown, prefixes)
        for text in (0, 1):
            schedule.add(text, 5)
        for action, *numbers in actions:
            getattr(schedule, action)(*numbers)
        while schedule.texts:
            schedule.run(len(TEXTS))
        assert schedule.batch.free == schedule.batch.tokens

    check()


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.0, top_p=0.9, seed=3),
        Sampling(repeat_penalty=1.3, frequency_penalty=0.2, ignore_eos=True),
        Sampling(1.0, min_p=0.02, presence_penalty=0.5, logit_bias={7: 2.0, 9: -9.0}, seed=3),
    ],
    ids=["greedy", "seed", "penalties", "all"],
)
@pytest.mark.parametrize("tokens", [400, 10_000])
def test_answers_are_those_of_the_model_alone(
    built: Model, sampling: Sampling, tokens: int
) -> None:
    batch = Batch(built, tokens)
    prompts = [text[: len(text) // 2] for text in TEXTS]
    answers: dict[int, list[int]] = {number: [] for number in range(len(prompts))}
    for number, token in batch.generate(iter(prompts), sampling, 30):
        answers[number].append(token)
    assert list(answers.values()) == [list(built.generate(p, sampling, 30)) for p in prompts]
    assert not batch.members


def test_a_stop_token_ends_an_answer(built: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    (_, first), (_, second), *_ = Batch(built, 500).generate([TEXTS[0][:50]], Sampling(), 5)
    monkeypatch.setattr(built, "stop_ids", frozenset({second}))
    batch = Batch(built, 500)
    assert list(batch.generate([TEXTS[0][:50]], Sampling(), 5)) == [(0, first)]
    assert batch.free == batch.tokens


def test_answers_that_nobody_waits_for_leave_the_batch(built: Model) -> None:
    batch = Batch(built, 1000)
    answers = batch.generate(TEXTS[1:4], Sampling(), 50)
    next(answers)
    assert batch.members
    answers.close()
    assert not batch.members
    assert batch.free == batch.tokens


@pytest.mark.parametrize("which", [0, 1])
def test_the_answer_of_a_removed_member_ends(built: Model, which: int) -> None:
    batch = Batch(built, 1000)
    counts = Counter[int]()
    for number, _ in batch.generate(TEXTS[1:3], Sampling(ignore_eos=True), 20):
        counts[number] += 1
        if counts.total() == 6:
            batch.remove(batch.members[which])
    assert counts[1 - which] == 20
    assert counts[which] <= 6
    assert batch.free == batch.tokens


@pytest.mark.parametrize("tokens", [2**31, 2**40, 2**63])
def test_a_batch_larger_than_the_memory_is_refused(built: Model, tokens: int) -> None:
    with pytest.raises(TamizError, match=r"a cache of .* GB does not fit in the machine's"):
        Batch(built, tokens)


def test_a_prompt_is_read_while_others_step(built: Model) -> None:
    batch = Batch(built, 2000, slowdown=1e6)
    stepping = batch.add([5], 300)
    batch.run()
    joining = batch.add(TEXTS[0], 400)
    while joining.logits is None:
        before = len(joining.tokens)
        stepping.append(7)
        assert batch.run()[-1] is stepping
        assert stepping.logits is not None
        # the first run shows how long one without the prompt takes
        assert len(joining.tokens) > before or len(stepping.tokens) == 2
    assert len(stepping.tokens) < 100
    expected = built.sequence().read(TEXTS[0])
    np.testing.assert_array_equal(bits(joining.logits), expected.view(np.int32))


def test_a_prompt_alone_is_read_in_large_parts(built: Model) -> None:
    batch = Batch(built, 2000)
    member = batch.add(TEXTS[0], 300)
    assert batch.run() == [member]
    assert member.tokens == TEXTS[0]
    assert batch.run() == []


def test_pages_of_removed_sequences_are_used_again(built: Model) -> None:
    batch = Batch(built, 3 * PAGE)
    first, second = batch.add([5] * 65, 70), batch.add([5], 1)
    assert batch.free == 0
    used = first.pages
    batch.remove(first)
    assert batch.free == 2 * PAGE
    assert sorted(batch.add([6], 2 * PAGE).pages) == sorted(used)
    assert second.pages[0] not in used


def test_memory_is_used_by_pages_that_were_read(built: Model) -> None:
    # A cache for ten million tokens is larger than the machine: it is not touched.
    batch = Batch(built, 10_000_000)
    member = batch.add(TEXTS[0], 400)
    assert batch.run() == [member]


REFUSED: list[tuple[list[int], int, str]] = [
    ([], 5, "the prompt has 0 tokens, expected at least 1 and at most the sequence's room of 5"),
    ([1] * 6, 5, "the prompt has 6 tokens, expected at least 1 and at most .* 5"),
    ([1], 513, "a sequence of 513 tokens does not fit: the model's limit is 512 tokens"),
    ([262], 5, "token 262 is unknown to the model, which knows 0 to 261"),
    ([1], 300, "5 pages of 64 tokens are needed, but 4 of the batch's 4 are free; try"),
]


@pytest.mark.parametrize(("prompt", "room", "message"), REFUSED)
def test_limits_are_refused_in_one_sentence(
    built: Model, prompt: list[int], room: int, message: str
) -> None:
    batch = Batch(built, 4 * PAGE)
    with pytest.raises(TamizError, match=message) as error:
        batch.add(prompt, room)
    assert "\n" not in str(error.value)
    assert not batch.members
    assert batch.free == batch.tokens


def test_a_sequence_has_no_more_tokens_than_its_room(built: Model) -> None:
    member = Batch(built, 100).add([1, 2], 3)
    member.append(3)
    with pytest.raises(TamizError, match=r"sequence has 3 tokens, which is all .* try more room"):
        member.append(4)
    with pytest.raises(TamizError, match="token -1 is unknown"):
        Batch(built, 100).add([1], 3).append(-1)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((0,), "tokens is 0, expected at least 1"), ((1, 0.5), "slowdown is 0.5, expected at least")],
)
def test_numbers_out_of_range_are_refused(
    built: Model, numbers: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(TamizError, match=message):
        Batch(built, *numbers)


def test_a_bundle_that_reads_one_sequence_is_refused(dense: Model) -> None:
    with pytest.raises(TamizError, match=r"model\.onnx: has no input sequences, .* build the"):
        Batch(dense, 100)


def test_a_state_of_fixed_size_is_refused(dense_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "built"
    flags = ("--event-driven=on", "--event-driven-reference=zero", "--event-driven-anywhere=true")
    ok(
        "build",
        dense_dir,
        "-o",
        path,
        *flags,
        "--event-driven-topk=0.4",
        "--event-driven-delta-theta=0.01",
    )
    with pytest.raises(
        TamizError, match=r"event-driven keeps past_\S*event, a state of fixed size"
    ):
        Batch(Model.load(path), 100)


def test_pairs_of_runs_reuse_the_cache_of_a_batch(built: Model) -> None:
    batch = Batch(built, 500)
    for before, after in pairwise([3, 50, 4]):
        members = [batch.add(TEXTS[0][:count], 60) for count in (before, after)]
        batch.run()
        for member in members:
            expected = built.sequence().read(member.tokens)
            np.testing.assert_array_equal(bits(member.logits), expected.view(np.int32))
            batch.remove(member)
