import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text import generate_text, until_stop
from tamiz.runtime.tokenizer import Tokenizer

words = st.text(alphabet="abé€", max_size=12)


@pytest.mark.parametrize("text", ["", "hello", " two  spaces\n", "naïve 5€ 漢字 🙂", "a\u0301"])
def test_decoding_gives_the_encoded_text_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merges_are_applied(tokenizer):
    assert len(tokenizer.encode("hello")) == 1


def test_special_tokens_in_the_text_are_recognised_and_hidden(tokenizer):
    ids = tokenizer.encode("<|im_start|>user hello<|im_end|>")
    assert ids[0] == 0
    assert ids[-1] == 1
    assert tokenizer.decode(ids) == "user hello"
    assert tokenizer.decode(ids, special=True) == "<|im_start|>user hello<|im_end|>"


def test_a_stream_never_shows_half_a_character(tokenizer):
    text = "é€🙂"
    stream = tokenizer.stream()
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    assert len(pieces) == len(text.encode())
    assert [piece for piece in pieces if piece] == list(text)
    assert stream.end() == ""


def test_an_unfinished_character_ends_as_a_replacement(tokenizer):
    first, *_ = tokenizer.encode("€")
    stream = tokenizer.stream()
    assert stream.push(first) == ""
    assert stream.end() == "\ufffd"


def test_a_token_outside_of_the_vocabulary_is_refused(tokenizer):
    with pytest.raises(TamizError, match="token 999 is None"):
        tokenizer.decode([999])


@pytest.mark.parametrize("text", ["a\udcff", "a\0b", "a\0"])
def test_text_that_would_be_cut_or_cannot_be_utf8_is_refused(tokenizer, text):
    with pytest.raises(TamizError, match=r"at character 1, expected UTF-8 without NUL"):
        tokenizer.encode(text)


def test_bos_is_added_where_the_settings_say_so(tiny_dense):
    settings = json.loads((tiny_dense / "tokenizer_config.json").read_text())
    settings |= {"add_bos_token": True, "bos_token": "<|im_start|>"}
    (tiny_dense / "tokenizer_config.json").write_text(json.dumps(settings))
    bundle = _repacked(tiny_dense)
    assert Tokenizer(bundle).encode("hello")[0] == 0
    assert Tokenizer(bundle).encode("hello", bos=False)[0] != 0
    settings["bos_token"] = {"content": "<|im_start|>", "special": True}
    (tiny_dense / "tokenizer_config.json").write_text(json.dumps(settings))
    assert Tokenizer(_repacked(tiny_dense)).encode("hello")[0] == 0
    settings["bos_token"] = "<s>"
    (tiny_dense / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TamizError, match=r"bos_token is '<s>', which tokenizer.json lacks"):
        Tokenizer(_repacked(tiny_dense))


def test_characters_are_composed_where_the_tokenizer_says_so(tiny_dense):
    composed, parts = "caf\u00e9", "cafe\u0301"
    tokenizer = Tokenizer(_repacked(tiny_dense))
    assert tokenizer.encode(parts) != tokenizer.encode(composed)
    path = tiny_dense / "tokenizer.json"
    description = json.loads(path.read_text("utf-8"))
    for normalizer in ({"type": "NFC"}, {"type": "Sequence", "normalizers": [{"type": "NFC"}]}):
        path.write_text(json.dumps({**description, "normalizer": normalizer}), "utf-8")
        tokenizer = Tokenizer(_repacked(tiny_dense))
        assert tokenizer.encode(parts) == tokenizer.encode(composed)


def test_sentence_piece_tokens_are_joined(tiny_dense):
    description = {
        "model": {"vocab": {"<s>": 0, "▁Hel": 1, "lo": 2, "▁w": 3, "<0xE2>": 4, "<0x82>": 5}},
        "added_tokens": [{"id": 0, "content": "<s>", "special": True}],
        "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Strip"}]},
    }
    description["model"]["vocab"]["<0xAC>"] = 6
    (tiny_dense / "tokenizer.json").write_text(json.dumps(description))
    tokenizer = Tokenizer(_repacked(tiny_dense))
    assert tokenizer.decode([0, 1, 2, 3, 4, 5, 6]) == "Hello w€"


def test_a_malformed_tokenizer_json_is_refused(tiny_dense):
    description = {"model": {"vocab": {}}, "added_tokens": [{"id": 0, "content": 5}]}
    (tiny_dense / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(TamizError, match=r"tokenizer.json: expected model.vocab"):
        Tokenizer(_repacked(tiny_dense))


def test_a_bundle_without_tokenizer_says_so(tiny_dense):
    (tiny_dense / "tokenizer.onnx").unlink()
    with pytest.raises(TamizError, match=r"has no tokenizer.onnx"):
        Tokenizer(_repacked(tiny_dense))


@given(st.lists(words), st.lists(words.filter(bool), max_size=3))
def test_text_ends_before_the_first_stop_string_however_it_is_cut(pieces, stop):
    text = "".join(pieces)
    ends = [text.find(string) for string in stop if string in text]
    assert "".join(until_stop(iter(pieces), stop)) == text[: min(ends, default=len(text))]


def test_text_is_passed_on_as_soon_as_no_stop_string_can_begin_in_it():
    pieces = until_stop(iter(["one", " S", "um", " ST", "OP", " two"]), ["STOP"])
    assert list(pieces) == ["one", " ", "Sum", " "]


def test_generated_text_is_the_text_of_the_tokens(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model, "stop_ids", frozenset())
    prompt, sampling = tokenizer.encode("hello"), Sampling(temperature=1.0, seed=2)
    text = "".join(generate_text(model, tokenizer, prompt, sampling, 40))
    assert text == tokenizer.decode(model.generate(prompt, sampling, 40))
    stop = text[len(text) // 2 :][:2]
    stopped = "".join(generate_text(model, tokenizer, prompt, sampling, 40, [stop]))
    assert stopped == text[: text.index(stop)]


def test_an_empty_stop_string_is_refused(model, tokenizer):
    with pytest.raises(TamizError, match="a stop string is empty"):
        list(generate_text(model, tokenizer, [5], Sampling(), 1, [""]))


def _repacked(folder):
    write_manifest(folder, "dense", Source("changed by a test"))
    return Bundle.open(folder)
