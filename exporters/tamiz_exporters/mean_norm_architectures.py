"""The architectures whose norms take the mean off (LayerNorm)."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.activations import GELU_TANH, RELU2
from tamiz_exporters.architecture import PLAIN_LAYER, QKV, WITHOUT_HEAD_NORMS, Architecture

#: Attention and feed-forward read one norm.
_ONE_NORM = "post_attention_layernorm"

_COHERE = Architecture(
    "CohereForCausalLM",
    "cohere",
    {name: stored for name, stored in WITHOUT_HEAD_NORMS.items() if name != _ONE_NORM},
    epsilon_key="layer_norm_eps",
    pairs=True,
    pairs_everywhere=True,
    centred=True,
    parallel=True,
    logit_scale=0.0625,
)

_FALCON = Architecture(
    "FalconForCausalLM",
    "falcon",
    {name: stored for name, stored in PLAIN_LAYER.items() if name != _ONE_NORM},
    {
        "self_attn.o_proj": "self_attention.dense",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    },
    last_norm=("ln_f", "output_norm"),
    epsilon_key="layer_norm_epsilon",
    hf_fused={"self_attention.query_key_value": QKV},
    gguf_fused={"attn_qkv": QKV},
    layers="h",
    own_keys={"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"},
    embedding="word_embeddings",
    by_head=True,
    multi_query=True,
    ffn_factor=4,
    activation_key="activation",
    context=2048,
    activation="gelu",
    centred=True,
    parallel=True,
)

#: By `general.architecture`, where attention and feed-forward read a norm each.
WITH_TWO_NORMS = {
    "falcon": replace(
        _FALCON,
        names={**PLAIN_LAYER, "input_layernorm": "attn_norm_2", _ONE_NORM: "attn_norm"},
        own_names={**_FALCON.own_names, "input_layernorm": "ln_attn", _ONE_NORM: "ln_mlp"},
    ),
}

#: By `general.architecture`.
WITH_MEANS = {
    "command-r": _COHERE,
    "cohere2": replace(
        _COHERE,
        model_class="Cohere2ForCausalLM",
        model_type="cohere2",
        global_every=4,
        window=4096,
        turns_in_windows=True,
    ),
    "falcon": _FALCON,
    "gptneox": Architecture(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        PLAIN_LAYER,
        {
            "self_attn.o_proj": "attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        last_norm=("final_layer_norm", "output_norm"),
        epsilon_key="layer_norm_eps",
        hf_fused={"attention.query_key_value": QKV},
        gguf_fused={"attn_qkv": QKV},
        embedding="embed_in",
        head="embed_out",
        by_head=True,
        activation=GELU_TANH,
        rotated=0.25,
        centred=True,
        parallel=True,
    ),
    "jais2": Architecture(
        "Jais2ForCausalLM",
        "jais2",
        PLAIN_LAYER,
        epsilon_key="layer_norm_eps",
        activation=RELU2,
        centred=True,
    ),
    "nemotron": Architecture(
        "NemotronForCausalLM",
        "nemotron",
        PLAIN_LAYER,
        epsilon_key="norm_eps",
        activation=RELU2,
        norms_from_one=True,
        rotated=0.5,
        centred=True,
    ),
    "orion": Architecture("OrionForCausalLM", "orion", WITHOUT_HEAD_NORMS, centred=True),
    "phi2": Architecture(
        "PhiForCausalLM",
        "phi",
        {name: stored for name, stored in PLAIN_LAYER.items() if name != _ONE_NORM},
        {
            "self_attn.o_proj": "self_attn.dense",
            "mlp.up_proj": "mlp.fc1",
            "mlp.down_proj": "mlp.fc2",
        },
        last_norm=("final_layernorm", "output_norm"),
        epsilon_key="layer_norm_eps",
        activation=GELU_TANH,
        rotated=0.5,
        centred=True,
        parallel=True,
    ),
    "stablelm": Architecture(
        "StableLmForCausalLM",
        "stablelm",
        WITHOUT_HEAD_NORMS,
        epsilon_key="layer_norm_eps",
        rotated=0.25,
        centred=True,
    ),
    "starcoder2": Architecture(
        "Starcoder2ForCausalLM",
        "starcoder2",
        PLAIN_LAYER,
        {"mlp.up_proj": "mlp.c_fc", "mlp.down_proj": "mlp.c_proj"},
        epsilon_key="norm_epsilon",
        activation=GELU_TANH,
        global_every=0,
        centred=True,
    ),
}
