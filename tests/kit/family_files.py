"""Files of tiny decoders: folders of Hugging Face, and GGUF as llama.cpp's converter writes it.

Weights have the names and the layout of transformers. A GGUF has the names of gguf-py's table and
the metadata that llama.cpp's converter writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH_NAMES
from gguf.constants import GGMLQuantizationType as Type

from kit.families import FAMILIES
from kit.family_shapes import (
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCABULARY,
    Family,
)
from kit.tiny_gguf import TinyModel, add_tokenizer, interleave
from kit.tiny_safetensors import CONTEXT, write_file

Array = np.ndarray[Any, Any]
#: What names one of a layer's experts.
_EXPERT = re.compile(r"experts\.\d+(\..*)")
#: Weights that converters keep in float32.
_FLOATS = ("ffn_gate_inp.weight", "shortconv.conv.weight", "ssm_conv1d.weight", "ssm_a")
#: With a tensor that has queries, keys and values of each head of keys in transformers, and all
#: queries, all keys and all values in GGUF.
_BY_HEAD = ("bloom", "gptneox", "falcon")
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_ARCHITECTURES = {name: number for number, name in MODEL_ARCH_NAMES.items()}


def config(family: Family) -> dict[str, Any]:
    """What ``config.json`` holds."""
    fields = {
        "model_type": family.model_type,
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": family.depth,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": family.ends.keys().isdisjoint(_HEADS),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    fields = {name: fields[name] for name in fields if name not in family.without}
    fields |= family.config
    classes = {"architectures": [family.model_class]}
    if family.whole is None:
        return classes | fields
    return {**classes, **family.whole, "text_config": fields}


def tensors(family: Family) -> dict[str, Array]:
    """Random weights; those of norms are near 1."""
    random = np.random.default_rng(family.seed)
    shapes = dict(family.ends)
    for layer in range(family.depth):
        at = f"model.{family.layers}.{layer}"
        own = family.layer if isinstance(family.layer, dict) else family.layer[layer]
        shapes |= {f"{at}.{name}": shape for name, shape in own.items()}

    def values(name: str, shape: tuple[int, ...]) -> Array:
        norm = ("norm" in name or ".ln_" in name) and name.endswith(".weight")
        near = float(norm and not family.from_one)
        scale = 0.6 if "embed" in name else 0.15
        return np.asarray(near + random.standard_normal(shape) * scale, np.float32)

    return {name: values(name, shape) for name, shape in shapes.items()}


def write_folder(path: Path, name: str, prefix: str = "", beside: str = "", **changes: Any) -> None:
    """Writes a folder of Hugging Face's layout.

    Args:
        path: The folder.
        name: The family.
        prefix: What begins the names of tensors in place of the family's.
        beside: Name of a tensor that is no part of the text model; empty for none.
        changes: Other values in its configuration.
    """
    path.mkdir(exist_ok=True)
    family = FAMILIES[name]
    (path / "config.json").write_text(json.dumps({**config(family), **changes}, indent=2))
    begin = prefix or family.prefix
    own = {
        begin + name.removeprefix("model.") if name.startswith("model.") else name: value
        for name, value in tensors(family).items()
    }
    own |= {beside: np.ones((2, 2), np.float32)} if beside else {}
    write_file(path / "model.safetensors", own)


def write_gguf(path: Path, name: str, kind: Type = Type.F32, **changes: Any) -> None:
    """Writes a GGUF; matrices are of a kind, `changes` are other metadata."""
    family = FAMILIES[name]
    writer = gguf.GGUFWriter(path, family.gguf)
    fields = config(family)
    fields = fields.get("text_config", fields)
    usual = {
        "context_length": fields["max_position_embeddings"],
        "block_count": family.depth,
        "embedding_length": HIDDEN,
        "feed_forward_length": fields["intermediate_size"],
        "attention.head_count": fields["num_attention_heads"],
        "attention.head_count_kv": fields["num_key_value_heads"],
        "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM,
        "attention.layer_norm_rms_epsilon": fields.get("rms_norm_eps", 1e-5),
        "rope.freq_base": fields["rope_theta"],
    }
    for key, value in {**usual, **family.keys, **changes}.items():
        if value is not None:
            _add(writer, f"{family.gguf}.{key}", value)
    add_tokenizer(writer)
    for key, numbers in _of_activations(family).items():
        writer.add_array(key, numbers)
    for stored, values in _gguf_tensors(family):
        matrix = values.ndim > 1 and not stored.endswith(_FLOATS)
        own = kind if matrix else Type.F32
        if matrix and values.shape[-1] % 32:  # of no whole blocks
            own = Type.F16 if kind is not Type.F32 else kind
        writer.add_tensor(stored, gguf.quants.quantize(values, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _together(values: Array, kv_heads: int) -> Array:
    """All queries, all keys, all values."""
    grouped = values.reshape(kv_heads, HEADS // kv_heads + 2, HEAD_DIM, -1)
    parts = grouped[:, :-2], grouped[:, -2], grouped[:, -1]
    return np.concatenate([part.reshape(-1, grouped.shape[-1]) for part in parts]).reshape(
        values.shape
    )


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    add: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _of_activations(family: Family) -> dict[str, list[float]]:
    """Trained numbers of activations by key, one for each layer."""
    found: dict[str, list[float]] = {}
    for name, values in tensors(family).items():
        if ".act_fn." in name:
            found.setdefault(f"xielu.{name.rpartition('.')[2]}", []).append(float(values.item()))
    return found


def _parts(tensors: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Tensors, of which those that hold gate and up, or q, k and v by head of keys, come apart."""
    for name, values in tensors.items():
        if name.endswith("input_linear.weight"):
            block = "mlp.shared_expert" if "shared_mlp" in name else "mlp.experts"
            for part, own in zip(("gate", "up"), np.split(values, 2, -2), strict=True):
                at, _, _ = name.rpartition(".input_linear")
                yield f"{at.rpartition('.')[0]}.{block}.{part}_proj.weight", own
            continue
        if name.endswith("experts.gate_up_proj"):
            for part, own in zip(("gate", "up"), np.split(values, 2, -1), strict=True):
                at = name.replace("gate_up_proj", f"{part}_proj.weight")
                yield at, np.ascontiguousarray(own.swapaxes(1, 2))
            continue
        if name.endswith("experts.down_proj"):
            yield f"{name}.weight", np.ascontiguousarray(values.swapaxes(1, 2))
            continue
        if not name.endswith("attention.wqkv.weight"):
            yield name, values
            continue
        heads = values.reshape(KV_HEADS, HEADS // KV_HEADS + 2, HEAD_DIM, HIDDEN)
        for part, own in {"q": heads[:, :-2], "k": heads[:, -2], "v": heads[:, -1]}.items():
            at = name.replace("attention.wqkv", f"self_attn.{part}_proj")
            yield at, own.reshape(-1, HIDDEN)


def _gguf_tensors(family: Family) -> Iterator[tuple[str, Array]]:
    """Tensors under the names of GGUF."""
    table = gguf.get_tensor_name_map(_ARCHITECTURES[family.gguf], family.depth)
    stacks: dict[str, list[Array]] = {}
    shape = TinyModel(head_dim=HEAD_DIM, rotary_dim=HEAD_DIM)
    for name, values in _parts(tensors(family)):
        if ".act_fn." in name:
            continue
        if family.gguf in _BY_HEAD and "query_key_value" in name:
            values = _together(values, config(family)["num_key_value_heads"])
        if family.turned and re.search(r"\.c_(attn|proj|fc)\.weight$", name):
            values = values.T
        if family.pairs and re.search(r"\.[qk]_proj\.", name):
            values = interleave(shape, values)
        if name.endswith(".A_log"):
            values = -np.exp(values)
        if family.from_one and name.endswith("norm.weight"):
            values = values + np.float32(1)
        whole = _EXPERT.sub(r"experts\1", name)
        whole = whole.replace("correction_bias", "correction.bias")
        whole = f"{whole}.bias" if whole.endswith(".expert_bias") else whole
        known = whole, whole[6:], f"{family.prefix}{whole[6:]}"
        names = (table.get_name(each, (".weight", ".bias")) for each in known)
        stored = next(filter(None, names), None)
        assert stored is not None, name
        stacks.setdefault(stored, []).append(values.squeeze())
        if whole == name or len(stacks[stored]) == family.experts or values.ndim == 1:
            parts = stacks.pop(stored)
            yield stored, parts[0] if len(parts) == 1 else np.stack(parts)
    for which in ("short", "long") if family.factors else ():
        yield f"rope_factors_{which}.weight", np.array(family.factors, np.float32)
