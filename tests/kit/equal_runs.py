"""Tiny models whose rows have the same bits in runs of any length."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest

from kit import tiny_gguf
from kit.delta_nets import DELTA_NETS
from kit.family_files import write_gguf as write_family
from kit.gemma4 import MODELS as GEMMA_4
from kit.gemma4 import random_gemma4
from kit.gemma4 import write_gguf as write_gemma
from kit.latents import LATENTS
from kit.mamba_gguf import write_gguf as write_mamba
from kit.mambas import MAMBAS, random_mamba
from kit.mixtures import MIXTURES
from kit.streams import random_streams
from kit.streams import write_gguf as write_streams
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.testing import tiny_llama

Kind = gguf.GGMLQuantizationType
#: Writes a GGUF file with linear layers of a kind.
Write = Callable[[Path, gguf.GGMLQuantizationType], object]


def write_llama(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny llama of 512 positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_llama, "CONTEXT", 512)
        tiny_llama.write_tiny_llama(path, linears)


def write_gemma2(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Gemma 2 whose scores and logits reach into their soft caps."""
    shape: dict[str, Any] = {"architecture": "gemma2", "window": 150, "soft_caps": (1.0, 3.0)}
    tiny_gguf.write(path, tiny_gguf.random_model(**shape), linears)


