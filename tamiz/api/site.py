"""Sites: the places of a model where a technique may act."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class SiteKind(str, Enum):
    """What kind of computation a site is."""

    LINEAR = "linear"
    FFN = "ffn"
    ATTENTION = "attention"
    HEAD = "head"
    EMBEDDING = "embedding"
    EXPERTS = "experts"


#: Tensor ids of a decoder layer and of the model's two ends, as GGUF and the policy name them.
TENSOR_IDS = (
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_exps",
    "ffn_up_exps",
    "ffn_down_exps",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_o",
    "tok_embd",
    "output",
)


@dataclass(frozen=True)
class Site:
    """One place where a technique may act.

    Attributes:
        id: Stable name: ``layers.7.ffn_down``, ``layers.7.ffn``, ``layers.7.attention``,
            ``tok_embd``, ``output``, or ``linear.<initializer>`` where the graph is unknown.
        kind: What kind of computation it is.
        node: Name of the node that a technique replaces.
        layer: Decoder layer, counted from 0; None outside of layers.
        tensor: Tensor id, one of `TENSOR_IDS`; None for composite and unnamed sites.
        weight: Name of the constant weight; None for composite sites.
        in_features: K, the length of the reduced dimension; 0 for composite sites.
        out_features: N, the number of outputs (rows of an embedding); 0 for composite sites.
        transposed: True where the constant is stored ``[N, K]`` (Gemm with transB, a transposed
            tied head, an embedding table), False for MatMul's ``[K, N]``.
        members: Ids of the sites that a composite site (ffn, attention) is made of.
        head_size: Elements of a key of an attention that was recognised; 0 elsewhere.
        heads: Query heads of such an attention; 0 elsewhere.
        layers: How many decoder layers the model has; 0 where none is known.
        shared: True where another site has the same weight, as a tied embedding and head.
        format: Name of the weight format that the weight is packed in, as its source stores it
            (`tamiz_ops.formats`); None where it is float32.
        logit_cap: c of a head whose outputs y become the logits c · tanh(y / c); 0 elsewhere.
        decoder: Whether the model is a decoder of texts.
        experts: How many experts a site of experts has, whose outputs lie one after the other among
            `out_features`; 0 elsewhere. They share one format, so they are one site.
        top: How many of them a token takes; 0 elsewhere.
    """

    id: str
    kind: SiteKind
    node: str
    layer: int | None = None
    tensor: str | None = None
    weight: str | None = None
    in_features: int = 0
    out_features: int = 0
    transposed: bool = False
    members: tuple[str, ...] = field(default=())
    head_size: int = 0
    heads: int = 0
    layers: int = 0
    shared: bool = False
    format: str | None = None
    logit_cap: float = 0.0
    decoder: bool = True
    experts: int = 0
    top: int = 0


def taken_share(site: Site) -> float:
    """Share of a site's weights that a decode step reads: of experts, those that a token takes."""
    return site.top / site.experts if site.experts else 1.0
