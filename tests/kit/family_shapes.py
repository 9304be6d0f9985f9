"""A family of tiny decoders, and shapes of tensors that families share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kit.tiny_gguf import byte_level_tokens

Shapes = dict[str, tuple[int, ...]]
HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 4
EXPERTS, EXPERT_FFN = 5, 32
Q, KV = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
VOCABULARY = len(byte_level_tokens())


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        model_class: Its class in transformers.
        model_type: Its name in ``config.json``.
        gguf: Its name in GGUF.
        layer: Tensors of a layer and their shapes, in transformers; or those of each layer.
        ends: Tensors beside the layers.
        config: Fields of ``config.json`` beside the usual ones.
        keys: Metadata of GGUF beside the usual ones, without the architecture.
        seed: Of its weights. llama.cpp looks GELU up in a table of float16, so near ties of two
            tokens may turn.
        prefix: What begins the names of tensors in place of ``model.``.
        layers: What begins the names of layers, behind that.
        experts: Of a layer that has a mixture of single ones.
        from_one: Whether weights of norms are stored less 1.
        without: Usual fields that its ``config.json`` lacks.
        turned: Whether transformers stores the matrices of layers as ``[K, N]``.
        factors: What longrope divides frequencies by, in a tensor of its own; empty for none.
        pairs: Whether GGUF has rotary pairs of q and k as neighbours.
        depth: Number of its layers.
        whole: Fields around the ``text_config`` of a model that also reads pictures.
    """

    model_class: str
    model_type: str
    gguf: str
    layer: Shapes | tuple[Shapes, ...]
    ends: Shapes
    config: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    prefix: str = "model."
    whole: dict[str, Any] | None = None
    pairs: bool = False
    depth: int = LAYERS
    layers: str = "layers"
    experts: int = EXPERTS
    from_one: bool = False
    without: tuple[str, ...] = ()
    turned: bool = False
    factors: tuple[float, ...] = ()


def norms(*names: str, width: int = HIDDEN) -> Shapes:
    return {f"{name}.weight": (width,) for name in names}


def biases(shapes: Shapes) -> Shapes:
    """The shapes with a bias beside each weight."""
    biases = {name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}
    return shapes | biases


QKV: Shapes = {
    "self_attn.q_proj.weight": (Q, HIDDEN),
    "self_attn.k_proj.weight": (KV, HIDDEN),
    "self_attn.v_proj.weight": (KV, HIDDEN),
}
OUT: Shapes = {"self_attn.o_proj.weight": (HIDDEN, Q)}
DOWN: Shapes = {"mlp.down_proj.weight": (HIDDEN, FFN)}
MLP: Shapes = {
    "mlp.gate_proj.weight": (FFN, HIDDEN),
    "mlp.up_proj.weight": (FFN, HIDDEN),
    **DOWN,
}
ENDS: Shapes = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    "model.norm.weight": (HIDDEN,),
    "lm_head.weight": (VOCABULARY, HIDDEN),
}
TIED = {name: shape for name, shape in ENDS.items() if name != "lm_head.weight"}
