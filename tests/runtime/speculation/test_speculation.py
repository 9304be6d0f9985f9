from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.sequence import Sequence
from tamiz.runtime.speculation.prices import CHOICES, Prices
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.stream import StopStrings, until_stop

#: One of each sampler, and all.
SAMPLERS = [
    Sampling(min_p=0.05),
    Sampling(repeat_penalty=1.3),
    Sampling(frequency_penalty=0.4, repeat_last_n=-1),
    Sampling(presence_penalty=0.7, repeat_last_n=8),
    Sampling(logit_bias={5: 3.0, 9: -float("inf")}),
    Sampling(ignore_eos=True),
    Sampling(
        top_k=50,
        top_p=0.95,
        min_p=0.01,
        repeat_penalty=1.1,
        frequency_penalty=0.1,
        presence_penalty=0.1,
        logit_bias={33: 2.0},
        ignore_eos=True,
    ),
]
#: Copies, so that guesses hold and fail.
PROMPT = [5, 90, 33, 200, 17, 60, 33, 200, 5, 90, 33, 200, 18, 60, 5]


def built(folder: Path, dense: Path, plugins: Plugins, **techniques: dict[str, Any]) -> Model:
    flags = {name.replace("_", "-"): fields for name, fields in techniques.items()}
    chosen = choose(plugins.techniques(), flags)
    build(dense, folder / "built", chosen, plugins, Options(max_dppl=None))
    return Model.load(folder / "built", threads=1)


