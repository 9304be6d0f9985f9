from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from tamiz.files.errors import TamizError
from tamiz_exporters import onnx as exporter

WEIGHT = np.random.default_rng(0).standard_normal((32, 48)).astype(np.float32)


def make_model(**changes: str) -> onnx.ModelProto:
    """y = x·W with W as external data of ``weights.bin``; `changes` overwrite its entries."""
    weight = numpy_helper.from_array(WEIGHT, "w")
    entries = {"location": "weights.bin", "offset": "0", "length": str(WEIGHT.nbytes)} | changes
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 48])],
        [weight],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def write(folder: Path, model: onnx.ModelProto, data: bytes | None = WEIGHT.tobytes()) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    if data is not None:
        (folder / "weights.bin").write_bytes(data)
    return folder


def export(source: Path, tmp_path: Path) -> Path:
    target = tmp_path / "dense"
    target.mkdir()
    exporter.export(str(source), target)
    return target


@pytest.mark.parametrize("name", ["", "model.onnx"])
def test_a_folder_and_a_file_become_a_dense_bundle(tmp_path, name) -> None:
    source = write(tmp_path / "in", make_model())
    target = export(source / name, tmp_path)
    assert sorted(path.name for path in target.iterdir()) == ["model.onnx", "model.onnx.data"]
    x = np.random.default_rng(1).standard_normal((3, 32)).astype(np.float32)
    (found,) = ort.InferenceSession(target / "model.onnx").run(None, {"x": x})
    (expected,) = ort.InferenceSession(source / "model.onnx").run(None, {"x": x})
    np.testing.assert_array_equal(found, expected)
    weight = onnx.load(target / "model.onnx", load_external_data=False).graph.initializer[0]
    entries = {entry.key: entry.value for entry in weight.external_data}
    assert entries["location"] == "model.onnx.data"
    assert int(entries["offset"]) % 4096 == 0


