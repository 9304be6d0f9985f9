"""Tiny decoders to recognise, ways to change them, and running them against one another."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import tamiz_ops
from tamiz.api.passes import GraphPass, Note, Phase, in_order
from tamiz_exporters.alibi import alibi_slopes
from tamiz_exporters.decoder_config import DecoderConfig, LayerAttention, Rotary
from tamiz_exporters.decoder_graph import build_decoder
from tamiz_passes.plugin import tamiz_find_sites, tamiz_graph_passes

HIDDEN, FFN, VOCABULARY, HEAD_DIM = 64, 96, 250, 16
FREQUENCY = (1e4 ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)).astype(np.float32)

#: attention_mask and the number of new tokens: a prompt with left padding; several tokens after a
#: past, with padding and a hole; a step.
CASES = {
    "prompt": ([[1] * 8, [0] * 3 + [1] * 5, [1] * 8], 8),
    "continued": ([[1] * 9, [0] * 3 + [1] * 6, [1, 0] + [1] * 7], 4),
    "step": ([[1] * 16, [0] * 4 + [1] * 12], 1),
}
#: Of one layer, by their names in it, in order.
LAYER_SITES = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attention",
    "attn_o",
    "ffn_gate",
    "ffn_up",
    "ffn",
    "ffn_down",
]


def decoder(
    *,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    rotary: int = HEAD_DIM,
    biases: bool = False,
    head_norms: bool = False,
    tied: bool = True,
    score_cap: float = 0.0,
    logit_cap: float = 0.0,
    sinks: bool = False,
    norms_behind: bool = False,
    slopes: bool = False,
) -> ir.Model:
    """A llama with random weights, as the GGUF exporter writes it."""
    random = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}

    def linear(name: str, k: int, n: int, bias: bool = False) -> None:
        weights[f"{name}.weight"] = random.normal(0, k**-0.5, (k, n))
        if bias:
            weights[f"{name}.bias"] = random.normal(0, 0.5, n)

    def norm(name: str, size: int = HIDDEN) -> None:
        weights[f"{name}.weight"] = random.uniform(0.5, 1.5, size)

    weights["model.embed_tokens.weight"] = random.normal(0, 1, (VOCABULARY, HIDDEN))
    for layer in range(layers):
        name = f"model.layers.{layer}"
        for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            linear(f"{name}.self_attn.{part}_proj", HIDDEN, count * HEAD_DIM, biases)
        linear(f"{name}.self_attn.o_proj", heads * HEAD_DIM, HIDDEN)
        linear(f"{name}.mlp.gate_proj", HIDDEN, FFN)
        linear(f"{name}.mlp.up_proj", HIDDEN, FFN)
        linear(f"{name}.mlp.down_proj", FFN, HIDDEN)
        norm(f"{name}.input_layernorm")
        norm(f"{name}.post_attention_layernorm")
        if head_norms or norms_behind:
            norm(f"{name}.self_attn.q_norm", HEAD_DIM)
            norm(f"{name}.self_attn.k_norm", HEAD_DIM)
        if sinks:
            weights[f"{name}.self_attn.sinks"] = random.normal(0, 2, heads)
    norm("model.norm")
    if not tied:
        linear("lm_head", HIDDEN, VOCABULARY)
    attention = LayerAttention(Rotary(FREQUENCY[: rotary // 2]))
    config = DecoderConfig(
        heads,
        kv_heads,
        HEAD_DIM,
        1e-5,
        (attention,) * layers,
        score_cap=score_cap,
        logit_cap=logit_cap,
        norms_behind=norms_behind,
        slopes=alibi_slopes(heads) if slopes else (),
    )
    tensors = {k: ir.tensor(v.astype(np.float32), name=k) for k, v in weights.items()}
    return build_decoder(config, tensors)


def run_passes(model: ir.Model, phase: Phase = Phase.RECOGNISE) -> list[Note]:
    """Runs the passes of a phase, and finds the sites after those that recognise."""
    notes: list[Note] = []
    for kind in ordered(phase):
        instance = kind()
        instance(model)
        notes += instance.notes
    if phase is Phase.RECOGNISE:
        notes += tamiz_find_sites(model)[1]
    return notes


def ordered(phase: Phase) -> list[type[GraphPass]]:
    return [kind for kind in in_order(tamiz_graph_passes()) if kind.phase is phase]


def ops(model: ir.Model) -> list[str]:
    """The ops of the graph in order, without the slice that picks logits."""
    return [n.op_type for n in model.graph if not (n.name or "").startswith("logits_to_keep")]


def node_named(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def insert_before(
    model: ir.Model, name: str, index: int, make: Callable[[ir.Value], list[ir.Node]]
) -> None:
    """Puts nodes made from an input of node `name` in front of that input."""
    node = node_named(model, name)
    value = node.inputs[index]
    assert value is not None
    nodes = make(value)
    nodes[-1].outputs[0].name = nodes[-1].outputs[0].name or f"{name}.inserted"
    model.graph.insert_before(node, nodes)
    node.replace_input_with(index, nodes[-1].outputs[0])


def constant(model: ir.Model, name: str, array: object, dtype: type = np.float32) -> ir.Value:
    numbers: np.ndarray = np.asarray(array, dtype)
    tensor = ir.tensor(numbers, name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape(numbers.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
    )
    model.graph.register_initializer(value)
    return value


def session(model: ir.Model | Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    tamiz_ops.register(options)
    source = str(model) if isinstance(model, Path) else ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(source, options)


def largest_error(before: ort.InferenceSession, after: ort.InferenceSession, case: str) -> float:
    """Largest relative error of any output over the tokens that are not padding."""
    mask, length = np.array(CASES[case][0], np.int64), CASES[case][1]
    errors = []
    for a, b in zip(_run(before, mask, length), _run(after, mask, length), strict=True):
        valid = mask[:, -length:] if a.ndim == 3 else mask
        if a.ndim == 4:
            a, b = a.transpose(0, 2, 1, 3), b.transpose(0, 2, 1, 3)
        a, b = a[valid != 0], b[valid != 0]
        errors.append(float(np.abs(a - b).max() / np.abs(a).max()))
    return max(errors)


def _run(session: ort.InferenceSession, mask: np.ndarray, length: int) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    ids = random.integers(0, 250, (len(mask), length))
    feeds = {
        "input_ids": ids,
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(ids),
        "position_ids": np.maximum(mask.cumsum(1) - 1, 0)[:, -length:],
    }
    past = mask.shape[1] - length
    for item in session.get_inputs():
        if item.name.startswith("past"):
            shape = (len(mask), item.shape[1], past, item.shape[3])
            feeds[item.name] = random.standard_normal(shape, np.float32)
    given = {item.name for item in session.get_inputs()}
    return session.run(None, {k: v for k, v in feeds.items() if k in given})


def attentions(model: ir.Model) -> list[ir.Node]:
    return [n for n in model.graph if n.op_type == "Attention" and n.domain == "tamiz"]
