"""Models split over several GGUF files."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from kit import tiny_gguf
from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_split import open_gguf


def split(
    folder: Path, changes: dict[str, dict[int, int]] | None = None
) -> tuple[GgufFile, list[Path]]:
    """A model as one file, and its parts; `changes` replaces keys of single parts."""
    count = 3
    tiny_gguf.write(folder / "whole.gguf", tiny_gguf.random_model())
    whole = GgufFile(folder / "whole.gguf")
    tensors = list(whole.tensors.values())
    paths = []
    for number in range(count):
        paths.append(folder / f"part-{number + 1:05d}-of-{count:05d}.gguf")
        writer = gguf.GGUFWriter(paths[-1], "llama")
        keys = {"no": number, "count": count, "tensors.count": len(tensors)}
        for key, value in keys.items():
            value = (changes or {}).get(key, {}).get(number, value)
            writer.add_uint32(f"split.{key}", value)
        for tensor in tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.dequantize())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return whole, paths


def test_parts_are_one_model(tmp_path) -> None:
    whole, paths = split(tmp_path)
    found = open_gguf(paths[0])
    assert set(found.tensors) == set(whole.tensors)
    for name, tensor in whole.tensors.items():
        np.testing.assert_array_equal(found.tensors[name].dequantize(), tensor.dequantize())


def test_one_file_is_a_model(tmp_path) -> None:
    whole, _ = split(tmp_path)
    assert set(open_gguf(tmp_path / "whole.gguf").tensors) == set(whole.tensors)


def test_another_part_is_refused(tmp_path) -> None:
    _, paths = split(tmp_path)
    with pytest.raises(TamizError, match=r"split\.no: found 1, expected 0; the model is named by"):
        open_gguf(paths[0].with_name(paths[1].name).rename(paths[0]))


def test_a_missing_part_is_named(tmp_path) -> None:
    _, paths = split(tmp_path)
    paths[2].unlink()
    with pytest.raises(TamizError, match=r"found no part-00003-of-00003\.gguf, expected 3 parts"):
        open_gguf(paths[0])


def test_a_name_without_numbers_is_refused(tmp_path) -> None:
    _, paths = split(tmp_path)
    with pytest.raises(TamizError, match=r"name: found a\.gguf, expected one that ends in -00001"):
        open_gguf(paths[0].rename(tmp_path / "a.gguf"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"no": {2: 1}}, r"00003-of-00003\.gguf: split\.no: found 1, expected 2"),
        ({"count": {1: 4}}, r"00002-of-00003\.gguf: split\.count: found 4, expected 3"),
        ({"tensors.count": {0: 5}}, r"split\.tensors\.count: found 5, expected 2\d, as the parts"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, changes, message) -> None:
    _, paths = split(tmp_path, changes)
    with pytest.raises(TamizError, match=message):
        open_gguf(paths[0])
