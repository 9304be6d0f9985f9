"""Attentions of encoders as tools write them, each with a small graph; see `kit.graph_forms`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

#: Tokens in the table of positions.
LONGEST = 12
#: Tokens of the vocabulary, and longest row.
TOKENS = 50
_ENCODER = """<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
g (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask)
=> (float[batch, sequence, 32] y) {{
    length = Shape <start = 1, end = 2> (input_ids)
    index = Slice (numbers, zero, length, one)
    placed = Gather (positions, index) looked = Gather (words, input_ids)
    x = Add (looked, placed)
    q = MatMul (x, wq) k = MatMul (x, wk) v = MatMul (x, wv)
    {}
    y = Add (x, a)
}}
"""
_HEADS = """
    q4 = Reshape (q, heads) qt = Transpose <perm = [0, 2, 1, 3]> (q4)
    k4 = Reshape (k, heads) v4 = Reshape (v, heads) vt = Transpose <perm = [0, 2, 1, 3]> (v4)"""
_MASK = """
    shown = Cast <to = 9> (attention_mask) keys = Unsqueeze (shown, middle)
    batch = Shape <start = 0, end = 1> (input_ids)
    size = Concat <axis = 0> (batch, one, length, length) mask = Expand (keys, size)"""
_JOINED = "a4 = Transpose <perm = [0, 2, 1, 3]> (at) a = Reshape (a4, joined)"
_LENGTHS = """
    narrow = Cast <to = 6> (attention_mask) lengths = ReduceSum <keepdims = 0> (narrow, one)"""
_DISTANCE = """
    count = Squeeze (length) column = Range (begin, count, step) row = Unsqueeze (column, one)
    distance = Sub (column, row)"""
#: A bias of each distance, beyond 3 that of 3; of all distances; of the places of both tokens.
_BUCKETS = f"""{_DISTANCE}
    near = Clip (distance, least, most) bucket = Add (near, most)
    found = Gather (biases, bucket) bias = Transpose <perm = [2, 0, 1]> (found)"""
_SLOPE = f"""{_DISTANCE}
    apart = Abs (distance) apart_by = Cast <to = 1> (apart) bias = Mul (apart_by, quarter)"""
_PLACES = """
    both = Concat <axis = 0> (length, length) none = Concat <axis = 0> (zero, zero)
    bias = Slice (square, none, both)"""
_HIDDEN = """
    shown = Cast <to = 1> (attention_mask) keys = Unsqueeze (shown, middle)
    hidden = Sub (unit, keys) low = Mul (hidden, lowest)"""
_PRODUCT = f"""{_HEADS} kt = Transpose <perm = [0, 2, 3, 1]> (k4) product = MatMul (qt, kt)
    small = Mul (product, quarter)"""
_WEIGHTED = f"weights = Softmax (masked) at = MatMul (weights, vt) {_JOINED}"
_MASKED = f"biased = Add (small, bias) masked = Add (biased, low) {_WEIGHTED}"


@dataclass(frozen=True)
class EncoderForm:
    """A form of an encoder's attention.

    Attributes:
        title: The form, in Markdown.
        tools: Who writes it.
        nodes: From q, k and v to a, in ONNX's text form.
        refused: What is said where it stays; None where it becomes TextAttention.
    """

    title: str
    tools: str
    nodes: str
    refused: str | None = None


def _attention(attributes: str) -> str:
    kt = "kt = Transpose <perm = [0, 2, 1, 3]> (k4)"
    return f"{_HEADS} {kt} {_MASK} at = Attention {attributes} (qt, kt, vt, mask) {_JOINED}"


def _multi_head(attributes: str) -> str:
    of = f"<num_heads = 2{attributes}>"
    return f"{_LENGTHS} a = com.microsoft.MultiHeadAttention {of} (q, k, v, , lengths)"


FORMS = (
    EncoderForm(
        "primitive ops",
        "optimum, torch, ONNX Runtime",
        f"{_PRODUCT} {_MASK} masked = Where (mask, small, lowest) {_WEIGHTED}",
    ),
    EncoderForm(
        "… with a bias of the distance of two tokens, as MPNet has",
        "optimum, torch",
        f"{_PRODUCT} {_HIDDEN} {_BUCKETS} {_MASKED}",
    ),
    EncoderForm(
        "… in one sum with the mask, as T5 has",
        "optimum, torch",
        f"""{_PRODUCT} {_HIDDEN} {_BUCKETS} added = Add (bias, low)
        masked = Add (small, added) {_WEIGHTED}""",
    ),
    EncoderForm(
        "… with a bias that grows with all distances, as ALiBi",
        "torch",
        f"{_PRODUCT} {_HIDDEN} {_SLOPE} {_MASKED}",
        "What is added to scores still changes at a distance of 1023 tokens, expected at most 256.",
    ),
    EncoderForm(
        "… with a bias of the places of both tokens",
        "–",
        f"{_PRODUCT} {_HIDDEN} {_PLACES} {_MASKED}",
        "What is added to scores depends on more than the distance of tokens.",
    ),
    EncoderForm("`Attention` of ONNX, opset 23", "torch with `dynamo=True`", _attention("")),
    EncoderForm(
        "… with its heads side by side",
        "onnxscript",
        f"{_MASK} a = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v, mask)",
    ),
    EncoderForm(
        "… with a bias of the distance of two tokens in its mask",
        "torch with `dynamo=True`",
        f"""{_HEADS} kt = Transpose <perm = [0, 2, 1, 3]> (k4) {_HIDDEN} {_BUCKETS}
        added = Add (bias, low) at = Attention (qt, kt, vt, added) {_JOINED}""",
    ),
    EncoderForm(
        "… with `is_causal`",
        "–",
        _attention("<is_causal = 1>"),
        "The output is not what tamiz.TextAttention computes (relative error",
    ),
    EncoderForm(
        "… with `softcap`",
        "–",
        _attention("<softcap = 20.0>"),
        "Scores have a soft cap, expected none in an encoder.",
    ),
    EncoderForm(
        "`MultiHeadAttention` and `Attention` of `com.microsoft`",
        "onnxruntime.transformers",
        _multi_head(""),
    ),
    EncoderForm(
        "… with `unidirectional`",
        "–",
        _multi_head(", unidirectional = 1"),
        "The output is not what tamiz.TextAttention computes (relative error",
    ),
)


def encoder(form: EncoderForm) -> ir.Model:
    """An encoder of one attention, whose positions are cut off a table of numbers."""
    proto = onnx.parser.parse_model(_ENCODER.format(form.nodes))
    random = np.random.default_rng(0)
    constants = {
        **{name: random.standard_normal((32, 32)).astype("f4") / 5 for name in ("wq", "wk", "wv")},
        **{
            name: random.standard_normal((TOKENS, 32)).astype("f4")
            for name in ("words", "positions")
        },
        "biases": random.standard_normal((7, 2)).astype("f4"),
        "square": random.standard_normal((64, 64)).astype("f4"),
        "least": np.int64(-3),
        "most": np.int64(3),
        "begin": np.int64(0),
        "step": np.int64(1),
        "unit": np.float32(1),
        "numbers": np.arange(LONGEST)[None],
        "heads": np.array([0, 0, 2, 16]),
        "joined": np.array([0, 0, 32]),
        "middle": np.array([1, 2]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "quarter": np.float32(0.25),
        "lowest": np.float32(-3e38),
    }
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(proto)
