"""What a graph keeps of a sequence, as its inputs tell."""

from dataclasses import dataclass

import numpy as np
import pytest

from tamiz.interface.states import PAGE, State, present_of, stacked


@dataclass
class Input:
    """What a session tells of one."""

    name: str
    shape: list[int | str]
    type: str = "tensor(float)"


KEYS = Input("past_key_values.3.key", ["batch", 2, "past", 16])
EVENT = Input("past_event.3.attn_q", ["batch", 7], "tensor(int64)")
RECENT = Input("past_layers.recent", [4, "batch", 18, 64])
SKETCH = Input("past_layers.sketch", [30, "batch", 2, "past", 3], "tensor(uint8)")


@pytest.mark.parametrize(
    ("value", "present", "shape", "kind", "axis"),
    [
        (KEYS, "present.3.key", (5, 2, 9, 16), np.float32, 2),
        (EVENT, "present_event.3.attn_q", (5, 7), np.int64, None),
        (RECENT, "present_layers.recent", (4, 5, 18, 64), np.float32, None),
        (SKETCH, "present_layers.sketch", (30, 5, 2, 9, 3), np.uint8, 3),
    ],
)
def test_states(value, present, shape, kind, axis) -> None:
    state = State.of(value)
    assert (state.past, state.present, state.axis) == (value.name, present, axis)
    assert state.shape(9, batch=5) == shape
    zeros = state.zeros(batch=5)
    assert zeros.dtype == kind
    assert not zeros.any()
    assert zeros.shape == tuple(0 if size == 9 else size for size in shape)


def test_the_first_tokens() -> None:
    state = State.of(SKETCH)
    array = np.arange(np.prod(state.shape(9))).reshape(state.shape(9))
    np.testing.assert_array_equal(state.first(array, 4), array[:, :, :, :4])
    fixed = np.ones((1, 7))
    assert State.of(EVENT).first(fixed, 4) is fixed


def test_rows_of_the_last_tokens_are_known_by_their_name() -> None:
    alone = Input("past_recent.7", ["batch", 18, 64])
    found = [State.of(value) for value in (RECENT, alone, EVENT, SKETCH)]
    assert [state.recent for state in found if state is not None] == [True, True, False, False]


@pytest.mark.parametrize(
    ("value", "shape", "of_page"),
    [
        (KEYS, (1, 2, 3 * PAGE, 16), (1, 2, PAGE, 16)),
        (SKETCH, (30, 1, 2, 3 * PAGE, 3), (30, 1, 2, PAGE, 3)),
        (RECENT, (4, 3, 18, 64), (4, 1, 18, 64)),
    ],
)
def test_pages(value, shape, of_page) -> None:
    state = State.of(value)
    assert state is not None
    assert state.paged(3) == shape
    array = np.zeros(shape)
    for page in range(3):
        part = state.page(array, page)
        assert part.shape == of_page
        assert not part.any()
        part[:] = 1
    assert array.all()


@pytest.mark.parametrize(
    "value",
    [
        Input("past_a.0", ["batch", 2], "tensor(bool)"),
        Input("past_a.0", ["batch", "heads", "past", 16]),
        Input("past_layers.a", [30, "batch"]),
    ],
)
def test_no_states(value) -> None:
    assert State.of(value) is None


def test_names() -> None:
    assert stacked("past_key_values.3.key") == "past_layers.key_values"
    assert stacked("past_event.3.attn_q") == "past_layers.event"
    assert present_of(stacked("past_sketch.0")) == "present_layers.sketch"
