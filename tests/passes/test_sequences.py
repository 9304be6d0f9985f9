"""The graph takes tokens of several sequences; who does not know it sees no change."""

import pytest

from kit.decoders import CASES, attentions, decoder, largest_error, run_passes, session
from tamiz.api.attention import add_sketch
from tamiz.api.ports import input_of
from tamiz_passes.sequences import TakeSequences


def test_every_attention_gets_the_input() -> None:
    model = decoder()
    run_passes(model)
    assert TakeSequences()(model).modified
    (value,) = [v for v in model.graph.inputs if v.name == "sequences"]
    assert [input_of(node, "sequences") for node in attentions(model)] == [value, value]
    assert value.const_value is not None
    assert value.const_value.shape == (0, 2)


@pytest.mark.parametrize("case", CASES)
def test_a_caller_that_does_not_give_it_gets_the_same_bits(case: str) -> None:
    before, after = decoder(), decoder()
    for model in (before, after):
        run_passes(model)
    TakeSequences()(after)
    assert largest_error(session(before), session(after), case) == 0.0


def test_attention_that_sketches_keys_gets_it_as_well() -> None:
    model = decoder()
    run_passes(model)
    add_sketch(model, attentions(model)[1], 1)
    assert TakeSequences()(model).modified
    assert all(input_of(node, "sequences") is not None for node in attentions(model))


def test_nothing_changes_where_the_graph_counts_positions() -> None:
    model = decoder()
    run_passes(model)
    positions = next(v for v in model.graph.inputs if v.name == "position_ids")
    positions.name = "other"
    assert not TakeSequences()(model).modified


def test_nothing_changes_before_attention_is_recognised() -> None:
    assert not TakeSequences()(decoder()).modified
