"""Pages that were read once serve later sequences with the same beginning, with the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kit.equal_runs import MODELS, build_model
from tamiz.interface.states import PAGE
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.batching.pages import Pages
from tamiz.runtime.batching.prefix_cache import PrefixCache
from tamiz.runtime.model import Model

RANDOM = np.random.default_rng(1)
TEXT = RANDOM.integers(2, 250, 300).tolist()


def read(batch: Batch, prompt: list[int], scope: bytes = b"") -> Member:
    """Adds a sequence and reads its prompt."""
    member = batch.add(prompt, len(prompt) + 10, reserve=False, scope=scope)
    while member.logits is None:
        batch.run()
    return member


@pytest.fixture(scope="module")
def model(plugins: Plugins, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.load(build_model(tmp_path_factory.mktemp("prefix"), *MODELS["q4_1"], plugins), 2)


@pytest.mark.parametrize(
    "name",
    [
        "q4_1",
        "q8_0 kv-int8",
        "q4_1 window",
        "gemma2 kv-int8",
        "lfm2",
        "deepseek",
        "gemma3n",
        "gemma4",
        "gemma4 moe",
    ],
)
def test_a_found_beginning_gives_the_bits_of_reading_it_again(
    name: str, plugins: Plugins, tmp_path: Path
) -> None:
    model = Model.load(build_model(tmp_path, *MODELS[name], plugins), 2)
    batch = Batch(model, 1000, prefixes=True)
    batch.remove(read(batch, TEXT[:200]))
    prompt = TEXT[:150] + TEXT[160:]
    member = read(batch, prompt)
    assert member.cached == 2 * PAGE
    assert member.logits is not None
    expected = model.sequence().read(prompt)
    np.testing.assert_array_equal(member.logits.view(np.int32), expected.view(np.int32))


def test_sequences_that_run_share_pages_too(model: Model) -> None:
    batch = Batch(model, 1000, prefixes=True)
    first = read(batch, TEXT[:130])
    first.append(5)
    batch.run()
    second = read(batch, TEXT[:130])
    assert second.cached == 2 * PAGE
    assert second.pages[:2] == first.pages[:2]
    assert second.pages[2] != first.pages[2]


def test_the_last_token_of_a_prompt_is_read_in_any_case(model: Model) -> None:
    batch = Batch(model, 1000, prefixes=True)
    batch.remove(read(batch, TEXT[: 2 * PAGE]))
    assert read(batch, TEXT[: 2 * PAGE]).cached == PAGE


def test_nothing_is_found_in_another_scope(model: Model) -> None:
    batch = Batch(model, 1000, prefixes=True)
    batch.remove(read(batch, TEXT, b"one"))
    assert read(batch, TEXT, b"two").cached == 0
    assert read(batch, TEXT, b"one").cached == 4 * PAGE


def test_nothing_is_kept_unless_requested(model: Model) -> None:
    batch = Batch(model, 1000)
    batch.remove(read(batch, TEXT))
    assert read(batch, TEXT).cached == 0


def test_wrong_drafts_are_not_kept(model: Model) -> None:
    batch = Batch(model, 1000, prefixes=True)
    member = read(batch, TEXT[: PAGE - 2])
    member.append(TEXT[PAGE - 2])
    member.propose([7, 7, 7])
    batch.run()
    member.accept(0)
    assert member.tokens == TEXT[: PAGE - 1]
    for token in TEXT[PAGE - 1 : PAGE + 1]:
        member.append(token)
        batch.run()
    batch.remove(member)
    found = read(batch, TEXT[: PAGE + 2])
    assert found.cached == PAGE
    assert found.logits is not None
    expected = model.sequence().read(TEXT[: PAGE + 2])
    np.testing.assert_array_equal(found.logits.view(np.int32), expected.view(np.int32))


def test_kept_pages_make_room_for_sequences(model: Model) -> None:
    batch = Batch(model, 6 * PAGE, prefixes=True)
    batch.remove(read(batch, TEXT))
    assert batch.free == batch.tokens
    other = RANDOM.integers(2, 250, 5 * PAGE).tolist()
    batch.remove(read(batch, other))
    assert batch.free == batch.tokens
    assert read(batch, TEXT).cached < 4 * PAGE


def test_what_grows_says_how_many_pages_it_lacks(model: Model) -> None:
    batch = Batch(model, 2 * PAGE)
    members = [read(batch, TEXT[:PAGE]) for _ in range(2)]
    assert batch.lacking <= 0
    for member in members:
        member.append(5)
    assert batch.lacking == 2 * PAGE
    batch.remove(members[1])
    assert batch.lacking <= 0
    assert batch.run() == members[:1]


def test_pages_of_the_oldest_use_go_first_the_ends_of_texts_before_their_beginnings() -> None:
    pages = Pages(6)
    cache = PrefixCache(pages)
    one, two = TEXT[: 2 * PAGE], [1] * (2 * PAGE)
    for text in (one, two):
        taken = pages.take(2)
        cache.keep(text, taken, b"")
        pages.give_back(taken)
    pages.give_back(cache.find(one, b""))
    for left in ([2, 1], [2, 0], [1, 0], [0, 0]):
        cache.evict(1)
        found = [cache.find(text, b"") for text in (one, two)]
        assert [len(f) for f in found] == left
        for shared in found[::-1]:  # `one` stays the last that was used
            pages.give_back(shared)
            cache.find([], b"")
        pages.give_back(cache.find(one, b""))
    assert pages.free == 6
    assert len(cache) == 0


def test_pages_that_a_sequence_reads_are_not_evicted() -> None:
    pages = Pages(3)
    cache = PrefixCache(pages)
    taken = pages.take(2)
    cache.keep(TEXT[: 2 * PAGE], taken, b"")
    assert cache.unused == 0
    cache.evict(5)
    assert len(cache) == 2
    pages.give_back(taken)
    assert cache.unused == 2
