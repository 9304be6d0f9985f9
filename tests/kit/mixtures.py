"""Tiny models of the architectures with experts, and of Granite, which has them or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    "granite": {"architecture": "granite"},
    "granitemoe": {"architecture": "granitemoe", "experts": 4, "tied": False},
}

#: Architectures whose experts have another width than a dense block.
_OWN_WIDTH = ("qwen2moe", "qwen3moe", "ernie4_5-moe")
#: Architectures with an expert that all tokens take.
_SHARING = ("qwen2moe", "ernie4_5-moe")


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


def gguf_experts(model: TinyModel) -> dict[str, str]:
    """Hugging Face's names of the weights of all experts, ``{}`` for each → the file's tensor."""
    each = "mlp.experts.{}"
    return {
        f"model.layers.{layer}.{each}.{part}_proj.weight": f"blk.{layer}.ffn_{part}_exps.weight"
        for layer in range(model.dense_layers, model.layers if model.experts else 0)
        for part in ("gate", "up", "down")
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
    if model.architecture in _SHARING:
        writer.add_expert_shared_feed_forward_length(model.shared_ffn)
    if model.architecture == "ernie4_5-moe":
        writer.add_leading_dense_block_count(model.dense_layers)
        writer.add_interleave_moe_layer_step(1)
        writer.add_expert_shared_count(model.shared_ffn // model.expert_ffn)
