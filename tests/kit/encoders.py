"""Bundles of small encoders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tokenizers
from onnx import TensorProto, helper, numpy_helper
from tokenizers import processors

from tamiz.files.bundle import Source, write_manifest

WORDS = 50
WIDTH = 8


def write_encoder(folder: Path, noise: float = 0.0, width: int = WIDTH, inputs: str = "") -> Path:
    """An encoder that looks its tokens up in a table, and a tokenizer that splits at spaces.

    Args:
        folder: The bundle's folder; must not exist.
        noise: Size of the table's errors.
        width: Numbers of a hidden state.
        inputs: Name of one more input.
    """
    generator = np.random.default_rng(0)
    values = generator.standard_normal((WORDS, width), np.float32)
    values += np.float32(noise) * generator.standard_normal((WORDS, width), np.float32)
    node = helper.make_node("Gather", ["table", "input_ids"], ["last_hidden_state"])
    names = ["input_ids", "attention_mask", *filter(None, [inputs])]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in names]
    hidden = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "length", width]
    )
    constant = numpy_helper.from_array(values, "table")
    return _write(folder, helper.make_graph([node], "encoder", ids, [hidden], [constant]))


def write_classifier(folder: Path, labels: int = 1, **config: Any) -> Path:
    """A classifier: of each text the sum over its tokens of a row of a table, and of their kinds.

    Args:
        folder: The bundle's folder; must not exist.
        labels: Number of logits.
        config: Fields of its configuration.
    """
    g = _Graph()
    rows = g.add("Gather", g.weight(WORDS, labels), "input_ids")
    kinds = g.add("Cast", "token_type_ids", to=TensorProto.FLOAT)
    rows = g.add("Add", rows, g.add("Unsqueeze", kinds, g.constant([2], np.int64)))
    mask = g.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    rows = g.add("Mul", rows, g.add("Unsqueeze", mask, g.constant([2], np.int64)))
    summed = g.add("ReduceSum", rows, g.constant([1], np.int64), keepdims=0)
    g.nodes.append(helper.make_node("Identity", [summed], ["logits"]))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in names]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", labels])
    _write(folder, helper.make_graph(g.nodes, "classifier", ids, [logits], g.constants))
    given = {"max_position_embeddings": 512, "pad_token_id": 2} | config
    (folder / "config.json").write_text(json.dumps(given))
    write_manifest(folder, "dense", Source("made"))
    return folder


def _write(folder: Path, graph: onnx.GraphProto) -> Path:
    """A bundle of a graph, with a tokenizer."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    write_tokenizer(folder)
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    write_manifest(folder, "dense", Source("made"))
    return folder


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that splits at spaces, between [CLS] and [SEP]."""
    vocabulary = {"[CLS]": 0, "[SEP]": 1} | {f"w{n}": n for n in range(2, WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w2"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 0), ("[SEP]", 1)],
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[SEP]"}'
    )


class _Graph:
    """Nodes and constants of a graph; `add` gives the name of a node's output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(0)

    def constant(self, values: object, kind: type = np.float32) -> str:
        name = f"constant.{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, kind), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.standard_normal(shape) / shape[0] ** 0.5)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def linear(self, x: str, n: int, k: int) -> str:
        product = self.add("MatMul", x, self.weight(n, k))
        return self.add("Add", self.constant(0.1 * self.random.standard_normal(k)), product)

    def norm(self, x: str, width: int) -> str:
        scale = self.constant(1 + 0.1 * self.random.standard_normal(width))
        return self.add("LayerNormalization", x, scale, self.constant(np.zeros(width)), axis=-1)


def write_transformer(
    folder: Path,
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    bias: bool = False,
    pooling: str = "",
) -> Path:
    """An encoder as torch exports one: attention with a mask, GELU by Erf, LayerNormalization.

    Args:
        folder: The bundle's folder; must not exist.
        layers: Its layers.
        width: Numbers of a hidden state.
        heads: Heads of an attention.
        bias: Whether each layer adds a product that no token changes.
        pooling: Mode of its pooling; none for an encoder without one, whose embedding is the mean.
    """
    g = _Graph()
    mask = g.add("Cast", "attention_mask", to=TensorProto.FLOAT)
    hidden = g.add("Mul", g.add("Sub", g.constant(1), mask), g.constant(-1e4))
    hidden = g.add("Unsqueeze", hidden, g.constant([1, 2], np.int64))
    x = g.norm(
        g.add("Gather", g.constant(g.random.standard_normal((WORDS, width))), "input_ids"), width
    )
    split = g.constant([0, 0, heads, width // heads], np.int64)
    joined = g.constant([0, 0, width], np.int64)
    for _ in range(layers):
        if bias:
            row = g.constant(g.random.standard_normal((1, 1, width)))
            x = g.add("Add", x, g.add("MatMul", row, g.weight(width, width)))
        q, k, v = (g.add("Reshape", g.linear(x, width, width), split) for _ in range(3))
        turned = g.add("Transpose", k, perm=[0, 2, 3, 1])
        scores = g.add("MatMul", g.add("Transpose", q, perm=[0, 2, 1, 3]), turned)
        scores = g.add("Div", scores, g.constant((width // heads) ** 0.5))
        p = g.add("Softmax", g.add("Add", scores, hidden), axis=-1)
        mixed = g.add("MatMul", p, g.add("Transpose", v, perm=[0, 2, 1, 3]))
        mixed = g.add("Reshape", g.add("Transpose", mixed, perm=[0, 2, 1, 3]), joined)
        x = g.norm(g.add("Add", g.linear(mixed, width, width), x), width)
        up = g.linear(x, width, 2 * width)
        erf = g.add("Erf", g.add("Div", up, g.constant(2**0.5)))
        gelu = g.add("Mul", g.add("Mul", up, g.add("Add", erf, g.constant(1))), g.constant(0.5))
        x = g.norm(g.add("Add", g.linear(gelu, 2 * width, width), x), width)
    g.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    names = ["input_ids", "attention_mask"]
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "length"]) for n in names]
    output = helper.make_tensor_value_info(
        "last_hidden_state", TensorProto.FLOAT, ["batch", "length", width]
    )
    _write(folder, helper.make_graph(g.nodes, "encoder", ids, [output], g.constants))
    if pooling:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(f'{{"pooling_mode": "{pooling}"}}')
        write_manifest(folder, "dense", Source("made"))
    return folder


def write_text(path: Path, words: int) -> Path:
    """A text of random words."""
    numbers = np.random.default_rng(1).integers(2, WORDS, words)
    path.write_text(" ".join(f"w{number}" for number in numbers))
    return path
