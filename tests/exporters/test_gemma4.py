"""Gemma 4: heads of two sizes, inputs of layers, keys that are values, experts beside a block.

``reference_gemma4.json`` holds the logits of ids 0 to 7 after the 33 tokens of `ids`, and the 50
greedy tokens after them, of each model of `kit.gemma4.MODELS`, from transformers 5.24
(``AutoModelForCausalLM`` with ``attn_implementation="eager"``, float32).
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

from kit.gemma4 import MODELS, config, random_gemma4, write_folder, write_gguf
from kit.reference_runs import check, ids
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

VALUES = json.loads(Path(__file__).with_name("reference_gemma4.json").read_text())
#: Of the largest logit. Scores have no factor, so random heads make much of a rounding.
RELATIVE_ERROR = 5e-6
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 2e-2


@pytest.mark.parametrize("name", MODELS)
def test_logits_and_greedy_tokens_equal_those_of_transformers(
    tmp_path: Path, plugins: Plugins, name: str
) -> None:
    model = random_gemma4(**MODELS[name])
    write_folder(tmp_path / "hf", model)
    write_gguf(tmp_path / "tiny.gguf", model)
    for number, path in enumerate((tmp_path / "hf", tmp_path / "tiny.gguf")):
        check(
            export(str(path), tmp_path / f"dense{number}", plugins, "float32").path,
            VALUES[name],
            RELATIVE_ERROR,
        )


def test_the_text_model_lies_beside_towers_and_has_its_layers_listed(
    tmp_path: Path, plugins: Plugins, caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers 5.24 saves a model that reads pictures and sound."""
    own = {str(layer): {"head_dim": 32, "num_key_value_heads": 1} for layer in (1, 3)}
    changes: dict[str, Any] = {"per_layer_config": own, "global_head_dim": None}
    changes |= {"num_global_key_value_heads": None, "use_bidirectional_attention": "vision"}
    model = random_gemma4(**MODELS["experts"])
    write_folder(tmp_path / "hf", model, towers=True, **changes)
    with caplog.at_level(logging.WARNING):
        bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    check(bundle.path, VALUES["experts"], RELATIVE_ERROR)
    assert "3 tensors are ignored, such as model.vision_tower.stem.weight" in caplog.text


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", [Type.F32, Type.Q8_0])
def test_a_stored_model_gives_the_logits_of_its_file(
    tmp_path: Path, plugins: Plugins, name: str, kind: Type
) -> None:
    held = write_gguf(tmp_path / "tiny.gguf", random_gemma4(**MODELS[name]), kind)
    write_folder(tmp_path / "held", held)
    stored = export(str(tmp_path / "tiny.gguf"), tmp_path / "stored", plugins)
    plain = export(str(tmp_path / "held"), tmp_path / "plain", plugins, "float32")
    found, expected = (Model.load(each.path).logits(ids()) for each in (stored, plain))
    bound = RELATIVE_ERROR if kind is Type.F32 else STORED_ERROR
    assert np.abs(found - expected).max() / np.abs(expected).max() < bound


@pytest.mark.parametrize("name", MODELS)
def test_both_kinds_of_files_say_the_same(tmp_path: Path, name: str) -> None:
    model = random_gemma4(**MODELS[name])
    write_gguf(tmp_path / "tiny.gguf", model)
    said, expected = hf_config(GgufModel(GgufFile(tmp_path / "tiny.gguf"))), config(model)
    heads = model.global_heads
    assert said["num_global_key_value_heads"] == heads
    for key in ("head_dim", "global_head_dim", "num_key_value_heads", "attention_k_eq_v"):
        assert said[key] == expected[key]
    for key in ("num_kv_shared_layers", "use_double_wide_mlp", "intermediate_size"):
        assert said[key] == expected[key]
    for key in ("layer_types", "hidden_size_per_layer_input", "enable_moe_block"):
        assert said[key] == expected[key]


def test_layers_are_fused_and_their_caches_have_the_size_of_their_heads(
    tmp_path: Path, plugins: Plugins
) -> None:
    write_gguf(tmp_path / "tiny.gguf", random_gemma4(**MODELS["keys that are values"]), Type.Q8_0)
    dense = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins)
    options = Options(max_dppl=None)
    build(dense.path, tmp_path / "built", choose(plugins.techniques(), {}), plugins, options)
    graph = ir.load(tmp_path / "built" / "model.onnx").graph
    shapes = [list(value.shape or ()) for value in graph.inputs if "past_key" in (value.name or "")]
    assert [(shape[1], shape[3]) for shape in shapes] == [(2, 16)] * 2 + [(1, 32)] * 2 + [
        (2, 16)
    ] * 2 + [(1, 32)] * 2
    assert survey(dense, plugins).bytes_of_a_token == 2 * (2 * 2 * 16 + 2 * 32) * 4
    programs = [n.attributes.get_string("program", "") for n in graph if n.op_type == "Fused"]
    lines = "\n".join(programs).splitlines()
    assert sum(line.startswith("Attention ") for line in lines) == 4


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (
            "layer_types",
            ["sliding_attention", "full_attention"] + ["sliding_attention"] * 2,
            "last",
        ),
        ("num_global_key_value_heads", 3, "found 3, expected a divisor of 4"),
        ("per_layer_config", {"1": {"head_dim": 32}}, "the same for each layer of full_attention"),
        ("use_bidirectional_attention", "all", "found all, expected true or false"),
        ("global_head_dim", 64, "shape"),
    ],
)
def test_what_a_folder_says_and_the_graph_lacks_is_refused(
    tmp_path: Path, key: str, value: Any, expected: str
) -> None:
    model = random_gemma4(**MODELS["keys that are values"])
    write_folder(tmp_path / "hf", model, **{key: value})
    with pytest.raises(TamizError, match=expected):
        HfModel(tmp_path / "hf").weights()