def test_companions_come_along_and_are_completed(tmp_path) -> None:
    source = write(tmp_path / "in", make_model())
    (source / "config.json").write_text('{"eos_token_id": 2, "bos_token_id": 1, "n": 3}')
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "tokenizer_config.json").write_text('{"bos_token": {"content": "<s>"}}')
    first = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": [first]}
    tokenizer = {
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "post_processor": {"type": "Sequence", "processors": [{"type": "ByteLevel"}, template]},
    }
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    (source / "evil.py").write_text("raise SystemExit")
    target = export(source, tmp_path)
    generation = json.loads((target / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2}
    config = json.loads((target / "tokenizer_config.json").read_text())
    assert config["chat_template"] == "{{ messages }}"
    assert config["add_bos_token"] is True
    assert (target / "tokenizer.onnx").is_file()
    assert not (target / "evil.py").exists()


MODULES = [{"idx": 0, "path": ""}, {"idx": 1, "path": "1_Pooling"}, {"idx": 2, "path": "2_Dense"}]


def test_modules_of_sentence_transformers_come_along(tmp_path) -> None:
    source = write(tmp_path / "in", make_model())
    files = {
        "modules.json": json.dumps(MODULES),
        "sentence_bert_config.json": '{"max_seq_length": 384}',
        "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}',
        "2_Dense/config.json": '{"in_features": 48}',
        "2_Dense/model.safetensors": "weights",
    }
    for name, text in files.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    (source / "2_Dense" / "evil.py").touch()
    target = export(source, tmp_path)
    found = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert found == {*files, "model.onnx", "model.onnx.data"}
    assert all((target / name).read_text() == text for name, text in files.items())


@pytest.mark.parametrize(
    "modules", [[{"path": "../up"}], [{"path": "/etc"}], [{"path": 1}], ["1_Pooling"], {}, "not"]
)
def test_malformed_modules_are_refused(tmp_path, modules) -> None:
    source = write(tmp_path / "in", make_model())
    (source / "modules.json").write_text("[" if modules == "not" else json.dumps(modules))
    with pytest.raises(TamizError, match=r"modules\.json: "):
        export(source, tmp_path)


@pytest.mark.parametrize(
    "post_processor", [{"processors": [1]}, {"processors": 1}, {"single": 1}, {"single": None}]
)
def test_a_malformed_post_processor_is_told(tmp_path, post_processor) -> None:
    source = write(tmp_path / "in", make_model())
    (source / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    (source / "tokenizer.json").write_text(json.dumps({"post_processor": post_processor}))
    with pytest.raises(TamizError, match=r"tokenizer\.json: not a file of the tokenizers library"):
        export(source, tmp_path)


def test_a_chat_template_that_is_not_utf8_is_told(tmp_path) -> None:
    source = write(tmp_path / "in", make_model())
    (source / "tokenizer_config.json").write_text("{}")
    (source / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TamizError, match=r"chat_template\.jinja: cannot be read as UTF-8 text"):
        export(source, tmp_path)


BAD_DATA = {
    "missing": ({}, None, r"location 'weights\.bin' is missing or no file, expected one in"),
    "parent": ({"location": "../weights.bin"}, None, r"location '\.\./weights\.bin' leads out of"),
    "absolute": (
        {"location": "/etc/passwd"},
        None,
        "location '/etc/passwd' leads out of the folder",
    ),
    "nul": ({"location": "a\0b"}, None, r"location 'a\\x00b' is no path"),
    "long": ({"location": "a" * 10**5}, None, "location 'aaa.* is no path"),
    "long name": ({"location": "a" * 3000}, None, "location 'aaa.* cannot be read"),
    "empty": ({"location": ""}, None, "location '' is no path"),
    "device": ({"location": "/dev/zero"}, None, "leads out of the folder"),
    "short": ({}, WEIGHT.tobytes()[:-4], "of 6140 bytes, expected at least 6144"),
    "offset": ({"offset": "4"}, WEIGHT.tobytes(), "of 6144 bytes, expected at least 6148"),
    "length": ({"length": "6140"}, WEIGHT.tobytes(), "found length 6140, expected 6144 bytes"),
}


@pytest.mark.parametrize("name", BAD_DATA)
def test_external_data_that_is_not_there(tmp_path, name) -> None:
    changes, data, message = BAD_DATA[name]
    source = write(tmp_path / "in", make_model(**changes), data)
    (tmp_path / "weights.bin").write_bytes(WEIGHT.tobytes())
    with pytest.raises(TamizError, match=message) as caught:
        export(source, tmp_path)
    assert "external data of w" in str(caught.value)


def test_external_data_behind_a_link_that_leads_out(tmp_path) -> None:
    (tmp_path / "outside.bin").write_bytes(WEIGHT.tobytes())
    source = write(tmp_path / "in", make_model(), None)
    (source / "weights.bin").symlink_to(tmp_path / "outside.bin")
    with pytest.raises(TamizError, match=r"'weights\.bin' is a link out of the folder"):
        export(source, tmp_path)


def test_the_cache_of_hugging_faces_hub_is_read(tmp_path) -> None:
    """There, ``snapshots/<revision>`` holds links to ``blobs``."""
    source = write(tmp_path / "in", make_model())
    (source / "config.json").write_text('{"model_type": "x"}')
    repository = tmp_path / "hub" / "models--a--b"
    snapshot = repository / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(source.iterdir())):
        path.rename(repository / "blobs" / f"{number:040x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{number:040x}")
    target = export(snapshot, tmp_path)
    (w,) = onnx.load(target / "model.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(w), WEIGHT)
    assert (target / "config.json").is_file()


def test_a_hard_link_is_read(tmp_path) -> None:
    source = write(tmp_path / "in", make_model())
    (tmp_path / "other").hardlink_to(source / "weights.bin")
    (w,) = onnx.load(export(source, tmp_path) / "model.onnx").graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(w), WEIGHT)


def test_a_loop_that_may_never_end_is_refused(tmp_path) -> None:
    """onnxruntime cannot be stopped while it runs one."""
    model = make_model()
    inner = helper.make_node("Identity", ["go"], ["more"])
    types = [helper.make_tensor_value_info(n, TensorProto.BOOL, []) for n in ("go", "more")]
    count = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph([inner], "body", [count, types[0]], [types[1]])
    model.graph.node.append(helper.make_node("Loop", ["", ""], [], body=body))
    with pytest.raises(TamizError, match="operator Loop, which may never end"):
        export(write(tmp_path / "in", model), tmp_path)


@pytest.mark.parametrize("dims", [[2**62], [2**32, 2**32], [2**31, 2**31, 2**31], [2**63 - 1]])
def test_impossible_dimensions_are_refused(tmp_path, dims) -> None:
    model = make_model(length=str(2**62))
    model.graph.initializer[0].dims[:] = dims
    with pytest.raises(TamizError, match=r"model\.onnx: external data of w: "):
        export(write(tmp_path / "in", model), tmp_path)


def test_sizes_that_stand_for_unknown_ones_are_unknown(tmp_path) -> None:
    model = make_model()
    rows, columns = model.graph.input[0].type.tensor_type.shape.dim
    rows.dim_value, columns.dim_param = -1, "?"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = -1
    target = export(write(tmp_path / "in", model), tmp_path)
    session = ort.InferenceSession(target / "model.onnx")
    assert session.get_inputs()[0].shape == [None, None]
    graph = onnx.load(target / "model.onnx", load_external_data=False).graph
    for dim in (
        *graph.input[0].type.tensor_type.shape.dim,
        graph.output[0].type.tensor_type.shape.dim[0],
    ):
        assert dim.WhichOneof("value") is None


def test_tensors_of_strings_are_refused(tmp_path) -> None:
    model = make_model()
    text: Any = [b"a"]
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.STRING, [1], text))
    with pytest.raises(TamizError, match="tensor s holds strings, expected numbers"):
        export(write(tmp_path / "in", model), tmp_path)


