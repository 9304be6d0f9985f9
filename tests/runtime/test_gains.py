"""``--without auto``: the decision, and that measuring leaves a sequence as it was."""

from collections.abc import Callable, Collection, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit.composed import needs
from kit.decoding import IDS, PROMPT, built, steps
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime import gains
from tamiz.runtime.gains import Gain, Measure, ratios
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.sequence import Sequence
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics

WINDOW = {"tokens": 16, "sinks": 2}
FILTER = {"keep": 8, "recent": 8, "density": 1.0}
EVENTS = {"theta": 0.5, "least_keys": 0, "age_max": 4, "gap_tol": 10.0}
TECHNIQUES = [{"state_pack": FILTER}, {"event_attention": EVENTS}, {"window_attention": WINDOW}]


@pytest.fixture
def make(plugins: Plugins, tiny_dense: Path) -> Callable[..., Path]:
    """Builds the tiny model with some techniques."""

    def make(name: str, **techniques: Any) -> Path:
        needs(*(key.replace("_", "-") for key in techniques))
        return built(plugins, tiny_dense, name, **techniques)

    return make


def finds(**found: float) -> tuple[Measure, list[int]]:
    """A measurement that finds these ratios, and the contexts at which it was called."""
    contexts: list[int] = []

    def measure(
        sequence: Sequence, token: int, fixed: Collection[str], names: Collection[str]
    ) -> Mapping[str, list[float]]:
        contexts.append(len(sequence.tokens))
        # Steps are taken, so that the state is what a measurement leaves.
        ratios(sequence, token, fixed, names, clock=count(1).__next__)
        return {name: [found[name.replace("-", "_")]] * 7 for name in names}

    return measure, contexts


def answer(model: Model, sequence: Sequence | None = None, ids: list[int] = IDS[:PROMPT]) -> Any:
    """Greedy tokens after a prompt; by steps."""
    return list(model.generate(ids, Sampling(), 12, sequence, Speculation("off")))


@pytest.mark.parametrize(
    ("found", "slower"),
    [
        ([1.1] * 7, True),
        ([0.9] * 7, False),
        ([1.0] * 7, False),
        ([1.02, 1.01, 1.03, 1.02, 1.02, 1.01, 1.03], True),
        ([1.02, 0.9, 1.2, 0.95, 1.02, 1.1, 1.03], False),
        ([1.1, 1.1, 1.1, 0.1, 1.1, 9.0, 1.1], True),  # two disturbed rounds change nothing
    ],
)
def test_slower_is_more_than_the_spread(found: list[float], slower: bool) -> None:
    assert Gain.of(found, 8).slower is slower


def test_ratio_and_spread_are_median_and_half_the_quartiles_distance() -> None:
    assert Gain.of([1.0, 1.6, 1.1, 1.5, 1.2, 1.4, 1.3], 8) == Gain(1.3, 0.2, 8)


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: next(iter(technique)))
def test_measuring_leaves_no_trace(make: Callable[..., Path], technique: dict[str, Any]) -> None:
    model = Model.load(make("built", **technique), threads=1)
    expected = steps(model)
    sequence = model.sequence(PROMPT)
    sequence.read(IDS[:PROMPT])
    found = ratios(sequence, IDS[PROMPT], (), model.switches)
    assert {name: len(each) for name, each in found.items()} == {model.switches[0]: gains.ROUNDS}
    sequence.switch_off(())
    rows = [sequence.step(token).copy() for token in IDS[PROMPT:]]
    np.testing.assert_array_equal(rows, expected[1:])


def test_times_are_compared_round_by_round(make: Callable[..., Path]) -> None:
    model = Model.load(make("windows", window_attention=WINDOW), threads=1)
    sequence = model.sequence()
    sequence.read(IDS[:PROMPT])
    off = sequence._switches["window-attention"]
    seconds = 0.0

    def clock() -> float:
        nonlocal seconds
        seconds += 2.0 if off[0] else 3.0
        return seconds

    assert ratios(sequence, 5, (), ["window-attention"], clock) == {
        "window-attention": [1.5] * gains.ROUNDS
    }


