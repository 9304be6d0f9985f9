"""Techniques that act on decode steps: in a batch each sequence has the bits that it has alone.

A prompt is exact, and the steps behind it choose keys and outputs. So what is read as a prompt and
what as steps must be the same in a batch, however prompts are cut and whoever else is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from kit.equal_runs import build_model, write_llama
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.model import Model

pytestmark = pytest.mark.slow

FILTER = {"keep": 20, "recent": 9}
HEAD = {"dims": 8, "keep": 32, "rows": 4}
TECHNIQUES: dict[str, dict[str, Any]] = {
    "state-pack": {"state-pack": FILTER},
    "ternary": {"state-pack": FILTER | {"mode": "ternary"}, "kv-int8": {}},
    "window": {"state-pack": FILTER, "window-attention": {"tokens": 150}},
    "key-filter": {"key-filter": {"keep": 20}},
    "head": {"head-shortlist": HEAD},
    "both": {"head-shortlist": HEAD, "state-pack": FILTER, "kv-int8": {}},
}
RANDOM = np.random.default_rng(3)
#: Texts, and how many of their tokens are the prompt.
TEXTS = [
    (RANDOM.integers(2, 250, count).tolist(), prompt)
    for count, prompt in ((300, 200), (150, 65), (129, 1), (200, 193), (90, 20), (260, 128))
]


def make(name: str, folder: Path, plugins: Plugins) -> Path:
    kind = gguf.GGMLQuantizationType.Q4_1
    return build_model(folder, kind, TECHNIQUES[name], write_llama, plugins)


def alone(model: Model, text: list[int], prompt: int) -> np.ndarray:
    """The bits of the logits after the prompt and after each step."""
    sequence = model.sequence()
    rows = [sequence.read(text[:prompt]).copy()]
    rows += [sequence.step(token).copy() for token in text[prompt:]]
    return np.stack(rows).view(np.int32)


class Crowd:
    """Sequences that come, step, leave and come back in an order that is drawn."""

    def __init__(self, model: Model, expected: list[np.ndarray], seed: int) -> None:
        self.batch = Batch(model, 14 * PAGE, 1.5, prefixes=True)
        self.expected, self.random = expected, np.random.default_rng(seed)
        self.texts: dict[Member, int] = {}
        self.reached: dict[int, int] = {}  # tokens of texts that left
        self.compared = 0

    def join(self) -> None:
        text = int(self.random.integers(len(TEXTS)))
        ids, prompt = TEXTS[text]
        if text in self.texts.values() or len(ids) > self.batch.free:
            return
        known = max(prompt, self.reached.get(text, 0))
        member = self.batch.add(ids[:known], len(ids), answered=known - prompt)
        self.texts[member] = text

    def leave(self, member: Member) -> None:
        text = self.texts.pop(member)
        self.reached[text] = len(member.tokens) % len(TEXTS[text][0])
        self.batch.remove(member)

    def step(self) -> None:
        for member, text in list(self.texts.items()):
            ids, _ = TEXTS[text]
            at = len(member.tokens)
            if member.unread or self.random.random() < 0.2:
                continue
            if at == len(ids):
                self.leave(member)
                continue
            member.append(ids[at])
            count = int(self.random.integers(4))
            member.propose([*ids[at + 1 : at + count], 0][:count])
        for member in self.batch.run():
            self.check(member, self.texts[member])

    def check(self, member: Member, text: int) -> None:
        assert member.rows is not None
        ids, prompt = TEXTS[text]
        first = len(member.tokens) - len(member.rows)
        right = 0
        for place in range(first + 1, len(member.tokens)):
            if member.tokens[first + 1 : place + 1] != ids[first + 1 : place + 1]:
                break
            right += 1
        member.accept(right)
        rows = self.expected[text][first + 1 - prompt :][: 1 + right]
        np.testing.assert_array_equal(member.rows.view(np.int32), rows)
        self.compared += len(rows)


@pytest.mark.parametrize("name", TECHNIQUES)
def test_steps_have_the_bits_that_a_sequence_has_alone(
    name: str, plugins: Plugins, tmp_path: Path
) -> None:
    path = make(name, tmp_path, plugins)
    model = Model.load(path, 2)
    expected = [alone(model, *text) for text in TEXTS]
    exact = Model.load(path, 2, without=model.bundle.manifest.step_techniques)
    assert any((alone(exact, *t) != e).any() for t, e in zip(TEXTS, expected, strict=True))
    for seed in range(3):
        crowd = Crowd(model, expected, seed)
        for _ in range(120):
            if crowd.random.random() < 0.3:
                crowd.join()
            if crowd.texts and crowd.random.random() < 0.05:
                crowd.leave(next(iter(crowd.texts)))
            crowd.step()
        assert crowd.compared > 100


def test_steps_of_an_answer_are_no_prefix_of_a_prompt(plugins: Plugins, tmp_path: Path) -> None:
    model = Model.load(make("state-pack", tmp_path, plugins), 2)
    ids, prompt = TEXTS[0]
    batch = Batch(model, 20 * PAGE, prefixes=True)
    member = batch.add(ids[:prompt], len(ids))
    batch.run()
    for token in ids[prompt:]:
        member.append(token)
        batch.run()
    batch.remove(member)
    assert batch.add(ids, len(ids)).cached == prompt // PAGE * PAGE


def test_a_state_of_fixed_size_is_refused_by_name(plugins: Plugins, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType.Q4_1
    path = build_model(tmp_path, kind, {"event-attention": {}}, write_llama, plugins)
    with pytest.raises(TamizError, match=r"event-attention keeps past_.* without event-attention$"):
        Batch(Model.load(path, 2), 64)
