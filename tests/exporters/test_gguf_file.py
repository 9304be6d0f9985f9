from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit import tiny_gguf
from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.gguf_tokenizer import GgufTokenizer

U32, U64, STRING, ARRAY, BOOL = 4, 10, 8, 9, 7


def text(value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(value)) + value


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str = "w", dims=(32,), kind: int = 0, offset: int = 0, n_dims=None) -> bytes:
    n_dims = len(dims) if n_dims is None else n_dims
    dims = struct.pack(f"<{len(dims)}Q", *dims)
    return text(name) + struct.pack("<I", n_dims) + dims + struct.pack("<IQ", kind, offset)


def file(pairs=(), tensors=(), data: int = 4096, magic=b"GGUF", version=3, counts=None) -> bytes:
    counts = counts or (len(tensors), len(pairs))
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + data)


def read(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def test_reads_what_gguf_writes(tmp_path) -> None:
    path = tmp_path / "x.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("number", 7)
    writer.add_float32("real", 0.5)
    writer.add_bool("flag", True)
    writer.add_string("text", "añb")
    writer.add_array("texts", ["a", "", "ç"])
    writer.add_array("numbers", [1, -2, 3])
    weight = np.arange(96, dtype=np.float32).reshape(3, 32)
    writer.add_tensor("w", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = GgufFile(path)
    assert found.get("number", int) == 7
    assert found.get("real", float) == 0.5
    assert found.get("flag", bool) is True
    assert found.get("text", str) == "añb"
    assert found.get("texts", list) == ["a", "", "ç"]
    assert found.get("numbers", list) == [1, -2, 3]
    np.testing.assert_array_equal(found.tensors["w"].dequantize(), weight)
    reference = gguf.GGUFReader(path)
    np.testing.assert_array_equal(reference.tensors[0].data, weight)


HUGE = 2**62
ABSURD = {
    "empty": (b"", "size: found 0 bytes, expected a header of at least 24 bytes"),
    "magic": (file(magic=b"GGML"), "magic: found b'GGML', expected b'GGUF'"),
    "version": (file(version=1), "version: found 1, expected 2 or 3"),
    "big-endian": (file(version=3 << 24), "version: found 50331648"),
    "tensor count": (file(counts=(HUGE, 0)), f"tensor count: found {HUGE}, expected at most"),
    "key-value count": (file(counts=(0, HUGE)), f"key-value count: found {HUGE}, expected at most"),
    "key length": (file([struct.pack("<Q", HUGE)]), f"length of key 0: found {HUGE}"),
    "string length": (
        file([pair("k", STRING, struct.pack("<Q", HUGE))]),
        f"k: found .* bytes left in the file, expected {HUGE} bytes",
    ),
    "string text": (file([pair("k", STRING, text(b"\xff\xfe"))]), "k: found bytes that are not"),
    "value type": (file([pair("k", 13, b"")]), "type of k: found 13, expected a GGUF value type"),
    "array type": (
        file([pair("k", ARRAY, struct.pack("<IQ", 99, 1))]),
        "type of k: found 99, expected a GGUF value type",
    ),
    "array of arrays": (
        file([pair("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]),
        "k: found an array of arrays",
    ),
    "array length": (
        file([pair("k", ARRAY, struct.pack("<IQ", U32, HUGE))]),
        f"length of k: found {HUGE}, expected at most",
    ),
    "strings length": (
        file([pair("k", ARRAY, struct.pack("<IQ", STRING, HUGE))]),
        f"length of k: found {HUGE}, expected at most",
    ),
    "key twice": (file([pair("k", BOOL, b"\1")] * 2), "k: found the key twice"),
    "alignment": (
        file([pair("general.alignment", U32, struct.pack("<I", 48))]),
        "alignment: found 48, expected a power of two",
    ),
    "alignment type": (
        file([pair("general.alignment", STRING, text("32"))]),
        "alignment: found a value of type str, expected type int",
    ),
    "unprintable name": (
        file(tensors=[tensor("a\nb" + "x" * 500, kind=4)]),
        r"tensor a\\nbx{20,120}\.\.\.: found 4, expected a known ggml type",
    ),
    "n_dims": (file(tensors=[tensor(n_dims=9)]), "tensor w: n_dims: found 9, expected 1 to 4"),
    "no dims": (file(tensors=[tensor(dims=())]), "tensor w: n_dims: found 0, expected 1 to 4"),
    "zero dim": (file(tensors=[tensor(dims=(32, 0))]), r"w: dims\[1\]: found 0, expected 1 to"),
    "negative dim": (file(tensors=[tensor(dims=(2**64 - 1,))]), r"dims\[0\]: found 1844674407370"),
    "overflow": (
        file(tensors=[tensor(dims=(2**32, 2**32, 2**32, 2**32))]),
        "tensor w: data: found a file of",
    ),
    "too long": (file(tensors=[tensor(dims=(1025,))]), "w: data: found a file of 4160 bytes, exp"),
    "tensor type": (file(tensors=[tensor(kind=4)]), "tensor w: type: found 4, expected a known"),
    "row length": (
        file(tensors=[tensor(dims=(33,), kind=3)]),
        r"dims\[0\]: found 33, expected a multiple of 32 for Q4_1",
    ),
    "unaligned": (file(tensors=[tensor(offset=4)]), "offset: found 4, expected a multiple of 32"),
    "offset": (file(tensors=[tensor(offset=2**63)]), "tensor w: data: found a file of"),
    "overlap": (
        file(tensors=[tensor("a"), tensor("b", offset=96)]),
        "tensor b: offset: found 96, expected no overlap with a",
    ),
    "name twice": (
        file(tensors=[tensor(), tensor(offset=128)]),
        "tensor w: found the name twice",
    ),
}


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_files_cost_one_sentence(tmp_path, name) -> None:
    content, message = ABSURD[name]
    with pytest.raises(TamizError, match=message) as caught:
        read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "x.gguf"))
    assert "\n" not in str(caught.value)


def load_all(path: Path) -> None:
    """Everything of an export that looks at the file, without the graph."""
    opened = GgufFile(path)
    model = GgufModel(opened)
    model.weights().find()
    GgufTokenizer(opened, model.vocabulary).tokenizer_json()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tiny_gguf.write(path, tiny_gguf.random_model(biases=True))
    load_all(path)
    return path.read_bytes()


def test_an_absurd_head_costs_no_memory(tmp_path) -> None:
    model = tiny_gguf.random_model()
    path = tmp_path / "x.gguf"
    tiny_gguf.write(path, model)
    content = path.read_bytes()
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        place = content.index(key.encode()) + len(key) + 4
        content = content[:place] + struct.pack("<I", 2**32 - 2) + content[place + 4 :]
    path.write_bytes(content)
    with pytest.raises(TamizError, match=r"tensor blk\.0\.attn_q\.weight: found 64 x 64, expected"):
        load_all(path)


def test_every_truncation_is_told(tmp_path, tiny) -> None:
    path = tmp_path / "x.gguf"
    for size in [*range(0, min(len(tiny), 20_000), 7), len(tiny) // 2, len(tiny) - 33]:
        path.write_bytes(tiny[:size])
        with pytest.raises(TamizError):
            load_all(path)


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes_never_cost_more_than_a_sentence(tmp_path_factory, tiny, data) -> None:
    content = bytearray(tiny)
    places = st.integers(0, min(len(tiny), 12_000) - 1)
    damage = st.one_of(st.integers(0, 255), st.sampled_from([0, 0x7F, 0x80, 0xFF]))
    for place in data.draw(st.lists(places, min_size=1, max_size=8)):
        content[place] = data.draw(damage)
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(content)
    # Anything but TamizError, a MemoryError for one, fails the test.
    with contextlib.suppress(TamizError):
        load_all(path)
