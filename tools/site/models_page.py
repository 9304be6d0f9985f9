"""The page of models that are supported, from the tables of the exporters."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tamiz_exporters.architectures import ARCHITECTURES, HF_ARCHITECTURES
from tamiz_exporters.missing_architectures import MISSING

Table = Callable[[list[str], list[list[str]]], str]
_INTRO = """\
These are decoders that people run, by family. The list is a choice: how often a model is downloaded
changes from week to week, and is not measured here. The columns come from the tables that the
exporters read.

- **works**: GGUF and safetensors are read.
- **partly**: one of the two is read.
- **no**: neither is read. An export ends with one sentence that names the architecture.

What holds for each field of a file is on the page of [sources](sources.md). Models that neither
reads can come as ONNX,
[written by optimum](../guides/from-hugging-face.md#other-architectures) or
[by another tool](../guides/from-onnx.md)."""


class _Family(NamedTuple):
    """A family of decoders.

    Attributes:
        name: As people call it.
        model_type: In ``config.json``.
        gguf: Value of `general.architecture`; empty where llama.cpp does not know it.
    """

    name: str
    model_type: str
    gguf: str


FAMILIES = (
    _Family("Apertus", "apertus", "apertus"),
    _Family("Aya Vision, text", "aya_vision", "cohere2"),
    _Family("Bamba", "bamba", "granitehybrid"),
    _Family("BitNet b1.58 2B4T", "bitnet", "bitnet-b1.58"),
    _Family("BitNet in llama.cpp", "bitnet", "bitnet"),
    _Family("BLOOM", "bloom", "bloom"),
    _Family("Codestral Mamba (Mamba-2)", "mamba2", "mamba2"),
    _Family("Command R", "cohere", "command-r"),
    _Family("Command R7B", "cohere2", "cohere2"),
    _Family("DeepSeek V2, V2-Lite", "deepseek_v2", "deepseek2"),
    _Family("DeepSeek V3, R1", "deepseek_v3", "deepseek2"),
    _Family("DeepSeek V3.2", "deepseek_v32", "deepseek32"),
    _Family("dots.llm1", "dots1", "dots1"),
    _Family("ERNIE 4.5", "ernie4_5", "ernie4_5"),
    _Family("ERNIE 4.5 MoE", "ernie4_5_moe", "ernie4_5-moe"),
    _Family("EXAONE 3, 3.5", "exaone", "exaone"),
    _Family("EXAONE 4", "exaone4", "exaone4"),
    _Family("Falcon (7B, 11B, 40B)", "falcon", "falcon"),
    _Family("Falcon-H1", "falcon_h1", "falcon-h1"),
    _Family("Falcon-Mamba", "falcon_mamba", "mamba"),
    _Family("Gemma", "gemma", "gemma"),
    _Family("Gemma 2", "gemma2", "gemma2"),
    _Family("Gemma 3, text (270M, 1B)", "gemma3_text", "gemma3"),
    _Family("Gemma 3 with pictures (4B and more), text", "gemma3", "gemma3"),
    _Family("Gemma 3n", "gemma3n", "gemma3n"),
    _Family("Gemma 4 (E2B, E4B, 31B, 26B-A4B), text", "gemma4", "gemma4"),
    _Family("GLM-4 (0414)", "glm4", "glm4"),
    _Family("GLM-4.5, 4.6", "glm4_moe", "glm4moe"),
    _Family("GLM-4.5V, text", "glm4v_moe", "glm4moe"),
    _Family("GLM-4.7-Flash", "glm4_moe_lite", "deepseek2"),
    _Family("GPT-2", "gpt2", "gpt2"),
    _Family("GPT-NeoX, Pythia", "gpt_neox", "gptneox"),
    _Family("gpt-oss", "gpt_oss", "gpt-oss"),
    _Family("Granite 3", "granite", "granite"),
    _Family("Granite Vision (LLaVA-NeXT), text", "llava_next", "granite"),
    _Family("Granite 3 MoE", "granitemoe", "granitemoe"),
    _Family("Granite 3 MoE with shared experts", "granitemoeshared", "granitemoe"),
    _Family("Granite 4 hybrid", "granitemoehybrid", "granitehybrid"),
    _Family("Hunyuan, dense", "hunyuan_v1_dense", "hunyuan-dense"),
    _Family("Hunyuan A13B", "hunyuan_v1_moe", "hunyuan-moe"),
    _Family("Idefics 3, text", "idefics3", "llama"),
    _Family("InternLM 2, 2.5", "internlm2", "internlm2"),
    _Family("InternLM 3", "internlm3", "llama"),
    _Family("InternVL 3 (`-hf`) of Qwen 2.5, text", "internvl", "qwen2"),
    _Family("Jais 1", "jais", "jais"),
    _Family("Jais 2", "jais2", "jais2"),
    _Family("Jamba", "jamba", "jamba"),
    _Family("LFM2", "lfm2", "lfm2"),
    _Family("LFM2 MoE", "lfm2_moe", "lfm2moe"),
    _Family("LFM2-VL, text", "lfm2_vl", "lfm2"),
    _Family("Ling, Ring 2.0 (mini, flash)", "bailing_moe", "bailingmoe2"),
    _Family("Llama 2, 3", "llama", "llama"),
    _Family("Llama 4 (up to 8,191 tokens), text", "llama4_text", "llama4"),
    _Family("LLaVA 1.5, Pixtral, text", "llava", "llama"),
    _Family("LLaVA-OneVision, text", "llava_onevision", "qwen2"),
    _Family("Mamba", "mamba", "mamba"),
    _Family("MiniCPM 1, 2, 4", "minicpm", "minicpm"),
    _Family("MiniCPM3", "minicpm3", "minicpm3"),
    _Family("MiniMax-M2", "minimax_m2", "minimax-m2"),
    _Family("Ministral 3, text", "ministral3", "mistral3"),
    _Family("Mistral", "mistral", "llama"),
    _Family("Mistral Small 3.1, text", "mistral3", "mistral3"),
    _Family("Mixtral", "mixtral", "llama"),
    _Family("MPT", "mpt", "mpt"),
    _Family("Nemotron 3, 4, Minitron", "nemotron", "nemotron"),
    _Family("Nemotron-H", "nemotron_h", "nemotron_h"),
    _Family("Nemotron-H with experts (3 Nano)", "nemotron_h", "nemotron_h_moe"),
    _Family("OLMo 2", "olmo2", "olmo2"),
    _Family("OLMo 3", "olmo3", "olmo2"),
    _Family("OLMoE", "olmoe", "olmoe"),
    _Family("OPT", "opt", ""),
    _Family("Orion", "orion", "orion"),
    _Family("Phi-2", "phi", "phi2"),
    _Family("Phi-3, 3.5 mini, 4 mini", "phi3", "phi3"),
    _Family("PLM", "plm", "plm"),
    _Family("Qwen 2, 2.5", "qwen2", "qwen2"),
    _Family("Qwen 2 MoE", "qwen2_moe", "qwen2moe"),
    _Family("Qwen 3", "qwen3", "qwen3"),
    _Family("Qwen 3 MoE", "qwen3_moe", "qwen3moe"),
    _Family("Qwen2-VL, 2.5-VL, text", "qwen2_5_vl", "qwen2vl"),
    _Family("Qwen2-Audio, text", "qwen2_audio", "qwen2"),
    _Family("Qwen3-VL, text", "qwen3_vl", "qwen3vl"),
    _Family("Qwen3-VL MoE, text", "qwen3_vl_moe", "qwen3vlmoe"),
    _Family("Qwen3-Next", "qwen3_next", "qwen3next"),
    _Family("Qwen 3.5", "qwen3_5_text", "qwen35"),
    _Family("Qwen 3.5 MoE", "qwen3_5_moe_text", "qwen35moe"),
    _Family("RWKV 7", "rwkv7", "rwkv7"),
    _Family("Seed-OSS", "seed_oss", "seed_oss"),
    _Family("SmallThinker", "smallthinker", "smallthinker"),
    _Family("SmolLM3", "smollm3", "smollm3"),
    _Family("SmolVLM, text", "smolvlm", "llama"),
    _Family("StableLM 2", "stablelm", "stablelm"),
    _Family("StarCoder 2", "starcoder2", "starcoder2"),
    _Family("Trinity (AFMoE)", "afmoe", "afmoe"),
    _Family("Voxtral, text", "voxtral", "llama"),
)


def page(table: Table) -> str:
    """The page.

    Args:
        table: Makes a table of a head and rows.
    """
    head = ["decoder", "state", "GGUF", "safetensors", "what is missing"]
    return "\n\n".join(["# Which models are supported", _INTRO, table(head, rows())])


def rows() -> list[list[str]]:
    """Name, state, architecture in GGUF, ``model_type`` and what is missing of each."""
    found = []
    for family in FAMILIES:
        read = family.gguf in ARCHITECTURES, family.model_type in HF_ARCHITECTURES
        state = "works" if all(read) else "partly" if any(read) else "no"
        names = (f"`{name}`" if name else "–" for name in (family.gguf, family.model_type))
        shown = [name if each else f"no ({name})" for name, each in zip(names, read, strict=True)]
        found.append([family.name, state, *shown, _lack(family, read)])
    return found


def _lack(family: _Family, read: tuple[bool, bool]) -> str:
    """Why a family is not read, or only one of its two kinds of files."""
    if all(read):
        return ""
    if read[1] and not family.gguf:
        return "llama.cpp has no such files"
    if read[0]:
        return "the configuration of a model that also reads pictures"
    return MISSING.get(family.gguf, "") or MISSING[family.model_type]