def test_what_is_no_model(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    with pytest.raises(TamizError, match="no such file, expected an ONNX model"):
        export(path, tmp_path)
    for content in (b"", b"not a protobuf at all", make_model().SerializeToString()[:-40]):
        path.write_bytes(content)
        with pytest.raises(TamizError, match=r"m\.onnx: ") as caught:
            exporter.export(str(path), tmp_path)
        assert "\n" not in str(caught.value)


def test_what_the_checker_rejects(tmp_path) -> None:
    model = make_model()
    model.graph.node[0].input[0] = "nothing"
    source = write(tmp_path / "in", model)
    with pytest.raises(TamizError, match=r"onnxruntime does not load it: .*nothing"):
        export(source, tmp_path)


def test_accepts(tmp_path) -> None:
    assert exporter.accepts("a/b.onnx")
    assert not exporter.accepts(str(tmp_path))
    assert exporter.accepts(str(write(tmp_path / "in", make_model())))


def small(nodes: list[Any], shape: list[Any], *tensors: Any, **versions: Any) -> onnx.ModelProto:
    """A model from x to y, both float32 of one shape."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], list(tensors))
    opset = helper.make_opsetid("", versions.get("opset", 18))
    return helper.make_model(graph, ir_version=versions.get("ir", 8), opset_imports=[opset])


def test_ops_that_only_onnxruntime_has_in_onnxs_domain_are_read(tmp_path) -> None:
    """As onnxruntime-genai's builder writes them; the reference is onnxruntime itself."""
    scale = numpy_helper.from_array(np.ones(8, np.float32), "w")
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "w"], ["y"], axis=-1)
    target = export(write(tmp_path / "in", small([node], ["n", 8], scale), None), tmp_path)
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    (y,) = ort.InferenceSession(target / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(y, x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5), rtol=1e-5)


def test_initializers_of_an_old_format_are_no_inputs(tmp_path) -> None:
    """Before version 4 of the format an initializer had to be an input, which no run could set."""
    model = small([helper.make_node("Add", ["x", "w"], ["y"])], [2], ir=3, opset=8)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "w"))
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [2]))
    target = export(write(tmp_path / "in", model, None), tmp_path)
    session = ort.InferenceSession(target / "model.onnx")
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert not session.get_overridable_initializers()


