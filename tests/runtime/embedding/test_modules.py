"""Modules of sentence-transformers behind an encoder, against version 6.2.0; see test_pooling."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from kit.encoders import WIDTH, write_encoder
from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.modules import Modules, Normalize, read_modules
from tamiz.runtime.embedding.pooling import Pooling

POOLED = np.array([[0.15, -0.05, 0.3], [-0.5, 0.75, 1 / 6]], np.float32)
WEIGHT = np.array([[(3 * n + 5 * k + n * k) % 7 / 5 - 0.5 for k in range(3)] for n in range(2)])
BIAS = np.array([0.25, -0.5])
RESIDUAL = np.array([[1, 0, 0.5], [0, -1, 0]])
#: By activation, and whether there is a residual: the result of Dense.
EXPECTED = {
    ("linear.Identity", False): [[0.18, -0.57], [0.891667, -0.675]],
    ("linear.Identity", True): [[0.48, -0.52], [0.475, -1.425]],
    ("activation.Tanh", False): [[0.178081, -0.515359], [0.712216, -0.588259]],
    ("activation.Tanh", True): [[0.478081, -0.465359], [0.295549, -1.338259]],
    ("activation.ReLU", False): [[0.18, 0.0], [0.891667, 0.0]],
    ("activation.ReLU", True): [[0.48, 0.05], [0.475, -0.75]],
    ("activation.Sigmoid", False): [[0.544879, 0.361237], [0.709234, 0.337378]],
    ("activation.Sigmoid", True): [[0.844879, 0.411237], [0.292567, -0.412622]],
    ("activation.GELU", False): [[0.102856, -0.162073], [0.725562, -0.168641]],
    ("activation.GELU", True): [[0.402856, -0.112073], [0.308895, -0.918641]],
}
TODAY = "sentence_transformers.base.modules"
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": f"{TODAY}.dense.Dense"}
NORMALIZE = {"path": "3_Normalize", "type": f"{TODAY}.normalize.Normalize"}


def bundle(folder: Path, modules: list[dict[str, str]] | None, **files: Any) -> Bundle:
    """An encoder with modules; `files` are contents of ``NUMBER_NAME/config.json``."""
    write_encoder(folder)
    if modules is not None:
        first = {"path": "", "type": f"{TODAY}.transformer.Transformer"}
        (folder / "modules.json").write_text(json.dumps([first, *modules]))
    for name, config in files.items():
        (folder / name[1:]).mkdir()
        (folder / name[1:] / "config.json").write_text(json.dumps(config))
    write_manifest(folder, "dense", Source("made"))
    return Bundle.open(folder)


def write_dense(folder: Path, weight: Any, **tensors: Any) -> None:
    named = {"linear.weight": weight, **{k.replace("_", "."): v for k, v in tensors.items()}}
    save_file(
        {k: np.asarray(v, np.float32) for k, v in named.items()}, folder / "model.safetensors"
    )
    write_manifest(folder.parent, "dense", Source("made"))


@pytest.mark.parametrize(("config", "modes"), [
    ({}, ("mean",)),
    ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, ("cls",)),
    ({"pooling_mode_lasttoken": True}, ("lasttoken",)),
    ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, ("max", "mean")),
    ({"embedding_dimension": WIDTH, "pooling_mode": "cls"}, ("cls",)),
    ({"pooling_mode": "max", "pooling_mode_cls_token": True}, ("max",)),
    ({"pooling_mode": ["lasttoken", "cls"]}, ("lasttoken", "cls")),
])  # fmt: skip
@pytest.mark.parametrize("listed", [True, False])
def test_both_spellings_of_a_pooling(
    config: dict[str, Any], modes: tuple[str, ...], listed: bool, tmp_path: Path
) -> None:
    found = bundle(tmp_path / "e", [POOLING] if listed else None, _1_Pooling=config)
    modules = read_modules(found, WIDTH)
    assert modules == Modules(Pooling(modes))
    assert modules.width(WIDTH) == WIDTH * len(modes)


@pytest.mark.parametrize("name", sorted({name for name, _ in EXPECTED}))
@pytest.mark.parametrize("residual", [False, True])
def test_a_product_gives_what_sentence_transformers_gives(
    name: str, residual: bool, tmp_path: Path
) -> None:
    config = {"activation_function": f"torch.nn.modules.{name}", "use_residual": residual}
    bundle(tmp_path / "e", [POOLING, DENSE], _1_Pooling={}, _2_Dense=config)
    more = {"residual_weight": RESIDUAL} if residual else {}
    write_dense(tmp_path / "e" / "2_Dense", WEIGHT, linear_bias=BIAS, **more)
    modules = read_modules(Bundle.open(tmp_path / "e"), 3)
    (dense,) = modules.layers
    np.testing.assert_allclose(dense(POOLED), EXPECTED[name, residual], atol=1e-6)
    assert modules.width(3) == 2
    x, random = POOLED.astype(np.float64), np.random.default_rng(0)
    gradient, direction = random.standard_normal((2, 2)), random.standard_normal((2, 3))
    ends = [dense(x + way * 1e-5 * direction) for way in (1, -1)]
    slope = float((gradient * (ends[0] - ends[1])).sum()) / 2e-5
    assert float((dense.back(x, gradient) * direction).sum()) == pytest.approx(slope, rel=1e-6)


def test_modules_are_applied_in_their_order(tmp_path: Path) -> None:
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    bundle(tmp_path / "e", [POOLING, NORMALIZE, DENSE, NORMALIZE], _1_Pooling={}, _2_Dense=identity)
    write_dense(tmp_path / "e" / "2_Dense", WEIGHT)
    modules = read_modules(Bundle.open(tmp_path / "e"), 3)
    hidden, mask = POOLED[:, None], np.ones((2, 1), np.int64)
    unit = POOLED / np.linalg.norm(POOLED, axis=1, keepdims=True)
    expected = unit @ WEIGHT.T
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(modules(hidden, mask), expected, atol=1e-6)
    assert modules.directions() == modules


def test_normalize_has_the_slope_of_differences() -> None:
    x, random = POOLED.astype(np.float64), np.random.default_rng(0)
    gradient, direction = random.standard_normal((2, 3)), random.standard_normal((2, 3))
    ends = [Normalize()(x + way * 1e-6 * direction) for way in (1, -1)]
    slope = float((gradient * (ends[0] - ends[1])).sum()) / 2e-6
    found = Normalize().back(x, gradient)
    assert float((found * direction).sum()) == pytest.approx(slope, rel=1e-6)


def test_without_a_list_of_modules_an_embedding_is_the_mean(tmp_path: Path) -> None:
    assert read_modules(bundle(tmp_path / "e", None), WIDTH) == Modules(Pooling(("mean",)))


@pytest.mark.parametrize(("modules", "config", "reason"), [
    ([{**POOLING, "type": "sentence_transformers.models.LSTM"}], {}, "models.LSTM at '1_Pooling'"),
    ([POOLING, {"path": "2_W", "type": "pylate.models.Dense"}], {}, "pylate.models.Dense"),
    ([POOLING, POOLING], {}, "expected Transformer, one Pooling"),
    ([POOLING], {"pooling_mode": "median"}, r"pooling_mode is 'median'"),
    ([POOLING], {"pooling_mode": []}, r"pooling_mode is \[\], expected a mode"),
    ([POOLING], {"pooling_mode_median": True}, "found pooling_mode_median"),
    ([POOLING], {"word_embedding_dimension": 9}, "word_embedding_dimension is 9, expected 8"),
])  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(
    modules: list[dict[str, str]], config: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(TamizError, match=reason):
        read_modules(bundle(tmp_path / "e", modules, _1_Pooling=config), WIDTH)


@pytest.mark.parametrize(("config", "weight", "reason"), [
    ({"activation_function": "mine.Swish"}, WEIGHT, "activation_function is 'mine.Swish'"),
    ({"module_input_name": "token_embeddings"}, WEIGHT, "module_input_name is 'token_embeddings'"),
    ({}, WEIGHT.T, r"linear.weight is \(3, 2\), expected \[N, 3\]"),
    ({}, None, "has no 2_Dense/model.safetensors"),
])  # fmt: skip
def test_a_product_that_is_not_understood_is_refused(
    config: dict[str, Any], weight: Any, reason: str, tmp_path: Path
) -> None:
    bundle(tmp_path / "e", [POOLING, DENSE], _1_Pooling={}, _2_Dense=config)
    if weight is not None:
        write_dense(tmp_path / "e" / "2_Dense", weight)
    with pytest.raises(TamizError, match=reason):
        read_modules(Bundle.open(tmp_path / "e"), 3)
