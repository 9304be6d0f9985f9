"""What tells the mixtures of experts of architectures apart, and their names in sources."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, replace

from tamiz_exporters.expert_weights import DOWN, GATE, UP, ExpertNames


@dataclass(frozen=True)
class MixtureTraits:
    """What tells the mixtures of experts of architectures apart.

    Attributes:
        names: A layer's weights in transformers.
        stacked: These names in files that have all experts in one tensor; None: there are none.
        count_key: Number of experts in ``config.json``.
        top_key: Number of them that a token takes in ``config.json``.
        width_key: Width of an expert in ``config.json``.
        gguf_width_key: Width of an expert in GGUF.
        score: See `decoder_config.Experts`.
        normalize: Whether the weights of the chosen are divided by their sum in GGUF, where no key
            says it; of routers that are not read, in any case.
        normalized: Whether they are where ``config.json`` says nothing.
        normalize_key: What says it in ``config.json``; empty: as in GGUF.
        shared_key: Width of the shared expert in ``config.json``; empty: there is none.
        shared_counts: Whether it is a number of experts instead, as wide as the others.
        gguf_counts: Whether GGUF has their number, too.
        turned: Whether transformers has the tensors of `ExpertSource`.
        routed: Whether the router's score, groups, factor and division by the sum are read.
        span_keys: First, last and interval of the layers with experts in ``config.json``, of which
            the last two may be empty; None: they are in the keys of Qwen.
        first: First layer with experts where ``config.json`` says none.
        scale: Factor on the weights of the chosen where ``config.json`` says none.
        groups: Groups, and how many a token takes, where ``config.json`` says none.
        beside: Whether they stand beside the feed-forward block.
        shared_alike: Whether GGUF has no key for the shared expert, as wide as the others.
        listed_key: Layers with experts in ``config.json``, where it lists them; empty: it does not.
        scales_input: Whether what an expert reads is multiplied by its weight.
        early: Whether the router reads the input of its layer.
    """

    names: ExpertNames
    stacked: ExpertNames | None = None
    count_key: str = "num_experts"
    top_key: str = "num_experts_per_tok"
    width_key: str = "moe_intermediate_size"
    gguf_width_key: str = "expert_feed_forward_length"
    score: str = "softmax"
    normalize: bool = True
    normalized: bool = False
    normalize_key: str = "norm_topk_prob"
    shared_key: str = ""
    shared_counts: bool = False
    gguf_counts: bool = False
    turned: bool = False
    routed: bool = False
    span_keys: tuple[str, str, str] | None = None
    first: int = 1
    scale: float = 1.0
    groups: tuple[int, int] = (1, 1)
    beside: bool = False
    shared_alike: bool = False
    listed_key: str = ""
    scales_input: bool = False
    early: bool = False


def _expert_names(router: str, each: str, parts: tuple[str, str, str]) -> ExpertNames:
    """Names of tensors of single experts, gate, up and down."""
    names = zip((GATE, UP, DOWN), parts, strict=True)
    return ExpertNames(router, {part: f"{each}.{{}}.{name}" for part, name in names})


QWEN_EXPERTS = _expert_names("mlp.gate", "mlp.experts", (GATE, UP, DOWN))
QWEN_EXPERTS_SHARED = replace(
    QWEN_EXPERTS,
    shared={part: f"mlp.shared_expert.{part}" for part in (GATE, UP, DOWN)},
    shared_gate="mlp.shared_expert_gate",
)
ERNIE_EXPERTS = replace(
    QWEN_EXPERTS,
    shared={part: f"mlp.shared_experts.{part}" for part in (GATE, UP, DOWN)},
    bias="mlp.moe_statics.e_score_correction_bias",
)
GLM_EXPERTS = replace(ERNIE_EXPERTS, bias="mlp.gate.e_score_correction_bias")
MIXTRAL_NAMES = _expert_names(
    "block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")
)
GRANITE_NAMES = ExpertNames(
    "block_sparse_moe.router.layer",
    {
        **dict.fromkeys((GATE, UP), "block_sparse_moe.input_linear"),
        DOWN: "block_sparse_moe.output_linear",
    },
)
GPT_OSS_NAMES = ExpertNames(
    "mlp.router",
    {
        **dict.fromkeys((GATE, UP), "mlp.experts.gate_up_proj"),
        DOWN: "mlp.experts.down_proj",
    },
    interleaved=True,
)
#: Names of experts' weights in GGUF.
GGUF_EXPERTS = ExpertNames(
    "ffn_gate_inp",
    {GATE: "ffn_gate_exps", UP: "ffn_up_exps", DOWN: "ffn_down_exps"},
    {GATE: "ffn_gate_shexp", UP: "ffn_up_shexp", DOWN: "ffn_down_shexp"},
    "ffn_gate_inp_shexp",
    "exp_probs_b.bias",
)
#: Of experts beside a feed-forward block, with gate and up in one tensor where it is there.
GGUF_BESIDE = replace(
    GGUF_EXPERTS,
    shared={},
    shared_gate="",
    bias="",
    router_norm="ffn_gate_inp.scale",
    factors="ffn_down_exps.scale",
)
GGUF_BESIDE_FUSED = replace(
    GGUF_BESIDE,
    parts={**dict.fromkeys((GATE, UP), "ffn_gate_up_exps"), DOWN: "ffn_down_exps"},
)
#: Of experts without a gate.
GGUF_UNGATED = replace(
    GGUF_EXPERTS,
    parts={part: GGUF_EXPERTS.parts[part] for part in (UP, DOWN)},
    shared={part: GGUF_EXPERTS.shared[part] for part in (UP, DOWN)},
)


def gguf_expert_names(traits: MixtureTraits, tensors: Container[str]) -> ExpertNames:
    """Names of experts' weights in a GGUF with such tensors."""
    if traits.beside:
        fused = f"blk.0.{GGUF_BESIDE_FUSED.parts[GATE]}.weight" in tensors
        return GGUF_BESIDE_FUSED if fused else GGUF_BESIDE
    return GGUF_EXPERTS if GATE in traits.names.parts else GGUF_UNGATED


