"""Tiny models of the architectures with experts, and of Granite, which has them or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import gguf

    from kit.tiny_gguf import TinyModel

#: Arguments of `tiny_gguf.random_model` by architecture.
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"experts": 5, "tied": False},
    "qwen2moe": {"architecture": "qwen2moe", "experts": 5, "biases": True},
    "qwen3moe": {
        "architecture": "qwen3moe",
        "experts": 6,
        "top": 3,
        "head_dim": 32,
        "rotary_dim": 32,
    },
    "olmoe": {"architecture": "olmoe", "experts": 4, "tied": False},
    "ernie4_5-moe": {
        "architecture": "ernie4_5-moe",
        "experts": 6,
        "top": 3,
        "dense_layers": 1,
        "rope_base": 5e5,
    },
    "gpt-oss": {
        "architecture": "gpt-oss",
        "experts": 5,
        "layers": 3,
        "biases": True,
        "tied": False,
        "window": 8,
        "rope_base": 150000.0,
        "yarn": (8.0, 16),
    },
    "glm4moe": {
        "architecture": "glm4moe",
        "experts": 6,
        "top": 2,
        "groups": (3, 2),
        "dense_layers": 1,
        "layers": 3,
        "biases": True,
        "tied": False,
        "rotary_dim": 8,
    },
    "granite": {"architecture": "granite"},
    "granitemoe": {"architecture": "granitemoe", "experts": 4, "tied": False},
}

#: Architectures whose experts have another width than a dense block.
_OWN_WIDTH = (
    *("qwen2moe", "qwen3moe", "qwen35moe", "qwen3next", "ernie4_5-moe", "gpt-oss", "glm4moe"),
    "deepseek2",
)
#: Architectures where a score of its own says what the expert that all tokens take counts.
SHARED_GATES = ("qwen2moe", "qwen35moe", "qwen3next")
#: Architectures with an expert that all tokens take.
_SHARING = (*SHARED_GATES, "ernie4_5-moe", "glm4moe", "deepseek2")
#: Architectures with numbers that are added to scores for the choice.
CORRECTED = ("ernie4_5-moe", "glm4moe")
#: What the weights of the chosen experts of glm4moe and deepseek2 are multiplied by.
ROUTED_SCALE = 2.5


def has_sigmoids(model: TinyModel) -> bool:
    """Whether scores of experts are sigmoids, each for itself."""
    return model.architecture == "glm4moe" or model.sigmoids


def mixed_layers(model: TinyModel) -> int:
    """Layers with experts."""
    return model.layers - model.dense_layers if model.experts else 0


def dense_blocks(model: TinyModel) -> int:
    """Feed-forward blocks of all layers that every token takes."""
    mixed = mixed_layers(model)
    return model.layers - mixed + (mixed if model.architecture in _SHARING else 0)


def expert_widths(model: TinyModel) -> dict[str, int]:
    """The widths of the feed-forward blocks of a layer with experts, by name."""
    widths = {f"mlp.experts.{e}": model.expert_ffn for e in range(model.experts)}
    if model.architecture in _SHARING:
        widths["mlp.shared_expert"] = model.shared_ffn
    return widths


def gpt_oss_weights(
    model: TinyModel, layer: str, normal: Callable[..., np.ndarray]
) -> Iterator[tuple[str, np.ndarray]]:
    """Sinks, and biases large enough that the activation is clamped."""
    if model.architecture != "gpt-oss":
        return
    yield f"{layer}.self_attn.o_proj.bias", normal(model.hidden)
    yield f"{layer}.self_attn.sinks.weight", normal(model.heads, scale=2.0)
    yield f"{layer}.mlp.gate.bias", normal(model.experts)
    for block, width in expert_widths(model).items():
        for part in ("gate", "up"):
            yield f"{layer}.{block}.{part}_proj.bias", normal(width, scale=4.0)
        yield f"{layer}.{block}.down_proj.bias", normal(model.hidden)


def gpt_oss_tensors(
    model: TinyModel, found: dict[str, np.ndarray], microscaled: bool
) -> dict[str, np.ndarray]:
    """The weights as transformers stores them: experts turned, or blocks of MXFP4 and scales."""
    own = {
        name.replace(".mlp.gate.", ".mlp.router.").replace(".sinks.weight", ".sinks"): value
        for name, value in found.items()
        if ".experts." not in name
    }
    for layer in range(model.layers):
        stem = f"model.layers.{layer}.mlp.experts"

        def stack(part: str, what: str, stem: str = stem) -> np.ndarray:
            return np.stack([found[f"{stem}.{e}.{part}_proj.{what}"] for e in range(model.experts)])

        for what, end in (("weight", ""), ("bias", "_bias")):
            both = np.stack([stack("gate", what), stack("up", what)], 2)
            rows = both.reshape(model.experts, -1, *both.shape[3:])
            for name, value in (("gate_up_proj", rows), ("down_proj", stack("down", what))):
                if end or not microscaled:
                    own[f"{stem}.{name}{end}"] = value if end else value.swapaxes(1, 2)
                else:
                    blocks = _microscaled(value)
                    own[f"{stem}.{name}_blocks"], own[f"{stem}.{name}_scales"] = blocks
    return own


def _microscaled(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight that MXFP4 holds, as pairs of inputs 2i and 2i + 1, and exponents."""
    import gguf

    packed = gguf.quants.quantize(weight, gguf.GGMLQuantizationType.MXFP4)
    blocks = packed.reshape(*weight.shape[:2], -1, 17)
    halves = np.concatenate([blocks[..., 1:] & 15, blocks[..., 1:] >> 4], -1)
    return halves[..., 0::2] | halves[..., 1::2] << 4, blocks[..., 0]


