"""Tiny decoders of many families beside the libraries that their files were made for.

``reference_families.json`` holds for each family the logits of ids 0 to 7 after 33 tokens, and the
50 greedy tokens that follow: of the folder from transformers 5.24 (``attn_implementation="eager"``,
float32), of the GGUF from llama-cpp-python 0.3.36 (``Llama(path, n_ctx=128, logits_all=True,
type_k=0, type_v=0, flash_attn=False)``), where it knows the family. The GGUF has the tensors and
the metadata that llama.cpp's converter makes of the folder. llama.cpp gives windows to an EXAONE 4
of 64 layers alone, so the tiny one with windows is compared with transformers.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit.arrays import relative_error
from kit.equal_runs import build_model
from kit.families import FAMILIES
from kit.family_files import config, tensors, write_folder, write_gguf
from kit.family_shapes import VOCABULARY
from kit.state_families import STATES
from kit.tiny_safetensors import write_file
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.runtime import Batch
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz_exporters.decoder_config import Growth
from tamiz_exporters.gguf_config import hf_config
from tamiz_exporters.gguf_file import GgufFile
from tamiz_exporters.gguf_model import GgufModel
from tamiz_exporters.hf_model import HfModel

REFERENCES = json.loads(Path(__file__).with_name("reference_families.json").read_text())
#: Of the largest logit. llama.cpp looks GELU up in a table of float16.
RELATIVE_ERROR, WITH_GELU = 2e-6, 5e-4
#: llama.cpp makes the angles of sections of a head one of the other.
WITH_SECTIONS = 1e-4
#: Activations are quantised to 16 bits in groups of 32.
STORED_ERROR = 5e-3
#: Several ranges of keys are summed; beyond every window.
TEXT = [(7 * i * i + 3 * i) % 250 + 2 for i in range(150)]
#: Factors on embedding, residuals and queries, and gates behind attention, are ONNX's products.
SPLIT = ("ministral 3", "minicpm", "minicpm 4", "granite moe with a shared expert", "afmoe")
#: Whose configuration names no activation.
UNNAMED_GELU = ("bloom", "mpt")
#: With fields that others lack.
WITH_FIELDS = [*(name for name in STATES if STATES[name].gguf), "llama 4"]
IN_GGUF = [name for name, family in FAMILIES.items() if family.gguf]


def ids() -> list[int]:
    found: list[int] = np.random.default_rng(1).integers(0, 250, (1, 33))[0].tolist()
    return found


def check(bundle: Path, reference: dict[str, list[float]], bound: float) -> None:
    sequence = Model.load(bundle, threads=1).sequence()
    logits = sequence.read(ids())
    assert np.abs(logits[:8] - reference["logits"]).max() / np.abs(logits).max() < bound
    greedy = []
    for _ in reference["greedy"]:
        greedy.append(int(logits.argmax()))
        logits = sequence.step(greedy[-1])
    assert greedy == reference["greedy"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_folder_decodes_as_in_transformers(tmp_path: Path, plugins: Plugins, name: str) -> None:
    write_folder(tmp_path / "hf", name)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    reference = REFERENCES["transformers"].get(name) or REFERENCES["llama.cpp"][name]
    check(bundle.path, reference, RELATIVE_ERROR)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_decodes_as_in_llama_cpp(tmp_path: Path, plugins: Plugins, name: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", name)
    bundle = export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins, "float32")
    fields = {"hidden_act": "gelu" if name in UNNAMED_GELU else "silu", **FAMILIES[name].config}
    names = ("activation", "activation_function", "hidden_act")
    gelu = next(fields[name] for name in names if name in fields).startswith("gelu")
    bound = WITH_GELU if gelu else WITH_SECTIONS if name == "qwen 2.5 vl" else RELATIVE_ERROR
    reference = REFERENCES["llama.cpp"].get(name) or REFERENCES["transformers"][name]
    check(bundle.path, reference, bound)


@pytest.mark.parametrize(
    ("name", "prefix", "tower"),
    [
        ("gemma 3 with pictures", "language_model.model.", "vision_tower.encoder.weight"),
        ("gemma 3 with pictures", "model.language_model.", "model.multi_modal_projector.weight"),
        ("qwen 2.5 vl", "model.", "visual.merger.weight"),
        ("smolvlm", "model.text_model.", "model.connector.proj.weight"),
        ("llava next with a mistral", "language_model.model.", "image_newline"),
        ("glm 4.5v", "model.language_model.", "model.mtp_linear_proj.0.weight"),
        (
            "internvl with a qwen 3",
            "language_model.model.",
            "multi_modal_projector.linear_1.weight",
        ),
    ],
)
def test_parts_that_read_pictures_are_left_out(
    tmp_path: Path, plugins: Plugins, caplog, name: str, prefix: str, tower: str
) -> None:
    write_folder(tmp_path / "hf", name, prefix, tower)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    assert f"1 tensors are ignored, such as {tower}" in caplog.text
    check(bundle.path, REFERENCES["transformers"][name], RELATIVE_ERROR)


def test_a_mistral_3_may_have_the_text_model_of_ministral(tmp_path: Path) -> None:
    write_folder(tmp_path / "ministral", "ministral 3", "language_model.model.")
    text = json.loads((tmp_path / "ministral" / "config.json").read_text())
    write_folder(tmp_path / "hf", "mistral small 3.1", text_config=text)
    assert HfModel(tmp_path / "hf").config.growth == Growth(0.1, 16, 33)


def test_the_text_model_of_a_llama_4_with_pictures_is_read(
    tmp_path: Path, plugins: Plugins
) -> None:
    text = config(FAMILIES["llama 4"])
    whole = ["Llama4ForConditionalGeneration"]
    fields = {"architectures": whole, "model_type": "llama4", "text_config": text}
    weights = {f"language_model.{name}": w for name, w in tensors(FAMILIES["llama 4"]).items()}
    weights["vision_model.layernorm_pre.weight"] = np.ones(2, np.float32)
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text(json.dumps(fields))
    write_file(tmp_path / "hf" / "model.safetensors", weights)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    check(bundle.path, REFERENCES["transformers"]["llama 4"], RELATIVE_ERROR)


@pytest.mark.parametrize(
    ("changes", "reach"),
    [
        ({}, 127),
        ({"attention_chunk_size": 100}, 100),
        ({"attn_temperature_tuning": False}, 256),
        ({"attn_temperature_tuning": 4}, 127),
        ({"attn_temperature_tuning": False, "attention_chunk_size": None}, 512),
        ({"attn_temperature_tuning": False, "layer_types": ["full_attention"] * 4}, 512),
        ({"no_rope_layers": []}, 127),
        ({"no_rope_layers": [1] * 4}, 256),
    ],
)
def test_a_llama_4_ends_where_its_chunks_and_positions_begin_to_count(
    tmp_path: Path, changes: dict[str, Any], reach: int, caplog
) -> None:
    write_folder(tmp_path / "hf", "llama 4", **changes)
    assert HfModel(tmp_path / "hf").context == reach
    assert (f"sequences are limited to {reach} tokens of 512" in caplog.text) == (reach < 512)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"layer_types": ["sliding_attention"] * 4},
            "expected 4 times chunked_attention or full_attention",
        ),
        ({"layer_types": ["full_attention"]}, "expected 4 times chunked_attention or full"),
        ({"moe_layers": [1, 7]}, r"moe_layers: found \[1, 7\], expected numbers of layers"),
        ({"moe_layers": [1]}, "layers.3.feed_forward.gate_proj.weight: found no such tensor"),
        ({"floor_scale": 0}, "floor_scale: found 0, expected a positive number"),
    ],
)
def test_absurd_fields_of_a_llama_4_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    write_folder(tmp_path / "hf", "llama 4", **changes)
    with pytest.raises(TamizError, match=message):
        HfModel(tmp_path / "hf").weights().find()


@pytest.mark.parametrize("name", WITH_FIELDS)
def test_a_gguf_gives_the_configuration_of_the_folder(tmp_path: Path, name: str) -> None:
    write_gguf(tmp_path / "tiny.gguf", name)
    held = GgufModel(GgufFile(tmp_path / "tiny.gguf"))
    write_folder(tmp_path / "hf", name)
    (tmp_path / "hf" / "config.json").write_text(json.dumps(hf_config(held)))
    found = HfModel(tmp_path / "hf").config
    # As text: rotary embeddings are equal to themselves alone.
    assert str(found) == str(replace(held.config, epsilon=found.epsilon))
    assert found.epsilon == pytest.approx(held.config.epsilon, rel=1e-6)


def test_a_llama_4_of_a_gguf_has_chunks_and_norms_as_llama_cpp_reads_them(tmp_path: Path) -> None:
    write_gguf(tmp_path / "long.gguf", "llama 4", context_length=10_000)
    held = GgufModel(GgufFile(tmp_path / "long.gguf"))
    assert (held.context, held.config.unit_heads) == (8191, True)
    write_gguf(tmp_path / "other.gguf", "llama 4", Type.F32, **{"attention.sliding_window": 0})
    with pytest.raises(TamizError, match=r"sliding_window: found 0, expected no such key"):
        GgufModel(GgufFile(tmp_path / "other.gguf"))


def test_a_text_model_of_another_kind_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "mistral small 3.1", text_config={"model_type": "mistral4"})
    with pytest.raises(TamizError, match=r"text_config\.model_type: found mistral4, expected"):
        HfModel(tmp_path / "hf")


def test_norms_behind_a_rotation_that_changes_lengths_are_refused(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    write_folder(tmp_path / "hf", "hunyuan", rope_scaling=yarn)
    with pytest.raises(TamizError, match=r"rope_scaling: found a factor of 1\.13863 on cosine"):
        HfModel(tmp_path / "hf")


def test_a_smallthinker_turns_heads_in_its_windows_alone(tmp_path: Path) -> None:
    name = "smallthinker with windows"
    write_folder(tmp_path / "hf", name, sliding_window_size=8)
    write_gguf(tmp_path / "tiny.gguf", name, Type.F32, **{"attention.sliding_window": 8})
    for model in (HfModel(tmp_path / "hf"), GgufModel(GgufFile(tmp_path / "tiny.gguf"))):
        layers = model.config.attentions
        assert [layer.window for layer in layers] == [0, 8, 8, 8, 0, 8]
        assert [layer.rotary is not None for layer in layers] == [
            layer.window > 0 for layer in layers
        ]


def test_a_smallthinker_that_turns_other_heads_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "smallthinker with windows", rope_layout=[1] * 6)
    expected = r"rope_layout: found \[1, 1, 1, 1, 1, 1\], expected \[0, 1, 1, 1, 0, 1\], as windows"
    with pytest.raises(TamizError, match=expected):
        HfModel(tmp_path / "hf")


def test_an_mpt_without_a_bias_by_distance_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "mpt", attn_config={"alibi": False})
    with pytest.raises(TamizError, match=r"attn_config\.alibi: found False, expected true, as"):
        HfModel(tmp_path / "hf")
    write_gguf(tmp_path / "tiny.gguf", "mpt", **{"attention.max_alibi_bias": None})
    with pytest.raises(TamizError, match=r"mpt\.attention\.max_alibi_bias: found nothing"):
        GgufModel(GgufFile(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("given", [None, [0.5, 0.5], ["a"] * 4])
def test_an_apertus_must_say_the_numbers_of_its_activation(tmp_path: Path, given: Any) -> None:
    write_gguf(tmp_path / "tiny.gguf", "apertus")
    file = GgufFile(tmp_path / "tiny.gguf")
    file.metadata["xielu.beta"] = given
    with pytest.raises(TamizError, match=r"xielu\.beta: found .*, expected a number, or 4 numbers"):
        GgufModel(file).weights()


def test_a_gemma_3_with_pictures_may_say_little_of_its_text_model(tmp_path: Path) -> None:
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    write_folder(tmp_path / "hf", "gemma 3 with pictures", text_config=text)
    with pytest.raises(TamizError, match=r"q_proj.weight: found 64 x 64, expected .*2048 x 64"):
        HfModel(tmp_path / "hf")


def test_a_llava_may_say_little_of_its_text_model(tmp_path: Path) -> None:
    """As those that were published: the rest is as in transformers."""
    text = {"model_type": "mistral", "vocab_size": VOCABULARY, "sliding_window": None}
    write_folder(tmp_path / "hf", "llava next with a mistral", text_config=text)
    with pytest.raises(TamizError, match=r"q_proj.weight: found 64 x 64, expected .*4096 x 4096"):
        HfModel(tmp_path / "hf")


def test_a_text_model_that_a_whole_one_cannot_have_is_refused(tmp_path: Path) -> None:
    text = {**config(FAMILIES["llava next with a mistral"])["text_config"], "model_type": "opt"}
    write_folder(tmp_path / "hf", "llava next with a mistral", text_config=text)
    expected = r"text_config\.model_type: found opt, expected one of llama, mistral, qwen2, "
    with pytest.raises(TamizError, match=expected):
        HfModel(tmp_path / "hf")


def test_files_decide_where_a_text_model_and_the_whole_one_disagree_on_the_head(
    tmp_path: Path, plugins: Plugins
) -> None:
    name = "qwen 3 vl moe"
    text = {**config(FAMILIES[name])["text_config"], "tie_word_embeddings": True}
    write_folder(tmp_path / "hf", name, text_config=text, tie_word_embeddings=False)
    bundle = export(str(tmp_path / "hf"), tmp_path / "dense", plugins, "float32")
    check(bundle.path, REFERENCES["transformers"][name], RELATIVE_ERROR)


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_built_model_has_equal_bits_in_every_cut_and_batch(
    tmp_path: Path, plugins: Plugins, name: str
) -> None:
    def write(path: Path, linears: Type) -> None:
        write_gguf(path, name, linears)

    built = build_model(tmp_path, Type.Q8_0, {}, write, plugins)
    ops = [node.op_type for node in ir.load(built / "model.onnx").graph if node.domain]
    assert ops == ["Fused"] or name in SPLIT
    model = Model.load(built, threads=1)
    sequence = model.sequence()
    steps = np.stack([sequence.step(token).copy() for token in TEXT])
    plain = export(str(tmp_path / "tiny.gguf"), tmp_path / "plain", plugins, "float32")
    expected = Model.load(plain.path, threads=1).logits(np.array([TEXT]))[0]
    assert relative_error(steps, expected) < STORED_ERROR
    sequence = model.sequence()
    parts = [sequence.logits(TEXT[:70]).copy(), sequence.logits(TEXT[70:]).copy()]
    np.testing.assert_array_equal(np.concatenate(parts), steps)
    batch = Batch(model, 640)
    members = [batch.add(TEXT[:count], len(TEXT)) for count in (5, 64, 149)]
    while any(member.logits is None for member in members):
        batch.run()
    for member, count in zip(members, (5, 64, 149), strict=True):
        assert member.logits is not None
        np.testing.assert_array_equal(member.logits, steps[count - 1])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gpt 2", {"n_embd": -1, "hidden_size": None}, "n_embd: found -1, expected a positive"),
        ("gpt 2", {"n_layer": None, "num_hidden_layers": None}, "n_layer: found nothing"),
        ("gpt 2", {"n_layer": None, "num_hidden_layers": -1}, "num_hidden_layers: found -1"),
        ("exaone 3.5", {"layer_norm_epsilon": "no"}, "layer_norm_epsilon: found no, expected"),
    ],
)
def test_messages_name_the_key_that_the_file_has(
    tmp_path: Path, name: str, changes: dict[str, Any], message: str
) -> None:
    write_folder(tmp_path / "hf", name, **changes)
    with pytest.raises(TamizError, match=f"config.json: {message}"):
        HfModel(tmp_path / "hf")


def test_two_names_of_a_field_must_agree(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "exaone 3.5", num_hidden_layers=3)
    with pytest.raises(TamizError, match="num_layers: found 4, expected 3, as num_hidden_layers"):
        HfModel(tmp_path / "hf")


def test_a_minicpm_must_say_its_factors(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "minicpm", scale_depth=None)
    with pytest.raises(TamizError, match="scale_depth: found nothing, expected a positive number"):
        HfModel(tmp_path / "hf")


def test_a_bailing_moe_of_the_first_version_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "hf", "bailing moe 2", architectures=["BailingMoeForCausalLM"])
    expected = (
        r"architectures: found \['BailingMoeForCausalLM'\], expected \[BailingMoeV2ForCausalLM"
    )
    with pytest.raises(TamizError, match=expected):
        HfModel(tmp_path / "hf")
