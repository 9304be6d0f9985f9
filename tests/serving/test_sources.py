"""Names of sources, and files of keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamiz.files.errors import TamizError
from tamiz.serving.sources import names_of_sources, read_keys


def test_a_source_is_named_or_has_the_name_of_its_file(tmp_path: Path) -> None:
    file, folder = tmp_path / "small.q4.gguf", tmp_path / "a=b"
    file.touch()
    folder.mkdir()
    found = names_of_sources([str(file), f"chat={file}", str(folder)])
    assert found == {"small.q4": str(file), "chat": str(file), "a=b": str(folder)}
    with pytest.raises(TamizError, match=r"two models are named chat; try NAME="):
        names_of_sources([f"chat={file}", f"chat={folder}"])
    with pytest.raises(TamizError, match="no such file or folder"):
        names_of_sources([str(tmp_path / "none")])


def test_a_file_of_keys_has_one_on_each_line(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("one\n\n two \n")
    assert read_keys(path) == ["one", "two"]
    path.write_text("\n")
    with pytest.raises(TamizError, match="has no keys, expected one on each line"):
        read_keys(path)
