"""Models whose layers keep a state of fixed size: what they forget, guess and share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.equal_runs import MODELS, build_model
from tamiz.interface.states import SPARE
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.sequence import Sequence
from tamiz.runtime.speculation.prices import Prices
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics

TEXT = np.random.default_rng(3).integers(3, 250, 200).tolist()
OTHER = np.random.default_rng(4).integers(3, 250, 40).tolist()


NAMES = ["lfm2", "qwen35", "granite4", "falcon-h1", "mamba2", "falcon-mamba", "jamba"]


@pytest.fixture(scope="module", params=NAMES)
def model(
    request: pytest.FixtureRequest, plugins: Plugins, tmp_path_factory: pytest.TempPathFactory
) -> Model:
    folder = tmp_path_factory.mktemp(request.param)
    return Model.load(build_model(folder, *MODELS[request.param], plugins), 2)


def bits(logits: np.ndarray) -> np.ndarray:
    return logits.view(np.int32).copy()


def after(model: Model, ids: list[int]) -> np.ndarray:
    """The bits of the logits after a text that a new sequence reads."""
    return bits(model.sequence().read(ids))


def test_the_layers_keep_states_of_fixed_size(model: Model) -> None:
    kept = [state for state in model.states if state.recent]
    shapes = {state.past.rstrip(".0123"): state.shape(0) for state in kept}
    assert shapes.items() <= {
        ("past_layers.recent", (2, 1, SPARE + 2, 64)),
        ("past_layers.delta", (3, 1, 2, 11200)),
        ("past_layers.mamba", (3, 1, 2, 7008)),  # of Mamba-2
        ("past_mamba", (1, 2, 7008)),  # of Granite 4, whose factors stand between nodes
        ("past_layers.mamba", (2, 1, 2, 5680)),  # of Falcon-H1
        ("past_layers.mamba", (4, 1, 2, 8208)),  # of Falcon-Mamba
        ("past_layers.recent", (4, 1, SPARE + 3, 128)),  # likewise
        ("past_layers.mamba", (3, 1, 2, 8208)),  # of Jamba
        ("past_layers.recent", (3, 1, SPARE + 3, 128)),  # likewise
    }
    assert shapes
    assert [state.shape(500) for state in kept] == [state.shape(0) for state in kept]


@pytest.mark.parametrize("forgotten", [1, 2, SPARE - 1, SPARE])
def test_the_last_tokens_are_forgotten_without_reading_others_again(
    model: Model, forgotten: int
) -> None:
    sequence, length = model.sequence(), 60
    sequence.read(TEXT[:length])
    sequence.truncate(length - forgotten)
    assert sequence.tokens == TEXT[: length - forgotten]
    text = TEXT[: length - forgotten] + OTHER
    np.testing.assert_array_equal(bits(sequence.read(OTHER)), after(model, text))


def test_a_sequence_that_cannot_forget_so_many_is_emptied(model: Model) -> None:
    sequence = model.sequence()
    sequence.read(TEXT[:60])
    sequence.truncate(60 - SPARE - 1)
    assert sequence.tokens == []
    np.testing.assert_array_equal(bits(sequence.read(OTHER)), after(model, OTHER))


def test_rows_that_were_written_over_are_not_read(model: Model) -> None:
    sequence = model.sequence()
    sequence.read(TEXT[:60])
    sequence.truncate(50)
    sequence.read(OTHER[:1])
    sequence.truncate(60 - SPARE)
    text = TEXT[: 60 - SPARE] + OTHER
    np.testing.assert_array_equal(bits(sequence.read(OTHER)), after(model, text))
    sequence.truncate(70)
    sequence.truncate(60)  # 60 + SPARE tokens were read before
    np.testing.assert_array_equal(bits(sequence.read(OTHER)), after(model, sequence.tokens))


def test_a_copy_lets_it_forget_more(model: Model) -> None:
    sequence = model.sequence()
    sequence.read(TEXT[:30])
    sequence.keep()
    sequence.read(TEXT[30:90])
    sequence.truncate(35)
    assert sequence.tokens == TEXT[:30]
    np.testing.assert_array_equal(bits(sequence.read(OTHER)), after(model, TEXT[:30] + OTHER))


def test_a_copy_of_tokens_that_were_forgotten_is_not_used(model: Model) -> None:
    sequence = model.sequence()
    sequence.read(TEXT[:30])
    sequence.keep()
    sequence.truncate(25)
    sequence.read(OTHER)
    sequence.truncate(31)
    assert sequence.tokens == []


def test_a_sequence_goes_on_from_another_by_itself(model: Model) -> None:
    one, other = model.sequence(4), model.sequence()
    one.read(TEXT[:50])
    other.take(one)
    one.read(OTHER)
    np.testing.assert_array_equal(bits(other.read(TEXT[50:60])), after(model, TEXT[:60]))


@given(st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_history_gives_the_bits_of_the_text_that_is_left(model: Model, data) -> None:
    sequence: Sequence = model.sequence()
    for _ in range(data.draw(st.integers(1, 8))):
        sequence.truncate(data.draw(st.integers(0, len(sequence.tokens))))
        if data.draw(st.booleans()):
            sequence.keep(data.draw(st.sampled_from([None, 3, 30])))
        begin = data.draw(st.integers(0, 150))
        part = TEXT[begin : begin + data.draw(st.integers(1, 40))]
        logits = sequence.read(part) if data.draw(st.booleans()) else sequence.logits(part)[-1]
    np.testing.assert_array_equal(bits(logits), after(model, sequence.tokens))


@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    prompt=st.lists(st.integers(3, 9), min_size=1, max_size=60),
)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_speculation_gives_the_same_text(
    model: Model, monkeypatch: pytest.MonkeyPatch, seed: int, temperature: float, prompt: list[int]
) -> None:
    monkeypatch.setattr(model, "stop_ids", frozenset())
    monkeypatch.setattr(model, "prices", Prices())
    model.prices.add(1, 1e9)  # every run costs what a step costs
    sampling = Sampling(temperature=temperature, seed=seed)
    texts = [
        list(model.generate(prompt, sampling, 60, speculation=Speculation(mode)))
        for mode in ("off", "ngram", "auto")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_long_guesses_are_verified_and_fail(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "stop_ids", frozenset())
    monkeypatch.setattr(model, "prices", Prices())
    model.prices.add(1, 1e9)
    used, prompt = SpeculationStatistics(), TEXT[:40] * 3
    plain = list(model.generate(prompt, Sampling(), 80, speculation=Speculation("off")))
    guessed = model.generate(
        prompt, Sampling(), 80, speculation=Speculation("ngram"), statistics=used
    )
    assert list(guessed) == plain
    assert used.drafted > max(2, 2 * used.accepted)


@given(st.data())
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_drafts_of_a_batch_that_fail_leave_the_bits_of_each_sequence(model: Model, data) -> None:
    batch = Batch(model, 2000, prefixes=True)
    members = [batch.add(TEXT[:length], 300) for length in (3, 62, 70)]
    for _ in range(data.draw(st.integers(3, 8))):
        for member in members:
            if not member.unread and member.rows is not None:
                member.accept(data.draw(st.integers(0, len(member.rows) - 1)))
                member.append(data.draw(st.sampled_from(OTHER)))
                member.propose(OTHER[: data.draw(st.integers(0, 40))])
                assert len(member.drafts) <= SPARE
        for member in batch.run():
            assert member.rows is not None
            expected = model.sequence().logits(member.tokens)[-len(member.rows) :]
            np.testing.assert_array_equal(bits(member.rows), bits(expected))


def test_prefixes_and_drafts_end_at_the_borders_of_pages(model: Model) -> None:
    for border in (61, 63, 64, 65):
        batch = Batch(model, 1000, prefixes=True)
        member = batch.add(TEXT[:border], 200)
        while member.rows is None:
            batch.run()
        member.append(TEXT[border])
        member.propose(OTHER[:9])
        batch.run()
        member.accept(0)
        for token in TEXT[border + 1 : border + 12]:
            member.append(token)
            batch.run()
        batch.remove(member)
        again = batch.add(TEXT[: border + 12], 200)
        while again.logits is None:
            batch.run()
        assert again.cached == 64
        np.testing.assert_array_equal(bits(again.logits), after(model, TEXT[: border + 12]))
