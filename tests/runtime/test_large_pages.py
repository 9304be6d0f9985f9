from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tamiz.files.errors import TamizError
from tamiz.files.external_data import external_tensors
from tamiz.runtime import large_pages

pytestmark = pytest.mark.skipif(not large_pages.available(), reason="the system has no large pages")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """y = packed[i] + small, z = large[i]; all constants in a file beside the model."""
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "packed": rng.integers(0, 256, (3, large_pages._PAGE), dtype=np.uint8),
        "small": rng.integers(0, 9, (5,), dtype=np.int64),
        "large": rng.standard_normal((2, 40_000)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["packed", "i"], ["y"]),
        helper.make_node("Gather", ["large", "i"], ["z"]),
        helper.make_node("Add", ["small", "i"], ["sum"]),
    ]
    values = [
        helper.make_tensor_value_info("y", TensorProto.UINT8, None),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("sum", TensorProto.INT64, None),
    ]
    index = helper.make_tensor_value_info("i", TensorProto.INT64, [1])
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [index], values, initializer=initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(
        made, tmp_path / "model.onnx", save_as_external_data=True, location="d", size_threshold=0
    )
    return tmp_path / "model.onnx"


def load(model: Path, options: ort.SessionOptions) -> list[ort.OrtValue]:
    return large_pages.load_constants(model.parent, external_tensors(model), options)


def run(model: Path, options: ort.SessionOptions) -> list[np.ndarray]:
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"i": np.array([1])})


def test_a_session_computes_the_same_from_what_was_read(model: Path) -> None:
    options = ort.SessionOptions()
    constants = load(model, options)
    assert [value.shape() for value in constants] == [[3, large_pages._PAGE], [5]]
    for got, expected in zip(run(model, options), run(model, ort.SessionOptions()), strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


def test_packed_weights_begin_with_a_large_page(model: Path) -> None:
    constants = load(model, ort.SessionOptions())
    assert constants[0].data_ptr() % large_pages._PAGE == 0
    assert constants[1].data_ptr() % large_pages._LINE == 0


def test_reads_nothing_where_there_are_no_large_pages(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_pages, "available", lambda: False)
    assert load(model, ort.SessionOptions()) == []


def test_a_file_that_ends_too_early(model: Path) -> None:
    data = model.with_name("d")
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(TamizError, match="d: found 100 bytes of packed, not 6291456"):
        load(model, ort.SessionOptions())


@pytest.mark.parametrize("size", [1, large_pages._PAGE - 1, large_pages._PAGE + 1])
def test_zeros_begin_with_a_page_or_a_line(size: int) -> None:
    zeros = large_pages.zeros(size)
    assert zeros.nbytes == size
    assert not zeros.any()
    unit = large_pages._PAGE if size >= large_pages._PAGE else large_pages._LINE
    assert zeros.ctypes.data % unit == 0
    zeros[:] = 1
    assert not large_pages.zeros(size).any()


def test_weights_are_mapped_on_request(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = run(model, ort.SessionOptions())
    monkeypatch.setenv("TAMIZ_SHARE", "1")
    options = ort.SessionOptions()
    assert load(model, options) == []
    for one, other in zip(run(model, options), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("free", "shared"), [(13_000, False), (12_000, True)])
def test_weights_above_half_of_the_free_memory_are_mapped(
    free: int, shared: bool, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The constants take 6 MiB and some lines."""
    monkeypatch.setattr(large_pages, "free_memory", lambda: 1024 * free)
    assert (load(model, ort.SessionOptions()) == []) is shared
    monkeypatch.setenv("TAMIZ_SHARE", "0")
    assert load(model, ort.SessionOptions())


def test_reading_more_than_fits_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system would end the process."""
    monkeypatch.setattr(large_pages, "free_memory", lambda: 1 << 20)
    monkeypatch.setenv("TAMIZ_SHARE", "0")
    with pytest.raises(TamizError, match=r"TAMIZ_SHARE is '0', .* and 0.0 GB of memory are free"):
        load(model, ort.SessionOptions())


def test_another_request_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIZ_SHARE", "yes")
    with pytest.raises(TamizError, match="TAMIZ_SHARE is 'yes', expected 0 or 1"):
        load(model, ort.SessionOptions())
