"""Streams of a vocabulary of SentencePiece's kind, with a token for each byte."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.runtime.text.tokenizer import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = ("▁a", "▁k", "b", "é", "▁", "\ufffd", "▁€")


@pytest.fixture(scope="module")
def fallback(dense_dir, tmp_path_factory) -> Tokenizer:
    """A tokenizer of SentencePiece's kind: words, and all bytes as tokens."""
    folder = Path(shutil.copytree(dense_dir, tmp_path_factory.mktemp("fallback") / "tiny"))
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    vocabulary = {token: number for number, token in enumerate((*BYTES, *WORDS))}
    description = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "BPE", "vocab": vocabulary, "merges": [], "byte_fallback": True},
        "decoder": {"type": "Sequence", "decoders": decoders},
    }
    (folder / "tokenizer.json").write_text(json.dumps(description))
    write_manifest(folder, "dense", Source("changed by a test"))
    return Tokenizer(Bundle.open(folder))


def by_bytes(ids) -> str:
    """The text of tokens: runs of bytes as UTF-8, in which each byte that is lost is U+FFFD."""
    text = ""
    for is_bytes, run in itertools.groupby(ids, lambda token: token < 256):
        if not is_bytes:
            text += "".join(WORDS[token - 256] for token in run).replace("▁", " ")
            continue
        data = bytes(run)
        while data:
            for length in (1, 2, 3, 4):
                try:
                    text += data[:length].decode()
                    break
                except UnicodeDecodeError:
                    continue
            else:
                text, length = text + "\ufffd", 1
            data = data[length:]
    return text


tokens = st.one_of(
    st.integers(0, 262),
    st.integers(256, 262),
    st.sampled_from([0x0A, 0x20, 0xF0, 0x9F, 0x99, 0x82, 0xE2, 0x82, 0xAC]),
)


@given(st.lists(tokens, max_size=30).filter(lambda ids: ids[:1] != [0x20]))
def test_a_stream_of_bytes_never_fails(fallback, ids) -> None:
    """Strip takes one leading space, unless a byte makes it."""
    stream = fallback.stream()
    pieces = [stream.push(token) for token in ids]
    text = "".join(pieces) + stream.end()
    assert text == by_bytes(ids).removeprefix(" ")
    assert fallback.decode(ids) == text
    library = fallback._library.decode(ids)
    if "\ufffd" not in library:
        assert text == library


def test_a_character_that_is_cut_in_two_ends_no_answer(fallback) -> None:
    ids = [256, 0x0A, 0xF0, 0x9F, 257, 258]
    stream = fallback.stream()
    assert [stream.push(token) for token in ids] == ["a", "\n", "", "", "\ufffd\ufffd k", "b"]