def gguf_experts(model: TinyModel) -> dict[str, str]:
    """Hugging Face's names of the weights of all experts, ``{}`` for each → the file's tensor."""
    each = "mlp.experts.{}"
    return {
        f"model.layers.{layer}.{each}.{part}_proj.{what}": f"blk.{layer}.ffn_{part}_exps.{what}"
        for layer in range(model.dense_layers, model.layers if model.experts else 0)
        for part in ("gate", "up", "down")
        for what in ("weight", *(["bias"] if model.architecture == "gpt-oss" else []))
    }


def add_expert_keys(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    """Writes the widths of feed-forward blocks, and what GGUF says of experts."""
    own_width = model.architecture in _OWN_WIDTH
    writer.add_feed_forward_length(
        model.expert_ffn if model.experts and not own_width else model.ffn
    )
    if not model.experts:
        return
    writer.add_expert_count(model.experts)
    writer.add_expert_used_count(model.top)
    if own_width:
        writer.add_expert_feed_forward_length(model.expert_ffn)
    if model.architecture in (*SHARED_GATES, "ernie4_5-moe"):
        writer.add_expert_shared_feed_forward_length(model.shared_ffn)
    if model.architecture in ("glm4moe", "deepseek2"):
        import gguf

        sigmoids = has_sigmoids(model)
        scores = gguf.ExpertGatingFuncType
        writer.add_leading_dense_block_count(model.dense_layers)
        writer.add_expert_shared_count(model.shared_ffn // model.expert_ffn)
        writer.add_expert_gating_func(scores.SIGMOID if sigmoids else scores.SOFTMAX)
        writer.add_expert_weights_scale(ROUTED_SCALE)
        writer.add_expert_weights_norm(sigmoids)
        writer.add_expert_group_count(model.groups[0])
        writer.add_expert_group_used_count(model.groups[1])
    if model.architecture == "ernie4_5-moe":
        writer.add_leading_dense_block_count(model.dense_layers)
        writer.add_interleave_moe_layer_step(1)
        writer.add_expert_shared_count(model.shared_ffn // model.expert_ffn)
