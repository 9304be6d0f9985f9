"""What becomes of each field of a source, beside what gguf and transformers know."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf.constants import Keys

from kit import family_files, gemma4, streams, tiny_gguf, tiny_safetensors
from kit.families import FAMILIES
from kit.mamba_gguf import write_gguf
from kit.mambas import MAMBAS, random_mamba
from tamiz.files.errors import TamizError
from tamiz.runtime.generation_fields import NO_EFFECT, OBEYED, REFUSED
from tamiz_exporters.architectures import ARCHITECTURES
from tamiz_exporters.config_fields import CONFIG_FIELDS
from tamiz_exporters.expert_fields import hf_experts
from tamiz_exporters.gguf_encoder_fields import ENCODER_KEYS, ENCODER_TOKENIZER_KEYS
from tamiz_exporters.gguf_fields import ARCHITECTURE_KEYS, GENERAL_KEYS, TOKENIZER_KEYS
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.hf_model import HfModel
from tamiz_exporters.hf_traits import read_traits, text_fields
from tamiz_exporters.rope_fields import ROPE_FIELDS
from tamiz_exporters.source_fields import Field, Treatment, field_of
from tamiz_exporters.tokenizer_fields import TOKENIZER_FIELDS

TABLES: dict[str, dict[str, Field]] = {
    "{arch}.": ARCHITECTURE_KEYS,
    "tokenizer.": TOKENIZER_KEYS,
    "": GENERAL_KEYS,
}
#: Fields of transformers' configurations by model type, their rotary parameters, and what all
#: have; version 5.24. Made by
#: ``set(inspect.signature(Config.__init__).parameters) | set(Config().to_dict())``.
PUBLISHED = json.loads(Path(__file__).with_name("published_fields.json").read_text())
TRANSFORMERS = json.loads(Path(__file__).with_name("transformers_fields.json").read_text())


def keys_of_gguf(of: type = Keys) -> list[str]:
    found = []
    for name, value in vars(of).items():
        if isinstance(value, type):
            found += keys_of_gguf(value)
        elif isinstance(value, str) and not name.startswith("_"):
            found.append(value)
    return found


def test_every_key_of_gguf_is_declared() -> None:
    missing = []
    for key in keys_of_gguf():
        prefix = next(prefix for prefix in TABLES if key.startswith(prefix))
        name = re.sub(r"\{\w+\}", "1", key.removeprefix(prefix))
        if field_of(name, TABLES[prefix]) is None:
            missing.append(key)
    assert missing == []


@pytest.mark.parametrize("kind", TRANSFORMERS["by model type"])
def test_every_field_of_transformers_is_declared(kind) -> None:
    known = {*TRANSFORMERS["by model type"][kind], *TRANSFORMERS["of all"]}
    assert sorted(name for name in known if field_of(name, CONFIG_FIELDS) is None) == []


def test_every_field_of_the_rotary_embedding_is_declared() -> None:
    known = TRANSFORMERS["rotary"]
    assert sorted(name for name in known if field_of(name, ROPE_FIELDS) is None) == []


def test_fields_say_why_they_are_refused() -> None:
    of_encoders = (ENCODER_KEYS, ENCODER_TOKENIZER_KEYS)
    for table in (*TABLES.values(), *of_encoders, CONFIG_FIELDS, ROPE_FIELDS, TOKENIZER_FIELDS):
        for name, field in table.items():
            assert field.note or field.treatment is Treatment.OBEYED, name


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_model_obeys_no_other_keys_than_declared(tmp_path, architecture, monkeypatch) -> None:
    asked: set[str] = set()
    get = GgufFile.get

    def recorded(file: GgufFile, key: str, kind: type, default: Any = None) -> Any:
        asked.add(key)
        return get(file, key, kind, default)

    monkeypatch.setattr(GgufFile, "get", recorded)
    shapes = {shape["architecture"]: shape for shape in MAMBAS.values()}
    families = {family.gguf: name for name, family in FAMILIES.items()}
    if architecture in families:
        family_files.write_gguf(tmp_path / "tiny.gguf", families[architecture])
    elif architecture in shapes:
        write_gguf(tmp_path / "tiny.gguf", random_mamba(**shapes[architecture]))
    elif architecture == "gemma3n":
        streams.write_gguf(tmp_path / "tiny.gguf", streams.random_streams())
    elif architecture == "gemma4":
        gemma4.write_gguf(tmp_path / "tiny.gguf", gemma4.random_gemma4())
    else:
        tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(**_shape(architecture)))
    GgufModel(GgufFile(tmp_path / "tiny.gguf"))
    own = {key.removeprefix(f"{architecture}.") for key in asked if key.startswith(architecture)}
    for name in own - {"attn_logit_softcapping", "final_logit_softcapping"}:
        assert ARCHITECTURE_KEYS[name].treatment_in(architecture) is Treatment.OBEYED, name


def _shape(architecture: str) -> dict[str, Any]:
    tied = architecture != "phi3"
    layers = 6 if architecture == "gemma3" else 4
    experts = 4 if ARCHITECTURES[architecture].mixture is not None else 0
    return {"architecture": architecture, "layers": layers, "tied": tied, "experts": experts}


def test_unknown_keys_are_a_warning(tmp_path, caplog) -> None:
    entries: dict[str, Any] = {"llama__novelty": 3, "tokenizer__ggml__novelty": 1}
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model(), **entries)
    GgufModel(GgufFile(tmp_path / "tiny.gguf"))
    assert "tiny.gguf: fields that tamiz does not know are not read: llama.novelty" in caplog.text
    assert "not read: tokenizer.ggml.novelty" in caplog.text


@pytest.mark.parametrize("release", PUBLISHED)
def test_no_field_of_a_release_is_refused_or_unknown(release, caplog) -> None:
    """Fields and values of configurations as they were published, written down from memory."""
    written = Fields(Path(release, "config.json"), PUBLISHED[release])
    traits = read_traits(written)
    of = text_fields(written, traits)
    if traits.mixture is not None:
        hf_experts(of, traits.mixture, of.positive("num_hidden_layers"))
    assert not caplog.text


def test_unknown_fields_are_a_warning(tmp_path, caplog) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0, "novelty": 3}
    changes: dict[str, Any] = {"rope_scaling": scaling, "other_novelty": True}
    tiny_safetensors.write(tmp_path / "hf", tiny_gguf.random_model(), **changes)
    HfModel(tmp_path / "hf")
    assert "config.json: fields that tamiz does not know are not read: other_novelty" in caplog.text
    assert "not read: rope_scaling.novelty" in caplog.text


REFUSED_KEYS: dict[str, Any] = {
    "residual_scale": 0.5,
    "attention.causal": False,
    "expert_group_count": 8,
    "rope.scaling.alpha": 2.0,
    "final_logit_softcapping": 30.0,
}


@pytest.mark.parametrize("key", REFUSED_KEYS)
def test_keys_are_refused_by_name(tmp_path, key) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model())
    file = GgufFile(tmp_path / "tiny.gguf")
    file.metadata[f"llama.{key}"] = REFUSED_KEYS[key]
    with pytest.raises(TamizError, match=rf"tiny\.gguf: llama\.{re.escape(key)}: found "):
        GgufModel(file)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("residual_scale", 1.0),
        ("logit_scale", 0.0),
        ("attention.causal", True),
        ("expert_count", 0),
        ("rope.scaling.yarn_ext_factor", 1.0),
    ],
)
def test_harmless_values_are_accepted(tmp_path, key, value) -> None:
    tiny_gguf.write(tmp_path / "tiny.gguf", tiny_gguf.random_model())
    file = GgufFile(tmp_path / "tiny.gguf")
    file.metadata[f"llama.{key}"] = value
    assert GgufModel(file).context == 512


def test_one_number_listed_for_every_layer(tmp_path) -> None:
    model = tiny_gguf.random_model()
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    file = GgufFile(tmp_path / "tiny.gguf")
    numbers = np.array([model.heads] * 2, "<i4")
    file.metadata["llama.attention.head_count"] = numbers
    assert GgufModel(file).config.heads == model.heads
    file.metadata["llama.attention.head_count"] = numbers * [1, 2]
    with pytest.raises(TamizError, match=r"head_count: found \[4, 8\], expected one number in all"):
        GgufModel(file)


@pytest.mark.parametrize("key", ["use_parallel_block", "use_gated_activation"])
def test_a_flag_that_must_be_true_is_refused_where_it_is_false(tmp_path, key) -> None:
    for value in (True, False):
        changes: dict[str, Any] = {key: value}
        family_files.write_folder(tmp_path / str(value), "command r", **changes)
    HfModel(tmp_path / "True")
    with pytest.raises(TamizError, match=f"{key}: found False, expected True or no such key"):
        HfModel(tmp_path / "False")


def test_a_bias_that_the_configuration_denies_is_refused(tmp_path) -> None:
    model = tiny_gguf.random_model(biases=True)
    source = tiny_safetensors.write(tmp_path / "hf", model, attention_bias=False)
    with pytest.raises(TamizError, match="attention_bias: found False, expected true, as model"):
        HfModel(source)


def test_the_listed_fields_are_those_of_transformers() -> None:
    pytest.importorskip("torch", reason="needs torch: pip install 'tamiz[export]'")
    transformers = pytest.importorskip("transformers", minversion="5", reason="tox -e peers")
    base = transformers.PretrainedConfig
    for kind in TRANSFORMERS["by model type"]:
        config = transformers.CONFIG_MAPPING[kind]
        known = {*inspect.signature(config.__init__).parameters, *config().to_dict()}
        known -= {"self", "args", "kwargs", *inspect.signature(base.__init__).parameters}
        assert not {name for name in known if field_of(name, CONFIG_FIELDS) is None}, kind


def test_every_field_of_a_generation_is_declared() -> None:
    known = {*OBEYED, *REFUSED, *NO_EFFECT}
    assert sorted(set(TRANSFORMERS["generation"]) - known) == []
    assert len(known) == len(OBEYED) + len(REFUSED) + len(NO_EFFECT)


def test_every_setting_of_a_tokenizer_is_declared() -> None:
    assert sorted(set(TRANSFORMERS["tokenizer"]) - TOKENIZER_FIELDS.keys()) == []


def test_the_listed_fields_of_generations_and_tokenizers_are_those_of_transformers() -> None:
    """Whatever a generation's class has, and what tokenizers take out of their settings."""
    transformers = pytest.importorskip("transformers", minversion="5", reason="tox -e peers")
    from transformers.tokenization_utils_tokenizers import TokenizersBackend

    generation = set(transformers.GenerationConfig().to_dict())
    assert sorted(generation - {*OBEYED, *REFUSED, *NO_EFFECT}) == []
    classes = transformers.PreTrainedTokenizerBase, TokenizersBackend
    source = "".join(inspect.getsource(kind.__init__) for kind in classes)
    tokenizer = set(re.findall(r'kwargs\.(?:pop|get|setdefault)\(\s*"(\w+)"', source))
    tokenizer |= set(transformers.PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    tokenizer |= set(inspect.signature(transformers.BertTokenizer.__init__).parameters)
    assert sorted(tokenizer - TOKENIZER_FIELDS.keys() - {"self", "kwargs"}) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.sliding_window", np.array([1, 2])),
        ("attention.sliding_window", np.array([], "<i4")),
        ("feed_forward_length", 10**12),
        ("feed_forward_length", np.array([2**62] * 2)),
        ("rope.freq_base", float("inf")),
        ("hidden_activation", "laplace"),
    ],
)
def test_absurd_values_cost_one_sentence(tmp_path: Path, key: str, value: Any) -> None:
    model = tiny_gguf.random_model(architecture="phi3", tied=False)
    tiny_gguf.write(tmp_path / "tiny.gguf", model)
    file = GgufFile(tmp_path / "tiny.gguf")
    file.metadata[f"phi3.{key}"] = value
    with pytest.raises(TamizError, match=r"tiny\.gguf: "):
        GgufModel(file).weights().find()
