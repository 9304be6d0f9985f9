from typing import Any

import numpy as np
import pytest

from tamiz.files.errors import TamizError
from tamiz.runtime.kv_cache import ExactSequence, SharedSequence
from tamiz.runtime.model import Model

IDS = np.random.default_rng(0).integers(2, 262, 60).tolist()
#: float32 sums in another order.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}


def whole(model: Model, ids: list[int]) -> np.ndarray:
    """Logits of all positions in one run without a cache."""
    return model.logits(np.array([ids]))[0]


def test_each_kv_mode_is_used_where_the_manifest_says_so(dense, shared) -> None:
    assert isinstance(dense.sequence(), ExactSequence)
    assert isinstance(shared.sequence(), SharedSequence)


def test_both_kv_modes_give_the_same_logits(dense, shared) -> None:
    exact, appended = dense.sequence(), shared.sequence(len(IDS))
    np.testing.assert_allclose(appended.read(IDS[:20]), exact.read(IDS[:20]), **CLOSE)
    for token in IDS[20:]:
        np.testing.assert_allclose(appended.step(token), exact.step(token), **CLOSE)


def test_reading_in_parts_equals_one_run(model) -> None:
    expected = whole(model, IDS)
    sequence = model.sequence()
    np.testing.assert_allclose(sequence.read(IDS[:17]), expected[16], **CLOSE)
    np.testing.assert_allclose(sequence.logits(IDS[17:40]), expected[17:40], **CLOSE)
    np.testing.assert_allclose(sequence.step(IDS[40]), expected[40], **CLOSE)
    np.testing.assert_allclose(sequence.read(IDS[41:]), expected[-1], **CLOSE)
    assert sequence.tokens == IDS


def test_long_prompts_are_read_in_chunks(model, monkeypatch) -> None:
    monkeypatch.setattr("tamiz.runtime.sequence.CHUNK", 7)
    np.testing.assert_allclose(model.sequence().read(IDS), whole(model, IDS)[-1], **CLOSE)


def test_a_truncated_sequence_goes_on_where_it_was_cut(model) -> None:
    sequence = model.sequence()
    sequence.read(IDS)
    sequence.truncate(10)
    np.testing.assert_allclose(
        sequence.read(IDS[:5]), whole(model, IDS[:10] + IDS[:5])[-1], **CLOSE
    )


def test_a_sequence_that_takes_another_goes_on_from_there_by_itself(model) -> None:
    one, other = model.sequence(len(IDS)), model.sequence(4)
    other.read(IDS[30:35])
    one.read(IDS[:20])
    other.take(one)
    assert other.tokens == IDS[:20]
    expected = one.step(IDS[20]).copy()
    np.testing.assert_array_equal(other.step(IDS[20]), expected)
    other.read(IDS[40:50])  # the first sequence does not see what the second one reads
    np.testing.assert_allclose(one.read(IDS[21:]), whole(model, IDS)[-1], **CLOSE)


def test_a_shared_cache_grows_when_it_is_full(shared) -> None:
    sequence = shared.sequence(4)
    for token in IDS:
        logits = sequence.step(token).copy()
    np.testing.assert_allclose(logits, whole(shared, IDS)[-1], **CLOSE)


def test_a_sequence_can_fill_the_limit_but_not_more(model) -> None:
    ids = (IDS * 5)[: model.limit]
    sequence = model.sequence()
    assert np.isfinite(sequence.read(ids)).all()
    with pytest.raises(TamizError, match=r"257 tokens does not fit: the model's limit is 256"):
        sequence.step(2)


def test_left_padded_batch_equals_single_runs(model) -> None:
    singles = [IDS[:5], IDS[5:17], IDS[17:40]]
    longest = max(map(len, singles))
    ids = np.array([[0] * (longest - len(row)) + row for row in singles])
    mask = np.array([[0] * (longest - len(row)) + [1] * len(row) for row in singles])
    batch = model.logits(ids, mask)
    for row, single in zip(batch, singles, strict=True):
        np.testing.assert_allclose(row[-len(single) :], whole(model, single), **CLOSE)


def test_the_head_runs_for_the_last_position_of_a_prompt_only(shared) -> None:
    ids = np.array([IDS])
    feeds = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(len(IDS))[None],
        "logits_to_keep": np.array([1]),
        **{state.past: state.zeros() for state in shared.states},
    }
    (logits,) = shared.session.run(["logits"], feeds)
    assert logits.shape == (1, 1, shared.vocabulary)
    np.testing.assert_allclose(logits[0, 0], whole(shared, IDS)[-1], **CLOSE)


@pytest.mark.parametrize("token", [-1, 10**6, 2**70])
def test_a_token_that_the_model_does_not_know_is_named(model: Model, token: int) -> None:
    sequence = model.sequence()
    for read in (lambda: sequence.read([1, token]), lambda: sequence.logits([1, token])):
        with pytest.raises(TamizError, match=f"token {token} is unknown to the model"):
            read()
    with pytest.raises(TamizError, match=f"token {token} is unknown to the model"):
        sequence.step(token)
    assert sequence.tokens == []
