"""What tells the selective state spaces of architectures apart, and their names in sources."""

from __future__ import annotations

from dataclasses import dataclass

from tamiz_exporters.mamba_weights import MambaNames, hf_mamba_names


@dataclass(frozen=True)
class MambaTraits:
    """What tells the selective state spaces of architectures apart.

    Attributes:
        names: A layer's weights in transformers.
        beside: Whether each layer has one beside its attention; otherwise in place of it.
        one_block: Whether a layer is one block: a state space, attention or a feed-forward block.
        alone: Whether every layer is a state space, and none attends.
        heads_key: Number of heads in ``config.json``.
        groups_key: Groups of them that share B and C.
        head_key: Length of a head.
        state_key: Length of B and C.
        taps_key: Tokens that the convolution mixes.
        norm_key: Whether the output is normed; empty: it is.
        norm_first_key: Whether the norm comes before the gate; empty: it does not.
        activation_key: The activation of its convolution and its gate, which is SiLU.
    """

    names: MambaNames
    beside: bool = False
    one_block: bool = False
    alone: bool = False
    heads_key: str = "mamba_n_heads"
    groups_key: str = "mamba_n_groups"
    head_key: str = "mamba_d_head"
    state_key: str = "mamba_d_state"
    taps_key: str = "mamba_d_conv"
    norm_key: str = ""
    norm_first_key: str = ""
    activation_key: str = "mamba_hidden_act"


GRANITE_MAMBA = MambaTraits(hf_mamba_names("mamba"))
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
