"""Routers that take experts of groups, and layers that predict tokens further ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kit import tiny_gguf, tiny_safetensors
from kit.arrays import relative_error
from kit.mixtures import MIXTURES
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.hf_model import HfModel

RELATIVE_ERROR = 1e-6
GLM = MIXTURES["glm4moe"]


def ids() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 250, (1, 33))


def check_the_first_layers(
    folder: Path, source: Path, model: tiny_gguf.TinyModel, plugins: Plugins
) -> None:
    """The logits are those of the model without its last layer."""
    bundle = export(str(source), folder / "dense", plugins, "float32")
    found = Model.load(bundle.path, threads=1).logits(ids())
    shorter = replace(model, layers=model.layers - 1)
    expected = tiny_gguf.logits(shorter, ids(), np.ones_like(ids()), np.arange(33)[None])
    assert relative_error(found, expected) < RELATIVE_ERROR


def test_a_gguf_leaves_out_layers_that_predict_further_tokens(tmp_path, plugins, caplog) -> None:
    model = tiny_gguf.random_model(**GLM)
    path = tmp_path / "tiny.gguf"
    held = tiny_gguf.write(path, model, glm4moe__nextn_predict_layers=1)
    check_the_first_layers(tmp_path, path, held, plugins)
    assert "tensors are ignored, such as blk.2." in caplog.text


def test_a_folder_leaves_out_layers_that_predict_further_tokens(tmp_path, plugins, caplog) -> None:
    model = tiny_gguf.random_model(**GLM)
    shorter: dict[str, Any] = {"num_hidden_layers": model.layers - 1, "num_nextn_predict_layers": 1}
    source = tiny_safetensors.write(tmp_path / "hf", model, **shorter)
    check_the_first_layers(tmp_path, source, model, plugins)
    assert "tensors are ignored, such as model.layers.2." in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("expert_gating_func", 4, "1 or 2 or 3"),
        ("expert_group_count", 4, "a divisor of 6"),
        ("expert_group_used_count", 4, "groups that hold 2 experts, of 3"),
        ("nextn_predict_layers", 3, "fewer than all layers"),
    ],
)
def test_absurd_keys_of_a_gguf_are_refused(tmp_path, key, value, expected) -> None:
    path, model = tmp_path / "tiny.gguf", tiny_gguf.random_model(**GLM)
    tiny_gguf.write(path, model, **{f"glm4moe__{key}": value})
    with pytest.raises(TamizError, match=f"{key}: found {value}, expected {expected}"):
        GgufModel(GgufFile(path))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("n_group", 4, "a divisor of 6"),
        ("topk_group", 4, "groups that hold 2 experts, of 3"),
        ("use_qk_norm", False, "true, as model.layers.0.self_attn"),
    ],
)
def test_absurd_fields_of_a_folder_are_refused(tmp_path, key, value, expected) -> None:
    tiny_safetensors.write(tmp_path, tiny_gguf.random_model(**GLM), **{key: value})
    with pytest.raises(TamizError, match=f"{key}: found {value}, expected {expected}"):
        HfModel(tmp_path)


@pytest.mark.parametrize(("number", "score"), [(1, "softmax"), (3, "softmax_of_chosen")])
def test_a_gguf_names_the_score_of_its_router(tmp_path, number, score) -> None:
    path, model = tmp_path / "tiny.gguf", tiny_gguf.random_model(**GLM)
    tiny_gguf.write(path, model, glm4moe__expert_gating_func=number)
    experts = GgufModel(GgufFile(path)).config.experts
    assert experts is not None
    assert experts.score == score
