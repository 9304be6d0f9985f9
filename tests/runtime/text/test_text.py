import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.files.errors import TamizError
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.stream import StopStrings, generate_text, until_stop

words = st.text(alphabet="abé€", max_size=12)
stops = st.sampled_from(["a", "b€", "<|a|>", "a<|a|>b", "é<|a|><|a|>"])


@given(st.lists(words), st.lists(words.filter(bool), max_size=3))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(pieces, stop) -> None:
    text = "".join(pieces)
    ends = [text.find(string) for string in stop if string in text]
    found = until_stop([(piece, "") for piece in pieces], StopStrings(stop))
    assert "".join(found) == text[: min(ends, default=len(text))]


@given(st.lists(st.tuples(words, st.sampled_from(["", "<|a|>"]))), stops)
def test_a_stop_string_may_hold_a_control_token_that_is_not_shown(pieces, stop) -> None:
    shown = "".join(text for text, _ in pieces)
    whole = "".join(text + control for text, control in pieces)
    found = "".join(until_stop(pieces, StopStrings([stop], ["<|a|>"])))
    if "<" in stop:
        assert found == whole.partition(stop)[0].replace("<|a|>", "")
    else:
        assert found == shown.partition(stop)[0]


def test_text_is_passed_on_as_soon_as_no_stop_string_can_begin_in_it() -> None:
    texts = ["one", " S", "um", " ST", "OP", " two"]
    pieces = until_stop([(text, "") for text in texts], StopStrings(["STOP"]))
    assert list(pieces) == ["one", " ", "Sum", " "]


def test_generated_text_is_the_text_of_the_tokens(model, tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(model, "stop_ids", frozenset())
    prompt, sampling = tokenizer.encode("hello"), Sampling(temperature=1.0, seed=2)
    text = "".join(generate_text(model, tokenizer, prompt, sampling, 40))
    assert text == tokenizer.decode(model.generate(prompt, sampling, 40))
    stop = text[len(text) // 2 :][:2]
    stopped = "".join(generate_text(model, tokenizer, prompt, sampling, 40, [stop]))
    assert stopped == text[: text.index(stop)]


def test_an_empty_stop_string_is_refused(model, tokenizer) -> None:
    with pytest.raises(TamizError, match="a stop string is empty"):
        list(generate_text(model, tokenizer, [5], Sampling(), 1, [""]))
