"""The architecture of SmallThinker: routers that read what their layer reads, experts with ReLU."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.expert_weights import DOWN, GATE, UP, ExpertNames
from tamiz_exporters.mixture_traits import MixtureTraits

_EXPERT = "block_sparse_moe.experts.{}"
_MIXTURE = MixtureTraits(
    ExpertNames(
        "block_sparse_moe.primary_router",
        {GATE: f"{_EXPERT}.gate", UP: f"{_EXPERT}.up", DOWN: f"{_EXPERT}.down"},
    ),
    score="sigmoid",
    normalized=True,
    routed=True,
    early=True,
)
_SMALLTHINKER = Architecture(
    "SmallThinkerForCausalLM",
    "smallthinker",
    own_keys={
        "sliding_window": "sliding_window_size",
        "num_experts": "moe_num_primary_experts",
        "num_experts_per_tok": "moe_num_active_primary_experts",
        "moe_intermediate_size": "moe_ffn_hidden_size",
    },
    activation="relu",
    global_every=4,
    global_first=True,
    turns_in_windows=True,
    mixture=_MIXTURE,
)

#: By `general.architecture`.
SMALLTHINKER = {"smallthinker": _SMALLTHINKER}
#: By `model_type`, where scores of experts are a softmax.
WITH_SOFTMAX = {"smallthinker": replace(_SMALLTHINKER, mixture=replace(_MIXTURE, score="softmax"))}
