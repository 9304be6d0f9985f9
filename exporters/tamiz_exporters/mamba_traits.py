"""What tells the selective state spaces of architectures apart, and their names in sources."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tamiz_exporters.mamba_weights import MambaNames, hf_mamba_names
from tamiz_exporters.scan_weights import ScanNames, hf_scan_names


@dataclass(frozen=True, kw_only=True)
class StateSpaceTraits:
    """What tells the selective state spaces of architectures apart.

    Attributes:
        beside: Whether each layer has one beside its attention; otherwise in place of it.
        one_block: Whether a layer is one block: a state space, attention or a feed-forward block.
        alone: Whether every layer is a state space, and none attends.
        turns: Whether heads of attention may have a rotary embedding.
        state_key: Length of B and C in ``config.json``.
        taps_key: Tokens that the convolution mixes.
        activation_key: The activation of its convolution and its gate, which is SiLU.
    """

    beside: bool = False
    one_block: bool = False
    alone: bool = False
    turns: bool = True
    state_key: str = "mamba_d_state"
    taps_key: str = "mamba_d_conv"
    activation_key: str = "mamba_hidden_act"


@dataclass(frozen=True)
class MambaTraits(StateSpaceTraits):
    """Of Mamba-2.

    Attributes:
        names: A layer's weights in transformers.
        heads_key: Number of heads in ``config.json``.
        groups_key: Groups of them that share B and C.
        head_key: Length of a head.
        norm_key: Whether the output is normed; empty: it is.
        norm_first_key: Whether the norm comes before the gate; empty: it does not.
        listed_key: Numbers of the layers that attend; empty: kinds are listed by layer.
    """

    names: MambaNames
    heads_key: str = "mamba_n_heads"
    groups_key: str = "mamba_n_groups"
    head_key: str = "mamba_d_head"
    norm_key: str = ""
    norm_first_key: str = ""
    listed_key: str = ""


@dataclass(frozen=True)
class ScanTraits(StateSpaceTraits):
    """Of Mamba's first version.

    Attributes:
        names: A layer's weights in transformers.
        width_key: Number of channels in ``config.json``; empty: `expand_key` says it.
        expand_key: That number over the width of the residual stream.
        rank_key: Length of what dt is made of.
        epsilon_key: ε of norms of what dt is made of, of B and of C; empty: these are not normed.
        weighed: Whether these norms have weights.
        attention_keys: Every how many layers one attends, and the first that does; empty: none.
        expert_keys: Likewise of layers with experts.
    """

    names: ScanNames
    width_key: str = "intermediate_size"
    expand_key: str = "expand"
    rank_key: str = "time_step_rank"
    epsilon_key: str = ""
    weighed: bool = False
    attention_keys: tuple[str, ...] = ()
    expert_keys: tuple[str, ...] = ()


GRANITE_MAMBA = MambaTraits(hf_mamba_names("mamba"))
BAMBA_MAMBA = replace(GRANITE_MAMBA, listed_key="attn_layer_indices", activation_key="hidden_act")
FALCON_MAMBA = MambaTraits(
    hf_mamba_names("mamba"),
    beside=True,
    norm_key="mamba_rms_norm",
    norm_first_key="mamba_norm_before_gate",
)
NEMOTRON_MAMBA = MambaTraits(
    hf_mamba_names("mixer"),
    one_block=True,
    heads_key="mamba_num_heads",
    groups_key="n_groups",
    head_key="mamba_head_dim",
    state_key="ssm_state_size",
    taps_key="conv_kernel",
)
PURE_MAMBA = MambaTraits(
    hf_mamba_names("mixer"),
    one_block=True,
    alone=True,
    heads_key="num_heads",
    groups_key="n_groups",
    head_key="head_dim",
    state_key="state_size",
    taps_key="conv_kernel",
    activation_key="hidden_act",
)
FIRST_MAMBA = ScanTraits(
    hf_scan_names("mixer"),
    one_block=True,
    alone=True,
    state_key="state_size",
    taps_key="conv_kernel",
    activation_key="hidden_act",
)
NORMED_MAMBA = replace(FIRST_MAMBA, epsilon_key="mixer_rms_eps")
JAMBA_MAMBA = ScanTraits(
    hf_scan_names("mamba"),
    width_key="",
    expand_key="mamba_expand",
    rank_key="mamba_dt_rank",
    epsilon_key="rms_norm_eps",
    weighed=True,
    attention_keys=("attn_layer_period", "attn_layer_offset"),
    expert_keys=("expert_layer_period", "expert_layer_offset"),
    turns=False,
    activation_key="hidden_act",
)
