"""Gemma 3n: several residual streams, inputs of layers, layers that share keys and values.

``reference_streams.json`` holds the logits of ids 0 to 7 after the 33 tokens of `ids`, and the 50
greedy tokens after them: of `random_streams()` from transformers 5.24 (``AutoModelForCausalLM``
with ``attn_implementation="eager"``, float32), and of `DEEP` as GGUF from llama-cpp-python 0.3.36
(``Llama(path, n_ctx=128, logits_all=True, type_k=0, type_v=0)``), which knows 4 streams, inputs of
256 elements, ranks of 64, and models that share from layer 20 on alone.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit.reference_runs import check, ids
from kit.streams import TinyStreams, config, random_streams, write_folder, write_gguf
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey
from tamiz_exporters.gguf_config import hf_config
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.hf_model import HfModel

VALUES = json.loads(Path(__file__).with_name("reference_streams.json").read_text())
#: Of the largest logit. llama.cpp looks GELU up in a table of float16.
RELATIVE_ERROR, OF_LLAMA_CPP = 2e-6, 1e-4
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 5e-3
#: Loud layers would make much of llama.cpp's GELU.
DEEP: dict[str, Any] = {
    **{"layers": 25, "shared": 5, "every": 5, "width": 256, "rank": 64},
    **{"sparsity": (0.95,) * 10, "loud": 0.1},
}


@pytest.mark.parametrize("towers", [False, True])
def test_logits_and_greedy_tokens_equal_those_of_transformers(
    tmp_path: Path, plugins: Plugins, caplog: pytest.LogCaptureFixture, towers: bool
) -> None:
    write_folder(tmp_path / "hf", random_streams(), towers=towers)
    with caplog.at_level(logging.WARNING):
        bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    check(bundle.path, VALUES["transformers"], RELATIVE_ERROR)
    beside = "3 tensors are ignored, such as model.vision_tower.stem.weight"
    assert (beside in caplog.text) == towers


def test_logits_and_greedy_tokens_equal_those_of_llama_cpp(
    tmp_path: Path, plugins: Plugins
) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_streams(**DEEP))
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins, "float32")
    check(bundle.path, VALUES["llama.cpp"], OF_LLAMA_CPP)


def test_both_kinds_of_files_say_the_same(tmp_path: Path) -> None:
    model = random_streams()
    write_gguf(tmp_path / "tiny.gguf", model)
    said = hf_config(GgufModel(GgufFile(tmp_path / "tiny.gguf")))
    expected = config(model)
    for key in ("num_kv_shared_layers", "layer_types", "sliding_window", "laurel_rank"):
        assert said[key] == expected[key]
    for key in ("hidden_size_per_layer_input", "altup_num_inputs", "final_logit_softcapping"):
        assert said[key] == expected[key]


@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_a_stored_model_gives_the_logits_of_its_file(
    tmp_path: Path, plugins: Plugins, kind: Type
) -> None:
    held = write_gguf(tmp_path / "tiny.gguf", random_streams(sparsity=()), kind)
    write_folder(tmp_path / "held", held)
    stored = export(str(tmp_path / "tiny.gguf"), tmp_path / "stored", plugins)
    plain = export(str(tmp_path / "held"), tmp_path / "plain", plugins, "float32")
    found, expected = (Model.load(each.path).logits(ids()) for each in (stored, plain))
    bound = RELATIVE_ERROR if kind is Type.F32 else STORED_ERROR
    assert np.abs(found - expected).max() / np.abs(expected).max() < bound


def test_the_embedding_of_layers_keeps_its_format_and_is_read_by_rows(
    tmp_path: Path, plugins: Plugins
) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_streams(), Type.Q8_0)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    graph = ir.load(bundle.path / "model.onnx").graph
    lookups = [node for node in graph if node.op_type == "BlockGather"]
    table = next(node for node in lookups if "per_layer" in (node.name or ""))
    assert table.attributes.get_string("format", "") == "q8_0"
    assert table.attributes.get_int("k", 0) == 6 * 32


def test_tokens_that_the_embedding_of_layers_lacks_have_the_row_of_token_0(
    tmp_path: Path, plugins: Plugins
) -> None:
    """So transformers reads tokens of pictures and sound, which come last."""
    short = random_streams(rows=100)
    table = "embed_tokens_per_layer.weight"
    rows = short.weights[table]
    whole = TinyStreams(
        weights=short.weights | {table: np.concatenate([rows, np.repeat(rows[:1], 169, axis=0)])}
    )
    found = []
    for number, model in enumerate((short, whole)):
        folder = write_folder(tmp_path / f"hf{number}", model)
        bundle = export(str(folder), tmp_path / f"dense{number}", plugins, "float32")
        found.append(Model.load(bundle.path).logits(ids()))
    np.testing.assert_array_equal(found[0], found[1])


def test_layers_that_share_have_no_cache_and_are_fused(tmp_path: Path, plugins: Plugins) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_streams(), Type.Q8_0)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    options = Options(max_dppl=None)
    build(dense.path, tmp_path / "built", choose(plugins.techniques(), {}), plugins, options)
    graph = ir.load(tmp_path / "built" / "model.onnx").graph
    assert survey(dense, plugins).bytes_of_a_token == 4 * 2 * (2 * 16) * 4
    keys = [value.name for value in graph.inputs if (value.name or "").endswith(".key")]
    assert keys == [f"past_key_values.{layer}.key" for layer in range(4)]
    programs = [n.attributes.get_string("program", "") for n in graph if n.op_type == "Fused"]
    attentions = [
        line.split(" : ")[1].split(" -> ")
        for program in programs
        for line in program.splitlines()
        if line.startswith("Attention ")
    ]
    assert len(attentions) == 6
    assert [inputs.split()[1] == "-" for inputs, _ in attentions] == [False] * 4 + [True] * 2


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("altup_active_idx", 1, "altup_active_idx: found 1, expected 0"),
        ("altup_num_inputs", 1, "altup_num_inputs: found 1, expected at least 2"),
        ("num_kv_shared_layers", 6, "found 6, expected fewer than 6, the layers"),
        ("num_kv_shared_layers", 5, "so many that a layer of each kind of attention is before"),
        ("activation_sparsity_pattern", [0.5], "expected 6 numbers from 0 to less than 1"),
        ("activation_sparsity_pattern", 1.0, "expected 6 numbers from 0 to less than 1"),
        ("intermediate_size", [96, 128], "expected one number in all layers"),
    ],
)
def test_what_a_folder_says_and_the_graph_lacks_is_refused(
    tmp_path: Path, key: str, value: Any, expected: str
) -> None:
    write_folder(tmp_path / "hf", random_streams(), **{key: value})
    with pytest.raises(TamizError, match=expected):
        HfModel(tmp_path / "hf").weights()


def test_a_gguf_without_keys_has_what_llama_cpp_has(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_streams(**DEEP), keys=False)
    config = GgufModel(GgufFile(tmp_path / "tiny.gguf")).config
    assert config.streams is not None
    assert config.streams.deviations == (1.6448533535003662,) * 10 + (None,) * 15
    shares = [attention.shares for attention in config.attentions]
    assert shares == [None] * 20 + [18, 18, 18, 18, 19]