def write_mixture(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Qwen 2 MoE: experts, and a shared one."""
    shape: dict[str, Any] = {"architecture": "qwen2moe", "experts": 7, "top": 3, "tied": False}
    tiny_gguf.write(path, tiny_gguf.random_model(**shape), linears)


def write_gpt_oss(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny gpt-oss: sinks, windows in every second layer, experts in MXFP4 with biases."""
    shape = {**MIXTURES["gpt-oss"], "window": 150}
    tiny_gguf.write(path, tiny_gguf.random_model(**shape), linears, Kind.MXFP4)


def write_lfm2(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny LFM2: short convolutions in place of attention in half of the layers."""
    tiny_gguf.write(path, tiny_gguf.random_model(architecture="lfm2", layers=4), linears)


def write_deepseek(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny DeepSeek-V3: keys and values of a latent, whose matrices are stored apart."""
    tiny_gguf.write(path, tiny_gguf.random_model(**LATENTS["deepseek 3"], split=True), linears)


def write_minicpm3(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny MiniCPM3: keys and values of a latent, whose matrices are stored as one."""
    tiny_gguf.write(path, tiny_gguf.random_model(**LATENTS["minicpm3"]), linears)


def write_bitnet(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny BitNet: ternary matrices, and norms before the last product of each block."""
    model = tiny_gguf.random_model(
        architecture="bitnet", hidden=256, ffn=512, head_dim=64, rotary_dim=64
    )
    tiny_gguf.write(path, model, linears)


def write_qwen35(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Qwen 3.5: gated delta nets in place of attention in three of four layers."""
    tiny_gguf.write(path, tiny_gguf.random_model(**DELTA_NETS["qwen35"]), linears)


def write_granite4(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Granite 4: selective state spaces in place of attention in three of four layers."""
    write_mamba(path, random_mamba(**MAMBAS["granite 4 MoE"]), linears)


def write_falcon_h1(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Falcon-H1: selective state spaces beside attention."""
    write_mamba(path, random_mamba(**MAMBAS["falcon h1"]), linears)


def write_mamba2(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Mamba-2: selective state spaces, and no layer that attends."""
    write_mamba(path, random_mamba(**MAMBAS["mamba 2"]), linears)


def write_falcon_mamba(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Falcon-Mamba: selective state spaces of Mamba's first version alone."""
    write_family(path, "falcon mamba", linears)


def write_jamba(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Jamba: such state spaces, attention in one layer, experts in every second one."""
    write_family(path, "jamba", linears)


def write_nemotron_h(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Nemotron-H: each layer is one block."""
    write_mamba(path, random_mamba(**MAMBAS["nemotron h"]), linears)


def write_nemotron_h_moe(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Nemotron-H with experts, which have no gate."""
    write_mamba(path, random_mamba(**MAMBAS["nemotron h MoE"]), linears)


def write_gemma3n(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Gemma 3n: several residual streams, layers that share keys and values."""
    write_streams(path, random_streams(window=150), linears)


def write_gemma4(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Gemma 4: heads of two sizes, inputs of layers, layers that share keys and values."""
    write_gemma(path, random_gemma4(**GEMMA_4["inputs of layers"] | {"window": 150}), linears)


def write_gemma4_moe(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Gemma 4 with experts beside its blocks, and values made of the product of keys."""
    write_gemma(path, random_gemma4(**GEMMA_4["experts"] | {"window": 150}), linears)


def write_hunyuan(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny Hunyuan: norms of queries and keys behind the rotation."""
    write_family(path, "hunyuan", linears)


def write_mpt(path: Path, linears: gguf.GGMLQuantizationType) -> None:
    """A tiny MPT: a bias by distance in place of positions."""
    write_family(path, "mpt", linears)


_LLAMAS: dict[str, tuple[gguf.GGMLQuantizationType, dict[str, Any]]] = {
    "q4_1": (Kind.Q4_1, {}),
    "q4_0": (Kind.Q4_0, {}),
    "q5_0": (Kind.Q5_0, {}),
    "q8_0 kv-int8": (Kind.Q8_0, {"kv-int8": {}}),
    "f16": (Kind.F16, {}),
    "bf16 kv-int8": (Kind.BF16, {"kv-int8": {}}),
    "q8_0 8-bit activations": (Kind.Q8_0, {"activation-bits": {}}),
    "q4_1 window": (Kind.Q4_1, {"window-attention": {"tokens": 150}}),
    "q4_1 window kv-int8": (Kind.Q4_1, {"window-attention": {"tokens": 30}, "kv-int8": {}}),
    "ternary": (Kind.F16, {"ternary": {"max_error": 1.0}}),
    "seed-delta": (Kind.F16, {"seed-delta": {"k": 32}}),
    "proc-sparse": (Kind.Q8_0, {"proc-sparse": {"fanout": 2, "shed_eps": 0.0}}),
    "kwta": (Kind.Q4_1, {"kwta": {"k": 0.5, "select": "topk", "duty": 3}}),
    "tensor-train": (Kind.F16, {"tensor-train": {}}),
}
#: Weights and techniques of the models, and what writes them.
MODELS: dict[str, tuple[gguf.GGMLQuantizationType, dict[str, Any], Write]] = {
    **{name: (*model, write_llama) for name, model in _LLAMAS.items()},
    "gemma2": (Kind.Q8_0, {}, write_gemma2),
    "mixture": (Kind.Q8_0, {}, write_mixture),
    "lfm2": (Kind.Q8_0, {}, write_lfm2),
    "lfm2 kv-int8": (Kind.F16, {"kv-int8": {}}, write_lfm2),
    "qwen35": (Kind.Q8_0, {}, write_qwen35),
    "qwen35 kv-int8": (Kind.F16, {"kv-int8": {}}, write_qwen35),
    "granite4": (Kind.Q8_0, {}, write_granite4),
    "falcon-h1": (Kind.Q8_0, {}, write_falcon_h1),
    "falcon-h1 kv-int8": (Kind.F16, {"kv-int8": {}}, write_falcon_h1),
    "mamba2": (Kind.Q8_0, {}, write_mamba2),
    "falcon-mamba": (Kind.Q8_0, {}, write_falcon_mamba),
    "jamba": (Kind.Q8_0, {}, write_jamba),
    "jamba kv-int8": (Kind.F16, {"kv-int8": {}}, write_jamba),
    "nemotron-h": (Kind.Q8_0, {}, write_nemotron_h),
    "nemotron-h moe": (Kind.Q8_0, {}, write_nemotron_h_moe),
    "gemma2 kv-int8": (Kind.F16, {"kv-int8": {}}, write_gemma2),
    "gemma3n": (Kind.Q8_0, {}, write_gemma3n),
    "gemma3n kv-int8": (Kind.F16, {"kv-int8": {}}, write_gemma3n),
    "gemma4": (Kind.Q8_0, {}, write_gemma4),
    "gemma4 moe": (Kind.Q8_0, {}, write_gemma4_moe),
    "gemma4 moe kv-int8": (Kind.F16, {"kv-int8": {}}, write_gemma4_moe),
    "hunyuan kv-int8": (Kind.F16, {"kv-int8": {}}, write_hunyuan),
    "mpt kv-int8": (Kind.F16, {"kv-int8": {}}, write_mpt),
    "deepseek": (Kind.Q8_0, {}, write_deepseek),
    "minicpm3": (Kind.Q4_1, {}, write_minicpm3),
    "bitnet": (Kind.TQ2_0, {}, write_bitnet),
    "gpt-oss": (Kind.Q8_0, {}, write_gpt_oss),
    "gpt-oss kv-int8": (Kind.BF16, {"kv-int8": {}}, write_gpt_oss),
}


def build_model(
    folder: Path,
    linears: gguf.GGMLQuantizationType,
    techniques: dict[str, Any],
    write: Write,
    plugins: Plugins,
) -> Path:
    """Builds a tiny model of 512 positions; skips the test where a technique is not installed."""
    if missing := sorted(set(techniques) - set(plugins.techniques())):
        pytest.skip(f"not installed: {', '.join(missing)}")
    write(folder / "tiny.gguf", linears)
    dense = export(str(folder / "tiny.gguf"), folder / "dense", plugins, "stored").path
    policy = folder / "policy.json"
    policy.write_text(json.dumps({"version": 1, "defaults": {"gating": {}}}))
    chosen = choose(plugins.techniques(), techniques)
    build(dense, folder / "built", chosen, plugins, Options(max_dppl=None, policy=policy))
    assert set(techniques) <= set(Bundle.open(folder / "built").manifest.techniques)
    return folder / "built"
