"""Folders with graphs as onnxruntime-genai, transformers.js and optimum write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.survey.export import export

_DECODER = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask,
   float[batch, heads, past, size] past_key, float[batch, heads, past, size] past_value)
=> (float[batch, sequence, 8] logits, float[batch, heads, total, size] present_key,
    float[batch, heads, total, size] present_value) {
    x = Gather(w, input_ids)
    logits = MatMul(x, w)
    parts = Unsqueeze(x, axis)
    heads2 = Slice(parts, zero, four, last)
    new = Concat <axis = 1> (heads2, heads2)
    present_key = Concat <axis = 2> (past_key, new)
    present_value = Concat <axis = 2> (past_value, new)
}
"""
_NAMES = {
    "past_key": "past_key_values.0.key",
    "past_value": "past_key_values.0.value",
    "present_key": "present.0.key",
    "present_value": "present.0.value",
}
GENAI = {
    "model": {
        "context_length": 64,
        "type": "llama",
        "vocab_size": 8,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "decoder": {
            "filename": "decoder.onnx",
            "head_size": 4,
            "hidden_size": 8,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "num_hidden_layers": 1,
        },
    },
    "search": {"do_sample": True, "top_k": 7, "num_beams": 1, "max_length": 64},
}


def decoder() -> onnx.ModelProto:
    """A decoder whose caches do not say their sizes."""
    model = onnx.parser.parse_model(_DECODER)
    constants = {
        "w": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32),
        "axis": np.array([1]),
        "zero": np.array([0]),
        "four": np.array([4]),
        "last": np.array([-1]),
    }
    for name, array in constants.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for value in (*model.graph.input, *model.graph.output):
        value.name = _NAMES.get(value.name, value.name)
    for node in model.graph.node:
        node.input[:] = [_NAMES.get(name, name) for name in node.input]
        node.output[:] = [_NAMES.get(name, name) for name in node.output]
    return model


def write(path: Path, model: onnx.ModelProto | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model or decoder(), path)
    return path


def test_a_folder_of_genai(tmp_path: Path, plugins: Plugins) -> None:
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling

    write(tmp_path / "genai" / "decoder.onnx")
    (tmp_path / "genai" / "genai_config.json").write_text(json.dumps(GENAI))
    bundle = export(str(tmp_path / "genai"), tmp_path / "dense", plugins)
    assert bundle.json("config.json") == {
        "max_position_embeddings": 64,
        "vocab_size": 8,
        "model_type": "llama",
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "hidden_size": 8,
        "head_dim": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
    }
    assert bundle.json("generation_config.json") == {
        "do_sample": True,
        "top_k": 7,
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
    }
    model = Model.load(bundle.path, threads=1)
    assert (model.limit, model.stop_ids) == (64, {2, 3})
    greedy = Sampling(temperature=0, ignore_eos=True)
    assert len(list(model.generate([1, 4], greedy, 3))) == 3
    shapes = [value.shape for value in model.session.get_inputs()[2:]]
    assert all((shape[1], shape[3]) == (2, 4) for shape in shapes)