@pytest.mark.parametrize("technique", TECHNIQUES, ids=lambda technique: next(iter(technique)))
@pytest.mark.parametrize("length", [PROMPT, 1])
def test_what_is_slower_is_switched_off_as_by_name(
    make: Callable[..., Path], technique: dict[str, Any], length: int
) -> None:
    path, (field,) = make("built", **technique), technique
    name = field.replace("_", "-")
    measure, contexts = finds(**{field: 1.2})
    model = Model.load(path, 1, ["auto"], measure)
    named = Model.load(path, 1, [name])
    sequences = [each.sequence(160) for each in (model, named)]
    texts = [
        answer(each, sequence, IDS[:length])
        for each, sequence in zip((model, named), sequences, strict=True)
    ]
    assert texts[0] == texts[1]
    assert contexts == [length]
    rows = [[s.step(token).copy() for token in IDS[PROMPT:]] for s in sequences]
    np.testing.assert_array_equal(rows[0], rows[1])
    assert model.gains is not None
    assert model.gains.switched_off == {name: Gain(1.2, 0.0, length)}


def test_what_gains_stays_on(make: Callable[..., Path]) -> None:
    path = make("built", state_pack=FILTER, window_attention=WINDOW)
    measure, _ = finds(state_pack=0.8, window_attention=1.3)
    model = Model.load(path, 1, ["auto"], measure)
    assert answer(model) == answer(Model.load(path, 1, ["window-attention"]))
    assert model.gains is not None
    assert model.gains.off == {"window-attention"}
    assert model.without == frozenset()


def test_names_beside_auto_are_off_and_not_measured(make: Callable[..., Path]) -> None:
    path = make("built", state_pack=FILTER, window_attention=WINDOW)
    measure, _ = finds(state_pack=0.8)
    model = Model.load(path, 1, ["auto", "window-attention"], measure)
    assert answer(model) == answer(Model.load(path, 1, ["window-attention"]))
    assert model.gains is not None
    assert set(model.gains.measured) == {"state-pack"}


def test_twice_the_context_is_measured_again(make: Callable[..., Path]) -> None:
    measure, contexts = finds(window_attention=1.2)
    model = Model.load(make("windows", window_attention=WINDOW), 1, ["auto"], measure)
    for length in (20, 39, 40, 50, 80):
        answer(model, ids=IDS[:length])
    assert contexts == [20, 40, 80]


def test_a_full_sequence_is_not_measured(make: Callable[..., Path]) -> None:
    measure, contexts = finds(window_attention=1.2)
    model = Model.load(make("windows", window_attention=WINDOW), 1, ["auto"], measure)
    ids = (IDS * 9)[: model.limit - 1]
    assert len(list(model.generate(ids, Sampling(), 1))) <= 1
    assert contexts == []


def test_a_bundle_without_switches_is_not_measured(make: Callable[..., Path]) -> None:
    measure, contexts = finds()
    plain = make("plain")
    model = Model.load(plain, 1, ["auto"], measure)
    assert answer(model) == answer(Model.load(plain, 1))
    assert contexts == []


def test_the_measurement_decides_how_guesses_are_made(make: Callable[..., Path]) -> None:
    path = make("events", event_attention=EVENTS)
    measure, _ = finds(event_attention=1.2)
    model, used = Model.load(path, 1, ["auto"], measure), SpeculationStatistics()
    tokens = list(model.generate(IDS[:PROMPT], Sampling(), 12, statistics=used))
    assert used.mode == "self"
    assert tokens == answer(Model.load(path, 1, ["event-attention"]))
    with pytest.raises(TamizError, match="exclude each other"):
        model.generate(IDS[:PROMPT], Sampling(), 1, None, Speculation("self"))