NEMOTRON = MixtureTraits(
    ExpertNames(
        "mixer.gate",
        {part: f"mixer.experts.{{}}.{part}" for part in (UP, DOWN)},
        {part: f"mixer.shared_experts.{part}" for part in (UP, DOWN)},
        bias="mixer.gate.e_score_correction_bias",
    ),
    count_key="n_routed_experts",
    score="sigmoid",
    normalize=False,
    normalized=True,
    shared_key="moe_shared_expert_intermediate_size",
    routed=True,
)
DEEPSEEK = MixtureTraits(
    replace(ERNIE_EXPERTS, bias=""),
    count_key="n_routed_experts",
    normalize=False,
    normalize_key="",
    shared_key="n_shared_experts",
    shared_counts=True,
    gguf_counts=True,
    routed=True,
    span_keys=("first_k_dense_replace", "", ""),
    first=0,
)
DEEPSEEK_3 = replace(
    DEEPSEEK,
    names=GLM_EXPERTS,
    score="sigmoid",
    normalize_key="norm_topk_prob",
    normalized=True,
    first=3,
    scale=2.5,
    groups=(8, 4),
)
MIXTRAL = MixtureTraits(
    MIXTRAL_NAMES,
    count_key="num_local_experts",
    width_key="intermediate_size",
    gguf_width_key="feed_forward_length",
    normalize_key="",
)
_QWEN35_STACKED = replace(
    QWEN_EXPERTS_SHARED,
    parts={
        **dict.fromkeys((GATE, UP), "mlp.experts.gate_up_proj"),
        DOWN: "mlp.experts.down_proj",
    },
)
QWEN35_MIXTURE = MixtureTraits(
    QWEN_EXPERTS_SHARED,
    _QWEN35_STACKED,
    normalize_key="",
    shared_key="shared_expert_intermediate_size",
)
QWEN3_NEXT_MIXTURE = replace(
    QWEN35_MIXTURE, stacked=None, normalize_key="norm_topk_prob", normalized=True
)

LFM2_MIXTURE = MixtureTraits(
    replace(
        _expert_names("feed_forward.gate", "feed_forward.experts", ("w1", "w3", "w2")),
        bias="feed_forward.expert_bias",
    ),
    score="sigmoid",
    normalized=True,
    routed=True,
    span_keys=("num_dense_layers", "", ""),
    first=2,
)
JAMBA_MIXTURE = MixtureTraits(
    _expert_names("feed_forward.router", "feed_forward.experts", (GATE, UP, DOWN)),
    width_key="intermediate_size",
    gguf_width_key="feed_forward_length",
    normalize=False,
    normalize_key="",
)
MINIMAX = MixtureTraits(
    replace(MIXTRAL_NAMES, bias="block_sparse_moe.e_score_correction_bias"),
    count_key="num_local_experts",
    width_key="intermediate_size",
    score="sigmoid",
    normalize_key="",
    routed=True,
)
GEMMA_4_MIXTURE = MixtureTraits(
    ExpertNames(
        "router.proj",
        {**dict.fromkeys((GATE, UP), "experts.gate_up_proj"), DOWN: "experts.down_proj"},
        router_norm="router.scale",
        factors="router.per_expert_scale",
    ),
    top_key="top_k_experts",
    normalize_key="",
    beside=True,
)

#: What ``config.json`` calls the number of experts; transformers 5 writes the second for Qwen 3.
EXPERT_COUNTS = ("num_experts", "num_local_experts")
#: Factor on the weights of the chosen, groups and groups that are taken in ``config.json``.
ROUTER_KEYS = ("routed_scaling_factor", "n_group", "topk_group")
