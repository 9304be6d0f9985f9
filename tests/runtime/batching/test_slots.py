"""States of fixed size in slots: which are found again, and with which bits."""

from __future__ import annotations

import numpy as np
import pytest

from kit.equal_runs import MODELS, build_model
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE, State
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.batching.slots import Slots, slots_of
from tamiz.runtime.model import Model

TEXT = np.random.default_rng(1).integers(2, 250, 300).tolist()
OTHER = np.random.default_rng(2).integers(2, 250, 60).tolist()
STATE = State("past_delta.0", (2, 3), np.float32, 0, None, recent=True, in_slots=True)


@pytest.fixture(scope="module", params=["qwen35", "granite4", "mamba2", "falcon-mamba", "jamba"])
def model(
    request: pytest.FixtureRequest, plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    path = build_model(tmp_path_factory.mktemp("slots"), *MODELS[request.param], plugins)
    return Model.load(path, 2)


def read(batch: Batch, prompt: list[int], scope: bytes = b"") -> Member:
    member = batch.add(prompt, min(len(prompt) + 200, 512), reserve=False, scope=scope)
    while member.logits is None:
        batch.run()
    return member


def check(model: Model, member: Member, text: list[int]) -> None:
    """The logits are those of a sequence alone."""
    assert member.logits is not None
    expected = model.sequence().read(text)
    np.testing.assert_array_equal(member.logits.view(np.int32), expected.view(np.int32))


def test_a_prompt_is_found_again_up_to_its_last_full_page(model: Model) -> None:
    batch = Batch(model, 2000, prefixes=True)
    batch.remove(read(batch, TEXT[:200]))
    prompt = TEXT[:195] + OTHER
    member = read(batch, prompt)
    assert member.cached == 3 * PAGE
    check(model, member, prompt)


def test_where_texts_part_is_kept_when_they_part_a_second_time(model: Model) -> None:
    batch = Batch(model, 2000, prefixes=True)
    batch.remove(read(batch, TEXT[:200]))
    for end, cached in ((20, 0), (30, 2), (40, 2)):
        prompt = TEXT[:150] + OTHER[end - 20 : end]
        member = read(batch, prompt)
        assert member.cached == cached * PAGE
        check(model, member, prompt)
        batch.remove(member)


def test_an_answer_is_found_again(model: Model) -> None:
    batch = Batch(model, 2000, prefixes=True)
    member = read(batch, TEXT[:100])
    for token in TEXT[100:280]:
        member.append(token)
        batch.run()
    batch.remove(member)
    prompt = TEXT[:270] + OTHER
    found = read(batch, prompt)
    assert found.cached == 4 * PAGE
    check(model, found, prompt)


def test_scopes_share_nothing(model: Model) -> None:
    batch = Batch(model, 2000, prefixes=True)
    batch.remove(read(batch, TEXT[:200], b"a"))
    assert read(batch, TEXT[:200], b"b").cached == 0


def test_a_batch_without_a_free_slot_takes_no_sequence(model: Model) -> None:
    batch = Batch(model, 4 * PAGE)
    members = [batch.add(TEXT[:5], 10) for _ in range(4)]
    assert batch.free == 0
    with pytest.raises(TamizError, match="the batch has room for 4 sequences of a model that"):
        batch.add(TEXT[:5], 10)
    batch.remove(members[0])
    batch.add(TEXT[:5], 10)


def test_slots_take_about_as_much_memory_as_pages() -> None:
    keys = State("past_key_values.0.key", (2, 0, 3), np.float32, 0, 2)
    assert slots_of([keys], 100) == 0
    assert slots_of([keys, STATE], 100) == 64
    assert (
        slots_of([keys, State("past_delta.1", (1000,), np.float32, 0, None, True, True)], 100) == 38
    )
    assert slots_of([keys, STATE], 3) == 3
    large = State("past_delta.1", (10**6,), np.float32, 0, None, True, True)
    assert slots_of([keys, large], 100) == 4


def test_copies_of_the_oldest_use_give_way_and_an_answer_keeps_its_last() -> None:
    array = np.zeros((4, 2, 3), np.float32)
    slots = Slots([STATE], [array], 4)
    own = slots.take()
    for number, name in enumerate((b"a", b"b")):
        array[own] = number + 1
        slots.save(name, own, answered=False)
    for number, name in enumerate((b"c", b"d")):
        array[own] = number + 3
        slots.save(name, own, answered=True)
    assert [slots.has(name) for name in (b"a", b"b", b"c", b"d")] == [True, True, False, True]
    slots.load(b"a", own)
    assert (array[own] == 1).all()
    other = slots.take()
    assert [slots.has(name) for name in (b"a", b"b", b"d")] == [True, False, True]
    slots.load(b"d", other)
    assert (array[other] == 4).all()
    slots.take()
    slots.take()
    assert not slots.free
    slots.give_back(own)
    assert slots.free
