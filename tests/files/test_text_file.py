"""Text and JSON files: regular, bounded, UTF-8, without half characters."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.files.errors import TamizError, printable
from tamiz.files.located_json import LocatedJson
from tamiz.files.text_file import read_json, read_text

READERS = pytest.mark.parametrize("read", [read_text, read_json, LocatedJson])


@READERS
def test_what_never_ends_or_never_begins_is_refused(tmp_path: Path, read) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (tmp_path / "pipe", tmp_path / "link", Path("/dev/zero"), tmp_path):
        with pytest.raises(TamizError, match="is no regular file; copy its contents into one"):
            read(path)


@READERS
@pytest.mark.parametrize("name", ["missing", "a\0b", "x" * 5000])
def test_what_is_not_there_costs_one_sentence(tmp_path: Path, read, name: str) -> None:
    with pytest.raises(TamizError, match="cannot be read: "):
        read(tmp_path / name)


def test_a_file_has_a_longest_length(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(b" " * ((1 << 20) + 1))
    assert len(read_text(path)) == (1 << 20) + 1
    with pytest.raises(TamizError, match="larger than 1 MB"):
        read_text(path, 1 << 20)
    with pytest.raises(TamizError, match="larger than 1 MB"):
        LocatedJson(path)
    with path.open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(TamizError, match="larger than 64 MB"):
        read_json(path)


@pytest.mark.parametrize("read", [read_json, LocatedJson])
@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": [["x\\uDABCy"]]}'])
def test_half_characters_are_no_json(tmp_path: Path, read, text: str) -> None:
    (tmp_path / "j").write_text(text)
    with pytest.raises(TamizError, match=r"not valid JSON: .*half a character"):
        read(tmp_path / "j")


@pytest.mark.parametrize("text", ['{"a": "\\ud83d\\ude00"}', '{"a": "\\\\ud800"}'])
def test_escaped_pairs_and_backslashes_are_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "j").write_text(text)
    assert read_json(tmp_path / "j") == LocatedJson(tmp_path / "j").value


@pytest.mark.parametrize("read", [read_json, LocatedJson])
@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbf{}", b"\xff\xfe{\0}\0", b'{"a": "\xff"}', b"", b"\0"]
)
def test_other_encodings_cost_one_sentence(tmp_path: Path, read, data: bytes) -> None:
    (tmp_path / "j").write_bytes(data)
    with pytest.raises(TamizError, match=r"j(:1)?: (not valid JSON|cannot be read as UTF-8)"):
        read(tmp_path / "j")


def test_an_error_is_escaped_and_shortened() -> None:
    assert str(TamizError("a\x1b[31m\n\u202eb\0 c")) == "a\\x1b[31m\\n\\u202eb\\x00 c"
    assert str(TamizError("naïve 漢字 😀")) == "naïve 漢字 😀"
    long = str(TamizError("begin " + "x" * 10**6 + " end"))
    assert len(long) < 1010
    assert long.startswith("begin x")
    assert long.endswith("x end")


@given(st.text(max_size=300))
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert all(c.isprintable() or c.isspace() for c in printable(text))
    assert printable(printable(text)) == printable(text)
    assert not set(printable(text)) & set(map(chr, (*range(32), *range(127, 160))))