def test_a_folder_of_genai_with_several_graphs_is_refused(tmp_path: Path, plugins: Plugins) -> None:
    write(tmp_path / "genai" / "decoder.onnx")
    config = {"model": {"type": "vision", "decoder": {"pipeline": []}}}
    (tmp_path / "genai" / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(TamizError, match=r"filename is None, expected the name of one file"):
        export(str(tmp_path / "genai"), tmp_path / "dense", plugins)


@pytest.mark.parametrize("file", ["onnx/model_q4.onnx", "model_q4.onnx"])
def test_one_graph_of_a_folder_is_chosen(tmp_path: Path, plugins: Plugins, file: str) -> None:
    chosen = decoder()
    chosen.graph.output[0].name = chosen.graph.node[1].output[0] = "logits"
    chosen.graph.name = "chosen"
    for name in ("model.onnx", "model_fp16.onnx"):
        write(tmp_path / "hub" / "onnx" / name)
    onnx.save(
        chosen,
        tmp_path / "hub" / "onnx" / "model_q4.onnx",
        save_as_external_data=True,
        location="model_q4.onnx_data",
        size_threshold=1,
    )
    (tmp_path / "hub" / "config.json").write_text(
        '{"max_position_embeddings": 16, "num_attention_heads": 2, "hidden_size": 8}'
    )
    bundle = export(str(tmp_path / "hub"), tmp_path / "dense", plugins, file=file)
    assert onnx.load(bundle.path / "model.onnx").graph.name == "chosen"
    assert bundle.json("config.json")["max_position_embeddings"] == 16


def test_several_graphs_ask_for_a_choice(tmp_path: Path, plugins: Plugins) -> None:
    for name in ("model_q4.onnx", "model_fp16.onnx"):
        write(tmp_path / "hub" / "onnx" / name)
    source, target = str(tmp_path / "hub"), tmp_path / "dense"
    shown = r"onnx/model_fp16\.onnx, onnx/model_q4\.onnx"
    with pytest.raises(TamizError, match=rf"found 2 graphs \({shown}\).*choose one with --file"):
        export(source, target, plugins)
    with pytest.raises(TamizError, match=rf"no graph other\.onnx, expected one of: {shown}"):
        export(source, target, plugins, file="other.onnx")
    with pytest.raises(TamizError, match="no graph"):
        export(source, target, plugins, file="../hub/onnx/model_q4.onnx")
    assert not target.exists()


def test_a_file_takes_no_choice(tmp_path: Path, plugins: Plugins) -> None:
    path = write(tmp_path / "a.onnx")
    with pytest.raises(TamizError, match=r"found --file b\.onnx, expected none for a file"):
        export(str(path), tmp_path / "dense", plugins, file="b.onnx")


def merged(prompt_scale: float = 1.0) -> onnx.ModelProto:
    """Both branches compute the same, but for a factor on the logits of a prompt."""
    model, graph = decoder(), onnx.GraphProto()
    graph.CopyFrom(model.graph)
    branches = {}
    for name, factor in (("then_branch", 1.0), ("else_branch", prompt_scale)):
        inner = onnx.GraphProto(name=name)
        inner.node.extend(graph.node)
        inner.output.extend(graph.output)
        for node in inner.node:
            node.output[:] = [f"{name}.{output}" for output in node.output]
            node.input[:] = [
                i if any(i == v.name for v in (*graph.input, *graph.initializer)) else f"{name}.{i}"
                for i in node.input
            ]
        inner.initializer.append(
            onnx.numpy_helper.from_array(np.array(factor, np.float32), f"{name}.factor")
        )
        inner.node[1].output[0] = f"{name}.plain"
        scaled = onnx.helper.make_node(
            "Mul", [f"{name}.plain", f"{name}.factor"], [f"{name}.logits"]
        )
        inner.node.append(scaled)
        for output in inner.output:
            output.name = f"{name}.{output.name}"
        branches[name] = inner
    del model.graph.node[:]
    names = [output.name for output in graph.output]
    model.graph.node.append(onnx.helper.make_node("If", ["use_cache_branch"], names, **branches))
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1])
    )
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) == 4:
            dims[1].dim_value, dims[3].dim_value = 2, 4
    return model


def test_a_merged_decoder_is_taken_apart(tmp_path: Path, plugins: Plugins) -> None:
    path = write(tmp_path / "decoder_model_merged.onnx", merged())
    bundle = export(str(path), tmp_path / "dense", plugins)
    found = onnx.load(bundle.path / "model.onnx").graph
    assert [value.name for value in found.input] == [
        "input_ids",
        "attention_mask",
        "past_key_values.0.key",
        "past_key_values.0.value",
    ]
    assert [value.name for value in found.output] == ["logits", "present.0.key", "present.0.value"]
    assert "If" not in [node.op_type for node in found.node]
    feeds: dict[str, Any] = {
        "input_ids": np.array([[1, 2, 3]]),
        "attention_mask": np.ones((1, 5), np.int64),
        "past_key_values.0.key": np.ones((1, 2, 2, 4), np.float32),
        "past_key_values.0.value": np.ones((1, 2, 2, 4), np.float32),
    }
    results = ort.InferenceSession(bundle.path / "model.onnx").run(None, feeds)
    expected = ort.InferenceSession(path).run(None, feeds | {"use_cache_branch": np.array([True])})
    for a, b in zip(results, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_merged_decoder_whose_branches_differ_is_refused(
    tmp_path: Path, plugins: Plugins
) -> None:
    path = write(tmp_path / "decoder_model_merged.onnx", merged(1.5))
    with pytest.raises(TamizError, match="its two branches give other logits for a prompt"):
        export(str(path), tmp_path / "dense", plugins)
