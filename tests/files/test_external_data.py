from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tamiz.files.errors import TamizError
from tamiz.files.external_data import External, external_tensors, locations


def external(name: str, location: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_finds_every_place_that_can_hold_a_tensor(tmp_path: Path) -> None:
    body = helper.make_graph([], "body", [], [], initializer=[external("b", "in-a-subgraph")])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=external("", "in-an-attribute")),
        helper.make_node("Scan", [], ["d"], body=body),
    ]
    graph = helper.make_graph(nodes, "g", [], [], initializer=[external("a", "initializer")])
    function = helper.make_function(
        "own",
        "f",
        [],
        ["y"],
        [helper.make_node("Constant", [], ["y"], value=external("", "in-a-function"))],
        [helper.make_opsetid("", 17)],
    )
    model = helper.make_model(graph, functions=[function])
    onnx.save_model(model, tmp_path / "model.onnx")
    assert set(locations(external_tensors(tmp_path / "model.onnx"))) == {
        "initializer",
        "in-an-attribute",
        "in-a-subgraph",
        "in-a-function",
    }


def test_inline_weights_need_no_file(tmp_path: Path) -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, 2.0])
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[weight]))
    onnx.save_model(model, tmp_path / "model.onnx")
    assert locations(external_tensors(tmp_path / "model.onnx")) == {}


def test_tells_how_many_bytes_a_file_must_have(tmp_path: Path) -> None:
    tensors = [external("a", "one"), external("b", "one"), external("c", "two")]
    tensors[0].external_data.add(key="length", value="7")
    tensors[1].external_data[0].value = "4096"
    tensors[1].external_data.add(key="length", value="4")
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=tensors))
    onnx.save_model(model, tmp_path / "model.onnx")
    assert locations(external_tensors(tmp_path / "model.onnx")) == {"one": 4100, "two": 0}


def test_tells_what_the_graphs_own_initializers_are(tmp_path: Path) -> None:
    weight = external("w", "data")
    weight.dims[:] = [300, 7]
    weight.data_type = TensorProto.UINT8
    weight.external_data[0].value = "64"
    weight.external_data.add(key="length", value="2100")
    body = helper.make_graph([], "body", [], [], initializer=[external("b", "data")])
    nodes = [helper.make_node("Scan", [], ["d"], body=body)]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], initializer=[weight]))
    onnx.save_model(model, tmp_path / "model.onnx")
    assert external_tensors(tmp_path / "model.onnx") == (
        External("b", False, TensorProto.FLOAT, (1,), "data", 0, 0),
        External("w", True, TensorProto.UINT8, (300, 7), "data", 64, 2100),
    )


@pytest.mark.parametrize(
    "content",
    [b"", b"\x3a", b"\x3a\x05ab", b"\x3b\x00", b"\x08" + b"\xff" * 11, b"\x3a\x02\x2a\x7f"],
)
def test_refuses_what_is_no_protobuf(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(TamizError, match="not a well-formed ONNX model"):
        external_tensors(tmp_path / "model.onnx")


def field(number: int, content: bytes) -> bytes:
    """A field of the protobuf wire format that holds a message."""
    size, length = len(content), bytearray()
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + content


def test_refuses_messages_that_nest_without_end(tmp_path: Path) -> None:
    graph = b""
    for _ in range(1000):
        graph = field(1, field(5, field(6, graph)))  # a graph in an attribute of a node
    (tmp_path / "model.onnx").write_bytes(field(7, graph))
    with pytest.raises(TamizError, match="messages nest too deep"):
        external_tensors(tmp_path / "model.onnx")


def test_a_loop_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Loop", [], ["d"], body=helper.make_graph([], "body", [], []))]
    onnx.save_model(helper.make_model(helper.make_graph(nodes, "g", [], [])), tmp_path / "m.onnx")
    with pytest.raises(TamizError, match="operator Loop, which may never end"):
        external_tensors(tmp_path / "m.onnx")


@pytest.mark.parametrize("dims", [[2**62], [2**32, 2**32], [2**63 - 1]])
def test_impossible_dimensions_are_refused(tmp_path: Path, dims: list[int]) -> None:
    tensor = external("w", "data")
    tensor.dims[:] = dims
    model = helper.make_model(helper.make_graph([], "g", [], [], initializer=[tensor]))
    onnx.save_model(model, tmp_path / "m.onnx")
    with pytest.raises(TamizError, match="a tensor has the dimensions"):
        external_tensors(tmp_path / "m.onnx")
