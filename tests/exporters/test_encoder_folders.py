"""Safetensors of encoders, exported without torch.

``reference_encoders.json`` holds shapes of the tensors of small models, and of each model six
hidden states of the last token of a text, or its logits, computed by the version of transformers
that it names for the model, else for all (float32; those with a version of their own and ModernBERT
with eager attention).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from kit.command_line import refused
from kit.encoder_files import CASE, random_tensors, write_folder
from kit.hf_encoders import KINDS
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz_exporters.encoder_architectures import ENCODERS
from tamiz_exporters.encoder_fields import ENCODER_FIELDS
from tamiz_exporters.source_fields import Treatment, field_of

MODELS = json.loads(Path(__file__).with_name("reference_encoders.json").read_text())["models"]
#: Of the largest value; float32 sums in another order.
TOLERANCE = 1e-5


def write(folder: Path, name: str, prefix: str = "", **changes: Any) -> Path:
    """The folder of a model; `prefix` comes before the names of its tensors."""
    model = MODELS[name]
    tensors = {prefix + key: array for key, array in random_tensors(model["shapes"]).items()}
    return write_folder(folder, {**model["config"], **changes}, tensors)


def run(bundle: Bundle) -> np.ndarray:
    """The output for `CASE`."""
    session = ort.InferenceSession(bundle.model, providers=["CPUExecutionProvider"])
    given = dict(zip(("input_ids", "attention_mask", "token_type_ids"), CASE, strict=True))
    found: np.ndarray = session.run(None, {i.name: given[i.name] for i in session.get_inputs()})[0]
    return found


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_transformers(name: str, tmp_path: Path, plugins: Plugins) -> None:
    bundle = export(str(write(tmp_path / "hf", name)), tmp_path / "dense", plugins)
    found = run(bundle)
    found = found[1, 18, :6] if found.ndim == 3 else found.ravel()
    expected = np.array(MODELS[name]["expected"])
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * np.abs(expected).max())


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_that_is_trained_on_masks_gives_hidden_states(
    kind: str, tmp_path: Path, plugins: Plugins
) -> None:
    """Its tensors have a prefix, those of its head are ignored."""
    name = f"{kind}Model"
    traits = ENCODERS[MODELS[name]["config"]["model_type"]]
    bare = export(str(write(tmp_path / "bare", name)), tmp_path / "a", plugins)
    masked = {"architectures": [f"{kind}ForMaskedLM"]}
    folder = write(tmp_path / "masked", name, traits.prefix, **masked)
    assert (run(export(str(folder), tmp_path / "b", plugins)) == run(bare)).all()


def test_every_field_of_transformers_is_declared() -> None:
    for name, model in MODELS.items():
        for key in model["config"]:
            assert field_of(key, ENCODER_FIELDS) is not None, (name, key)
    for name, field in ENCODER_FIELDS.items():
        assert field.note or field.treatment is Treatment.OBEYED, name


@pytest.mark.parametrize(("name", "changes", "reason"), [
    ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    ("BertModel", {"hidden_act": "novelty"}, "hidden_act: found novelty"),
    ("BertModel", {"num_attention_heads": 7}, "a divisor of 64"),
    ("BertModel", {"vocab_size": 51}, "embeddings.word_embeddings.weight: found 50 x 64"),
    ("MPNetModel", {"relative_attention_num_buckets": 16}, "found 16, expected 32"),
    ("T5EncoderModel", {"relative_attention_num_buckets": 30}, "a multiple of 4"),
    ("T5EncoderModel", {"feed_forward_proj": "gated-novelty"}, "found novelty"),
    ("T5EncoderModel", {"architectures": ["T5Model"]}, "T5Model, expected T5EncoderModel"),
    ("DebertaV2Model", {"conv_kernel_size": 3}, "a convolution"),
    ("DebertaV2Model", {"pos_att_type": ["c2c"]}, "some of c2p and p2c"),
    ("ModernBertForSequenceClassification", {"classifier_pooling": "max"}, "cls or mean"),
    ("AlbertModel", {"num_hidden_groups": 9}, "at most 3"),
])  # fmt: skip
def test_what_is_refused(name: str, changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "hf", name, **changes)
    assert reason in refused("export", folder, "-o", tmp_path / "dense")
    assert not (tmp_path / "dense").exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = MODELS["BertModel"]
    tensors = random_tensors(model["shapes"])
    del tensors["encoder.layer.1.output.dense.weight"]
    folder = write_folder(tmp_path / "hf", model["config"], tensors)
    text = refused("export", folder, "-o", tmp_path / "dense")
    assert "encoder.layer.1.output.dense.weight: found no such tensor, expected shape" in text


def test_counts_of_positions_are_no_weights(tmp_path: Path, plugins: Plugins) -> None:
    """Older versions of transformers stored them, as int64."""
    model = MODELS["BertModel"]
    counts = {"embeddings.position_ids": np.arange(160)[None]}
    folder = write_folder(
        tmp_path / "hf", model["config"], random_tensors(model["shapes"]) | counts
    )
    export(str(folder), tmp_path / "dense", plugins)


@pytest.mark.parametrize(("kind", "head"), [("CrossEncoder", True), ("SentenceTransformer", False)])
def test_modules_of_a_cross_encoder_keep_its_head(
    kind: str, head: bool, tmp_path: Path, plugins: Plugins
) -> None:
    """sentence-transformers 5.4 and later list modules for both."""
    folder = write(tmp_path / "hf", "BertForSequenceClassification")
    (folder / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.Any"}]')
    settings = json.dumps({"model_type": kind})
    (folder / "config_sentence_transformers.json").write_text(settings)
    found = run(export(str(folder), tmp_path / "dense", plugins))
    assert (found.ndim == 2) == head


def test_a_folder_that_lacks_a_module_is_refused(tmp_path: Path, plugins: Plugins) -> None:
    """As after a download of some files; older versions write no files for Normalize."""
    folder = write(tmp_path / "hf", "BertModel")
    modules = [
        {"path": "", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(TamizError, match=r"names the module 1_Pooling, but .* holds none of"):
        export(str(folder), tmp_path / "dense", plugins)
    assert not (tmp_path / "dense").exists()
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert "1_Pooling/config.json" in export(str(folder), tmp_path / "b", plugins).manifest.files


def test_the_encoder_of_a_whole_t5_is_read(tmp_path: Path, plugins: Plugins) -> None:
    """Beside modules of sentence-transformers; its embedding may have its other name."""
    model = MODELS["T5EncoderModel"]
    tensors = random_tensors(model["shapes"])
    bare = export(str(write(tmp_path / "bare", "T5EncoderModel")), tmp_path / "a", plugins)
    tensors["encoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    whole = {"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}
    folder = write_folder(tmp_path / "hf", model["config"] | whole, tensors)
    (folder / "modules.json").write_text('[{"path": "", "type": "sentence_transformers.Any"}]')
    assert (run(export(str(folder), tmp_path / "b", plugins)) == run(bare)).all()


def test_16_bit_weights_stay(tmp_path: Path, plugins: Plugins) -> None:
    model = MODELS["BertModel"]
    tensors = {k: v.astype(np.float16) for k, v in random_tensors(model["shapes"]).items()}
    folder = write_folder(tmp_path / "hf", model["config"], tensors)
    stored = export(str(folder), tmp_path / "stored", plugins)
    whole = export(str(folder), tmp_path / "whole", plugins, dtype="float32")
    assert stored.manifest.weights == "stored"
    size = [(bundle.path / "model.onnx.data").stat().st_size for bundle in (stored, whole)]
    assert size[0] < 0.8 * size[1]