@pytest.fixture(scope="module")
def packed(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Model:
    """A bundle of which a run gives the logits of steps."""
    return built(tmp_path_factory.mktemp("packed"), dense_dir, plugins)


@pytest.fixture(scope="module")
def stepping(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Model:
    """A bundle with state of fixed size, whose technique acts on single steps."""
    return built(tmp_path_factory.mktemp("stepping"), dense_dir, plugins, event_attention={})


@pytest.fixture
def eager(packed: Model, monkeypatch: pytest.MonkeyPatch) -> Model:
    """A model without stop tokens that takes every run for a step's price."""
    monkeypatch.setattr(packed, "stop_ids", frozenset())
    monkeypatch.setattr(packed, "prices", Prices())
    packed.prices.add(1, 1e9)
    return packed


def both(
    model: Model, sampling: Sampling, count: int | None = 60, prompt: list[int] = PROMPT
) -> tuple[list[int], list[int], SpeculationStatistics]:
    """Tokens with and without speculation."""
    used = SpeculationStatistics()
    plain = list(model.generate(prompt, sampling, count, speculation=Speculation("off")))
    ngram = Speculation("ngram")
    guessed = model.generate(prompt, sampling, count, speculation=ngram, statistics=used)
    return plain, list(guessed), used


def test_a_greedy_text_is_the_same_in_fewer_runs(eager: Model) -> None:
    plain, guessed, used = both(eager, Sampling())
    assert guessed == plain
    assert used.runs < len(plain) - 1
    assert 0 < used.accepted <= used.drafted
    assert len(plain) - 1 <= used.runs + used.accepted


@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    prompt=st.lists(st.integers(2, 9), min_size=1, max_size=40),
    count=st.integers(1, 50),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_seed_gives_the_same_text(
    eager: Model, seed: int, temperature: float, prompt: list[int], count: int
) -> None:
    sampling = Sampling(temperature=temperature, top_k=40, top_p=0.9, seed=seed)
    plain, guessed, _ = both(eager, sampling, count, prompt)
    assert guessed == plain


@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    sampling=st.sampled_from(SAMPLERS),
    prompt=st.lists(st.integers(2, 9), min_size=1, max_size=40),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_sampler_gives_the_same_text(
    eager: Model, seed: int, temperature: float, sampling: Sampling, prompt: list[int]
) -> None:
    sampling = replace(sampling, temperature=temperature, seed=seed)
    plain, guessed, _ = both(eager, sampling, 40, prompt)
    assert guessed == plain


def test_the_limit_ends_the_text_at_the_same_token(eager: Model) -> None:
    plain, guessed, _ = both(eager, Sampling(), None)
    assert guessed == plain
    assert len(plain) == eager.limit - len(PROMPT)


def test_a_stop_token_inside_of_a_verified_run_ends_the_text(
    eager: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, _, _ = both(eager, Sampling())
    stop = plain[-1]
    monkeypatch.setattr(eager, "stop_ids", frozenset([stop]))
    sequence = eager.sequence()
    found = list(eager.generate(PROMPT, Sampling(), 60, sequence, Speculation("ngram")))
    assert found == plain[: plain.index(stop)]
    assert sequence.tokens == [*PROMPT, *found]


def test_a_sequence_continues_after_a_text_that_was_broken_off(eager: Model) -> None:
    sequence = eager.sequence()
    tokens = eager.generate(PROMPT, Sampling(), 60, sequence, Speculation("ngram"))

    def pieces() -> Iterator[tuple[str, str]]:
        for token in tokens:
            yield f"{token} ", ""

    plain, _, _ = both(eager, Sampling())
    stop = f"{plain[20]} {plain[21]}"
    text = "".join(until_stop(pieces(), StopStrings([stop])))
    tokens.close()  # type: ignore[attr-defined]
    read = sequence.tokens[len(PROMPT) :]
    assert read == plain[: len(read)]
    assert text == "".join(f"{token} " for token in plain).partition(stop)[0]
    longer = [*PROMPT, *read, 7, 8, 9]
    expected = list(eager.generate(longer, Sampling(), 10, speculation=Speculation("off")))
    assert list(eager.generate(longer, Sampling(), 10, sequence)) == expected


def test_prices_are_learned_while_tokens_are_generated(
    eager: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager, "prices", Prices())
    both(eager, Sampling())
    assert eager.prices.step is not None
    assert 0 < eager.prices.step < 10
    assert eager.prices.of(CHOICES[-1]) >= 1.0


def test_auto_never_changes_the_text(dense: Model, packed: Model, stepping: Model) -> None:
    without = Model.load(stepping.bundle.path, 1, without=["event-attention"])
    modes = ((dense, "off"), (packed, "ngram"), (stepping, "off"), (without, "self"))
    for model, mode in modes:
        used = SpeculationStatistics()
        list(model.generate(PROMPT, Sampling(), 3, statistics=used))
        assert used.mode == mode


def test_modes_that_a_bundle_does_not_allow_are_refused(
    dense: Model, packed: Model, stepping: Model
) -> None:
    with pytest.raises(TamizError, match=r"equal_runs is false.*try --speculate=off"):
        dense.generate(PROMPT, Sampling(), 3, speculation=Speculation("ngram"))
    with pytest.raises(TamizError, match=r"event-attention acts on single.*--without event-att"):
        stepping.generate(PROMPT, Sampling(), 3, speculation=Speculation("ngram"))
    with pytest.raises(TamizError, match="no technique of the bundle can be switched off"):
        packed.generate(PROMPT, Sampling(), 3, speculation=Speculation("self"))


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(TamizError, match="speculate is 'often', expected one of auto, off"):
        Speculation("often")


def test_techniques_of_single_steps_are_named_in_the_manifest(
    packed: Model, stepping: Model
) -> None:
    for model, names in ((packed, []), (stepping, ["event-attention"])):
        manifest = Bundle.open(model.bundle.path).manifest
        assert manifest.equal_runs
        assert manifest.step_techniques == names


@pytest.fixture(scope="module")
def sketched(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory, plugins: Plugins) -> Model:
    """A bundle whose steps attend to few keys, of which there are sketches."""
    few = {"keep": 4, "recent": 1, "density": 1.0}
    folder = tmp_path_factory.mktemp("sketched")
    return built(folder, dense_dir, plugins, state_pack=few, kv_int8={})


@pytest.mark.parametrize("kind", ["sketched", "stepping"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.7, seed=3)])
def test_a_model_that_guesses_for_itself_gives_the_exact_text(
    kind: str,
    sampling: Sampling,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model: Model = request.getfixturevalue(kind)
    monkeypatch.setattr(model, "stop_ids", frozenset())
    monkeypatch.setattr(model, "prices", Prices())
    model.prices.add(1, 1e9)  # so that guesses seem to cost nothing
    exact = Model.load(model.bundle.path, 1, without=model.switches)
    monkeypatch.setattr(exact, "stop_ids", frozenset())
    used, sequence = SpeculationStatistics(), model.sequence()
    found = list(model.generate(PROMPT, sampling, 100, sequence, Speculation("self"), used))
    assert found == list(exact.generate(PROMPT, sampling, 100, speculation=Speculation("off")))
    assert 0 < used.self_accepted <= used.self_drafted <= used.drafted
    assert used.runs < 99
    assert sequence.tokens == [*PROMPT, *found[:-1]]


@pytest.mark.parametrize("kind", ["stepping", "packed", "dense"])
def test_a_sequence_returns_to_where_its_state_was_kept(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(kind)

    def steps(sequence: Sequence, tokens: list[int]) -> np.ndarray:
        return np.stack([sequence.step(token).copy() for token in tokens])

    sequence = model.sequence()
    sequence.read(PROMPT)
    steps(sequence, [7, 8, 9])
    sequence.keep()
    expected = steps(sequence, [10, 11, 12])
    sequence.truncate(len(PROMPT) + 4)
    kept = len(PROMPT) + (3 if kind == "stepping" else 4)
    assert len(sequence.tokens) == kept  # fixed state knows the place where it was kept only
    sequence.truncate(len(PROMPT) + 3)
    np.testing.assert_array_equal(steps(sequence, [10, 11, 12]), expected)
    sequence.truncate(len(PROMPT) + 2)
    assert len(sequence.tokens) == (0 if kind == "stepping" else len(PROMPT) + 2)
