"""The architectures with selective state spaces: alone, or with attention."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.activations import RELU2
from tamiz_exporters.architecture import LAYER, Architecture
from tamiz_exporters.expert_weights import DOWN, GATE, UP
from tamiz_exporters.mamba_traits import (
    BAMBA_MAMBA,
    FALCON_MAMBA,
    FIRST_MAMBA,
    GRANITE_MAMBA,
    JAMBA_MAMBA,
    NEMOTRON_MAMBA,
    NORMED_MAMBA,
    PURE_MAMBA,
)
from tamiz_exporters.mixture_traits import GRANITE_NAMES, JAMBA_MIXTURE, MIXTRAL, NEMOTRON

_PARTS = tuple(f"mlp.{part}" for part in (GATE, UP, DOWN))
_SHARED_IN, _SHARED_OUT = "shared_mlp.input_linear", "shared_mlp.output_linear"
_ATTENTION = [f"self_attn.{part}_proj" for part in "qkvo"]
#: Each layer is one block.
_ONE_BLOCK = {name: LAYER[name] for name in (*_ATTENTION, *_PARTS[1:], "input_layernorm")}

_FEED_FORWARD = {
    **{name: name.replace("mlp", "feed_forward") for name in _PARTS},
    "post_attention_layernorm": "pre_ff_layernorm",
}

_GRANITE = Architecture(
    "GraniteMoeHybridForCausalLM",
    "granitemoehybrid",
    own_names={_PARTS[2]: _SHARED_OUT},
    hf_fused={_SHARED_IN: _PARTS[:2]},
    mamba=GRANITE_MAMBA,
    pairs=True,
    multiplied=True,
    ffn_key="shared_intermediate_size",
)

_NEMOTRON = Architecture(
    "NemotronHForCausalLM",
    "nemotron_h",
    _ONE_BLOCK,
    {
        **{name: f"mixer.{name.partition('.')[2]}" for name in _ONE_BLOCK},
        "input_layernorm": "norm",
    },
    last_norm=("norm_f", "output_norm"),
    epsilon_key="layer_norm_epsilon",
    mamba=NEMOTRON_MAMBA,
    activation=RELU2,
    embedding="embeddings",
    activation_key="mlp_hidden_act",
)

_MAMBA_2 = Architecture(
    "Mamba2ForCausalLM",
    "mamba2",
    {"input_layernorm": LAYER["input_layernorm"]},
    {"input_layernorm": "norm"},
    last_norm=("norm_f", "output_norm"),
    epsilon_key="layer_norm_epsilon",
    mamba=PURE_MAMBA,
    embedding="embeddings",
    context=1 << 20,
)

#: By `general.architecture`.
HYBRIDS = {
    "granitehybrid": _GRANITE,
    "falcon-h1": Architecture(
        "FalconH1ForCausalLM",
        "falcon_h1",
        own_names=_FEED_FORWARD,
        last_norm=("final_layernorm", "output_norm"),
        mamba=FALCON_MAMBA,
    ),
    "jamba": Architecture(
        "JambaForCausalLM",
        "jamba",
        own_names=_FEED_FORWARD,
        last_norm=("final_layernorm", "output_norm"),
        mamba=JAMBA_MAMBA,
        mixture=JAMBA_MIXTURE,
    ),
    "mamba": replace(
        _MAMBA_2, model_class="MambaForCausalLM", model_type="mamba", mamba=FIRST_MAMBA
    ),
    "mamba2": _MAMBA_2,
    "nemotron_h": _NEMOTRON,
    "nemotron_h_moe": replace(_NEMOTRON, mixture=NEMOTRON),
}

#: By `model_type`, of models that GGUF calls a hybrid of Granite.
HF_HYBRIDS = {
    "bamba": Architecture(
        "BambaForCausalLM",
        "bamba",
        own_names=_FEED_FORWARD,
        last_norm=("final_layernorm", "output_norm"),
        rotated=0.5,
        defaults={"position_embedding_type": "rope"},
        mamba=BAMBA_MAMBA,
    ),
}

#: By `general.architecture`, where what a state space selects is normed.
WITH_NORMED_STATES = {
    "mamba": replace(
        HYBRIDS["mamba"],
        model_class="FalconMambaForCausalLM",
        model_type="falcon_mamba",
        mamba=NORMED_MAMBA,
    ),
}

#: By `general.architecture`, where the file has experts.
HYBRIDS_WITH_EXPERTS = {
    "granitehybrid": replace(
        _GRANITE,
        mixture=replace(
            MIXTRAL,
            names=replace(
                GRANITE_NAMES,
                shared={GATE: _SHARED_IN, UP: _SHARED_IN, DOWN: _SHARED_OUT},
            ),
            score="softmax_of_chosen",
            normalize=False,
            shared_key="shared_intermediate_size",
        ),
    ),
}
