"""Decode steps that attend to the keys that weigh, on every instruction set.

Keys of a sequence are one array; a step reads the first of them, as a graph does from its cache.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import ROUNDED_STEP, assert_rounded
from kit.ops_graphs import model, node, session, value
from tamiz_ops import event_attention_reference, reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
F = np.float32
PROMPT, STEPS, DIM = 100, 12, 32


class Sequences:
    """A batch of sequences and all that the op keeps of them."""

    def __init__(self, runner, heads=(6, 2), batch=1, seed=0, **attributes):
        rng = np.random.default_rng(seed)
        length = PROMPT + STEPS
        self.runner, self.heads = runner, heads
        self.attributes = {"num_heads": heads[0], "kv_heads": heads[1], "theta": 0.2,
                           "gap_tol": 10.0, "age_max": 4, **attributes}  # fmt: skip
        # Queries that move slowly, as the rest is known from an older one.
        q = rng.standard_normal((batch, 1, heads[0] * DIM))
        drift = 0.1 * rng.standard_normal((batch, length, heads[0] * DIM)).cumsum(1)
        self.q = (q + drift).astype(F)
        self.k, self.v = rng.standard_normal((2, batch, length, heads[1] * DIM)).astype(F)
        self.mask = np.ones((batch, length), np.int64)
        self.mean = self.k.reshape(batch * length, heads[1], DIM).mean(0)
        self.forget()

    def forget(self) -> None:
        batch, (heads, kv_heads) = len(self.q), self.heads
        self.length = 0
        words = DIM // 4 + 1 if self.attributes.get("cache_bits") == 8 else DIM
        self.cache = [np.zeros((batch, kv_heads, 0, width), F) for width in (words, words, 9)]
        self.event = np.zeros((batch, 2 + heads * DIM), F)

    def run(self, tokens, **changes) -> np.ndarray:
        """The outputs of the next tokens."""
        here = slice(self.length, self.length + tokens)
        self.length += tokens
        positions = np.tile(np.arange(here.start, here.stop), (len(self.q), 1))
        inputs = [self.q[:, here], self.k[:, here], self.v[:, here], *self.cache[:2],
                  self.mask[:, : self.length], positions, None, self.cache[2], self.mean,
                  self.event]  # fmt: skip
        y, *cache, event = self.runner("Attention", inputs, **{**self.attributes, **changes})
        self.cache, self.event = [part.astype(F) for part in cache], event.astype(F)
        return y

    def exact(self, step) -> np.ndarray:
        """What attention to all keys gives in a step, and leaves everything as it was."""
        here = slice(step, step + 1)
        inputs = [self.q[:, here], self.k[:, here], self.v[:, here],
                  *(part[:, :, :step] for part in self.cache[:2]), self.mask[:, : step + 1],
                  np.full((len(self.q), 1), step), None, None, self.mean]  # fmt: skip
        names = ("num_heads", "kv_heads", "cache_bits", "softcap")
        plain = {name: self.attributes[name] for name in names if name in self.attributes}
        return tamiz_ops.run("Attention", inputs, **plain)[0]


def by_isa(isa, threads=2) -> Callable[..., Any]:
    return lambda op, inputs, **others: tamiz_ops.run(
        op, inputs, isa=isa, threads=threads, **others
    )


def native(**others) -> Sequences:
    return Sequences(by_isa(ISAS[0]), **others)


def due(length, age_max=4, turn=0) -> bool:
    return (length + turn) % age_max == 0


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", [(1, 1), (6, 2), (17, 1)])
@pytest.mark.parametrize("cache_bits", [8, 32])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_a_sequence_equals_the_reference(isa, heads, cache_bits, softcap) -> None:
    options = {"heads": heads, "batch": 2, "cache_bits": cache_bits, "turn": 3, "softcap": softcap}
    ours, theirs = Sequences(by_isa(isa), **options), Sequences(reference.run, **options)
    for one in (ours, theirs):
        one.mask[1, :30] = one.mask[1, 40:60:3] = 0
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for tokens in (PROMPT, *[1] * STEPS):
        theirs.event = ours.event.copy()
        pair = ours.run(tokens), theirs.run(tokens)
        if cache_bits == 8:
            steps += [pair, (ours.event.copy(), theirs.event.copy())]
        else:
            np.testing.assert_allclose(*pair, rtol=0, atol=3e-6)
            np.testing.assert_allclose(ours.event, theirs.event, rtol=1e-4, atol=2e-5)
        np.testing.assert_array_equal(
            ours.cache[2].view(np.uint32), theirs.cache[2].view(np.uint32)
        )
        theirs.cache = [part.copy() for part in ours.cache]
    if steps:
        assert_rounded(
            *(np.concatenate([one.ravel() for one in each]) for each in zip(*steps, strict=True))
        )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dim", "keys"), [(32, 3), (64, 256), (80, 700), (256, 1100), (64, 5000)])
def test_keys_of_any_number_and_size_are_chosen_as_by_the_reference(isa, dim, keys) -> None:
    """Element 0 of the values tells which keys were attended to, by their weights."""
    rng = np.random.default_rng(keys)
    q = 2 * rng.standard_normal((1, 1, 3 * dim)).astype(F)
    key = rng.standard_normal((1, 1, keys, dim)).astype(F)
    value = rng.standard_normal((1, 1, keys, dim)).astype(F)
    mask = (rng.random((1, keys)) < 0.9).astype(np.int64)
    mask[0, -1] = 1
    rows = event_attention_reference.pack(key[:, :, :-1], None)
    state = rng.standard_normal((1, 2 + 3 * dim)).astype(F)
    state[:, :2] = 1, 0
    inputs: list[Any] = [q, key[:, 0, -1:], value[:, 0, -1:], key[:, :, :-1], value[:, :, :-1]]
    inputs += [mask, np.full((1, 1), keys - 1), None, rows, None, state]
    attributes: dict[str, Any] = {"num_heads": 3, "kv_heads": 1, "theta": 0.2, "age_max": 10_000}
    y, *_, event = tamiz_ops.run("Attention", inputs, isa=isa, **attributes)
    expected, *_, known = reference.run("Attention", inputs, **attributes)
    np.testing.assert_allclose(y, expected, rtol=0, atol=5e-6)
    np.testing.assert_array_equal(event, known)
    everything = tamiz_ops.run("Attention", inputs, isa=isa, **{**attributes, "theta": 0.0})[0]
    exact = tamiz_ops.run("Attention", inputs[:8], isa=isa, num_heads=3, kv_heads=1)[0]
    np.testing.assert_allclose(everything, exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_threads_do_not_matter(isa) -> None:
    one, four = Sequences(by_isa(isa, 1), batch=2), Sequences(by_isa(isa, 4), batch=2)
    for tokens in (PROMPT, *[1] * STEPS):
        np.testing.assert_array_equal(one.run(tokens), four.run(tokens))
        np.testing.assert_array_equal(one.event, four.event)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cache_bits", [8, 32])
@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_steps_that_compute_the_rest_anew_are_exact(isa, cache_bits, softcap) -> None:
    sequences = Sequences(by_isa(isa), turn=1, cache_bits=cache_bits, softcap=softcap)
    sequences.run(PROMPT)
    errors: dict[bool, list[float]] = {True: [], False: []}
    for step in range(PROMPT, PROMPT + STEPS):
        y = sequences.run(1)
        anew = step == PROMPT or due(step + 1, turn=1)
        errors[anew].append(np.abs(y - sequences.exact(step)).max())
    # Bytes meet rounded weights, in blocks of the keys that are attended to together.
    assert max(errors[True]) < (ROUNDED_STEP if cache_bits == 8 else 2e-6)
    assert min(errors[False]) > 1e-4


def test_what_is_left_out_is_nearer_than_without_it() -> None:
    known = native()
    known.run(PROMPT)
    gaps = []
    for step in range(PROMPT, PROMPT + STEPS):
        exact, state, length = known.exact(step), known.event.copy(), known.length
        nothing = known.event.copy()
        nothing[:, 2:] = 0  # the others have their weight, and no value
        y = []
        for event in (nothing, state):
            known.event, known.length = event, length
            y.append(known.run(1, age_max=1000))
        gaps.append([np.linalg.norm(one - exact) for one in y])
    dropped_gap, known_gap = np.mean(gaps[1:], axis=0)
    assert known_gap < 0.7 * dropped_gap


@pytest.mark.parametrize("isa", ISAS)
def test_with_the_query_of_before_nothing_is_missed(isa) -> None:
    """But for the weight of the others, which is told by four bits an element."""
    sequences = Sequences(by_isa(isa), turn=1)
    sequences.run(PROMPT)
    before = sequences.cache
    exact = sequences.run(1)
    known = sequences.event.copy()
    sequences.cache, sequences.length = before, PROMPT
    again = sequences.run(1, age_max=1000)
    assert np.linalg.norm(again - exact) < 0.01 * np.linalg.norm(exact)
    np.testing.assert_array_equal(sequences.event, known)


def test_a_large_gap_makes_the_sequence_exact_and_the_next_one_starts_anew() -> None:
    sequences = native(gap_tol=1e-6)
    sequences.run(PROMPT)
    while not sequences.event[0, 1]:
        sequences.run(1)
    assert due(sequences.length)
    step = sequences.length
    np.testing.assert_allclose(sequences.run(1), sequences.exact(step), rtol=0, atol=2e-6)
    sequences.run(2)  # more of the same sequence in one run
    assert sequences.event[0, :2].tolist() == [0, 1]
    sequences.forget()
    sequences.event[0, 1] = 1  # as a host that gives old memory to a new sequence
    sequences.run(PROMPT)
    assert not sequences.event.any()


@pytest.mark.parametrize("noise", [True, False])
def test_white_noise_switches_off_what_slow_queries_do_not(noise) -> None:
    sequences = native(gap_tol=0.25, theta=0.5)
    first = sequences.q[:, :1]
    others = np.random.default_rng(1).standard_normal(sequences.q.shape).astype(F)
    sequences.q = 2 * others if noise else first + 0.05 * others
    for _ in range(2):  # the second sequence begins with the state of the first
        sequences.length, sequences.cache = 0, [part[:, :, :0] for part in sequences.cache]
        sequences.run(PROMPT)
        assert not sequences.event[0, 1]
        for _ in range(STEPS):
            step = sequences.length
            y = sequences.run(1)
            if sequences.event[0, 1]:
                np.testing.assert_allclose(y, sequences.exact(step), rtol=0, atol=2e-6)
        assert sequences.event[0, 1] == noise


def test_a_gap_that_is_no_number_switches_off() -> None:
    sequences = native()
    sequences.run(PROMPT)
    sequences.run(1)
    sequences.event[0, 3] = np.nan
    while not due(sequences.length):
        sequences.run(1)
    assert sequences.event[0, 1] == 1


@pytest.mark.parametrize("isa", ISAS)
def test_keys_that_are_no_numbers_are_not_hidden(isa) -> None:
    sequences = Sequences(by_isa(isa))
    sequences.k[0, 40, 3] = np.nan
    sequences.run(PROMPT)
    for _ in range(3):
        y = sequences.run(1).reshape(2, 3 * DIM)
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1]).all()  # of another KV head


def test_sequences_of_a_batch_do_not_meet() -> None:
    both, first = native(batch=2, seed=3), native(batch=2, seed=3)
    first.q[1] = first.k[1] = first.v[1] = 1
    for tokens in (PROMPT, *[1] * STEPS):
        np.testing.assert_array_equal(both.run(tokens)[0], first.run(tokens)[0])
    np.testing.assert_array_equal(both.event[0], first.event[0])


def test_a_step_of_few_keys_forgets() -> None:
    sequences = native()
    sequences.run(PROMPT)
    sequences.run(1)
    assert sequences.event[0, 0] == 1
    step = sequences.length
    y = sequences.run(1, least_keys=1000)
    np.testing.assert_allclose(y, sequences.exact(step), rtol=0, atol=2e-6)
    assert not sequences.event.any()


def test_past_and_present_in_one_memory() -> None:
    apart, together = native(), native()
    for tokens in (PROMPT, 1, 1):
        apart.run(tokens)
        together.run(tokens)
    inputs = [together.q[:, 102:103], together.k[:, 102:103], together.v[:, 102:103],
              *together.cache[:2], together.mask[:, :103], np.full((1, 1), 102), None,
              together.cache[2], together.mean, together.event]  # fmt: skip
    out: list[Any] = [*[True] * 4, together.event]
    y, *_ = tamiz_ops.run("Attention", inputs, out=out, isa=ISAS[0], **together.attributes)
    np.testing.assert_array_equal(y, apart.run(1))
    np.testing.assert_array_equal(together.event, apart.event)


def test_metrics() -> None:
    sequences = native(batch=2)
    sequences.run(PROMPT)
    attributes = sequences.attributes
    names = ["q", "k", "v", "past_key", "past_value", "mask", "positions", "", "past_sketch", "",
             "past_event"]  # fmt: skip
    attributes = {**attributes, "theta": 0.0}
    feeds = [sequences.q[:, 100:101], sequences.k[:, 100:101], sequences.v[:, 100:101],
             *sequences.cache[:2], sequences.mask[:, :101], np.full((2, 1), 100),
             sequences.cache[2], sequences.event]  # fmt: skip
    outputs = ["y", "key", "value", "sketch", "event"]
    inputs = [
        value(name, feed.dtype) for name, feed in zip(filter(None, names), feeds, strict=True)
    ]
    graph = model([node("Attention", names, outputs, "attention", **attributes)], inputs, outputs)
    ran = session(graph)
    feed = dict(zip(filter(None, names), feeds, strict=True))
    feed["past_event"] = ran.run(["event"], feed)[0]
    feed["past_event"][:, 0] = 1
    ran.run(None, {**feed})
    found = tamiz_ops.metrics(ran)["attention"]
    assert found["event.enabled"] == 4
    assert found["event.channels"] == 4 * 2 * 101
    assert found["event.topk_kept"] == 2 * 2 * (101 + 101)
    assert found["event.gap_checks"] == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"age_max": 0}, "age_max is 0"),
        ({"theta": -1.0}, "theta is -1"),
        ({"window": 8}, "past_event is given, expected past_sketch with it and no window"),
        ({}, "past_event has shape"),
    ],
)
def test_what_does_not_fit_is_an_error(change, message) -> None:
    sequences = native(**change)
    if not change:
        sequences.event = sequences.event[:, 1:]
    with pytest.raises(ValueError, match=message):
        sequences.run(PROMPT)