def test_a_graph_without_outputs_is_refused(tmp_path) -> None:
    model = make_model()
    del model.graph.output[:]
    with pytest.raises(TamizError, match="found no outputs, expected at least one"):
        export(write(tmp_path / "in", model), tmp_path)


def test_an_opset_of_the_future_is_refused(tmp_path) -> None:
    model = make_model()
    model.opset_import[0].version = 9999
    with pytest.raises(TamizError, match=r"onnxruntime does not load it: .*9999"):
        export(write(tmp_path / "in", model), tmp_path)


def test_an_external_tensor_of_strings_is_refused(tmp_path) -> None:
    model = make_model()
    model.graph.initializer[0].data_type = TensorProto.STRING
    with pytest.raises(TamizError, match="tensor w holds strings, expected numbers"):
        export(write(tmp_path / "in", model), tmp_path)


def cached(*more: Any, kind: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A graph with the caches of a decoder of one layer, which pass through."""
    dims = ["batch", "kv_heads", "past", "head_size"]
    names = [(f"past_key_values.0.{part}", f"present.0.{part}") for part in ("key", "value")]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "all"])
    graph = helper.make_graph(
        [helper.make_node("Identity", list(pair)[:1], list(pair)[1:]) for pair in names],
        "g",
        [*(helper.make_tensor_value_info(past, kind, dims) for past, _ in names), mask, *more],
        [helper.make_tensor_value_info(present, kind, dims) for _, present in names],
    )
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])


def test_sizes_of_caches_come_from_the_config(tmp_path) -> None:
    """Caches of onnxruntime-genai 0.18 have a symbolic head size."""
    source = write(tmp_path / "in", cached(), None)
    (source / "config.json").write_text(
        '{"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48}'
    )
    session = ort.InferenceSession(export(source, tmp_path) / "model.onnx")
    ports = [*session.get_inputs(), *session.get_outputs()]
    shapes = [value.shape for value in ports if value.name != "attention_mask"]
    assert shapes == [["batch", 2, "past", 8]] * 4


def test_a_decoder_that_reads_an_encoder_keeps_its_inputs(tmp_path, caplog) -> None:
    names = {"encoder_states": TensorProto.FLOAT16, "use_cache_branch": TensorProto.BOOL}
    more = [helper.make_tensor_value_info(name, kind, [1]) for name, kind in names.items()]
    source = write(tmp_path / "in", cached(*more, kind=TensorProto.FLOAT16), None)
    (source / "config.json").write_text('{"num_attention_heads": 6, "hidden_size": 48}')

    def ports(path: Path) -> list[tuple[str, str, list[Any]]]:
        session = ort.InferenceSession(path)
        found = (*session.get_inputs(), *session.get_outputs())
        return [(value.name, value.type, value.shape) for value in found]

    before, after = (ports(path / "model.onnx") for path in (source, export(source, tmp_path)))
    assert after == before
    assert "two graphs in one If" in caplog.text
    assert "requires the input encoder_states" in caplog.text


def test_a_switch_that_chooses_nothing_is_refused(tmp_path) -> None:
    switch = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    with pytest.raises(TamizError, match="use_cache_branch with 0 uses, expected one If"):
        export(write(tmp_path / "in", cached(switch), None), tmp_path)


@pytest.mark.parametrize(
    ("key", "value"), [("offset", "-4096"), ("offset", "1e3"), ("offset", ""), ("length", "-1")]
)
def test_a_place_of_external_data_that_is_no_number_is_named(
    tmp_path: Path, key: str, value: str
) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in "xy")
    weight = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([product], "g", [x], [y], [weight])
    path = tmp_path / "model.onnx"
    written = helper.make_model(graph)
    onnx.save(written, path, save_as_external_data=True, location="w.data", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        entry.value = value if entry.key == key else entry.value
    path.write_bytes(model.SerializeToString())
    (tmp_path / "bundle").mkdir()
    said = rf"model\.onnx: external data of w: {key}: found '{value}', expected a number of bytes"
    with pytest.raises(TamizError, match=said):
        export(path, tmp_path / "bundle")
