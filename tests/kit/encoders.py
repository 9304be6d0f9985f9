"""Bundles of small encoders."""

from pathlib import Path

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
    graph = helper.make_graph([node], "encoder", ids, [hidden], [constant])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    vocabulary = {"[CLS]": 0, "[SEP]": 1} | {f"w{n}": n for n in range(2, WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w2"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    write_manifest(folder, "dense", Source("made"))
    return folder


def write_text(path: Path, words: int) -> Path:
    """A text of random words."""
    numbers = np.random.default_rng(1).integers(2, WORDS, words)
    path.write_text(" ".join(f"w{number}" for number in numbers))
    return path
