"""Small graphs with one part in a form that a tool writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

HEADS, KV_HEADS, SIZE, HIDDEN, VOCABULARY = 4, 2, 16, 64, 50
_QUERY, _KEY = HEADS * SIZE, KV_HEADS * SIZE
Constants = Mapping[str, np.ndarray]


def numbers(*shape: int, scale: float = 1.0) -> np.ndarray:
    random = np.random.default_rng(sum(shape))
    return (scale * random.standard_normal(shape)).astype(np.float32)


def _parsed(text: str, constants: Constants, opset: int = 22) -> ir.Model:
    """A model of ONNX's text form; ``__`` in a name is a dot."""
    header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>\n'
    proto = onnx.parser.parse_model(header + text)
    for name, array in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    for value in (*model.graph.inputs, *model.graph.outputs):
        value.name = (value.name or "").replace("__", ".")
    return model


_DECODER = """
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask{positions},
   float[batch, {kv}, past, {size}] past_key_values__0__key,
   float[batch, {kv}, past, {size}] past_key_values__0__value)
=> (float[batch, sequence, 50] logits, float[batch, {kv}, total, {size}] present__0__key,
    float[batch, {kv}, total, {size}] present__0__value) {{
    x = Gather(embedding, input_ids)
    {body}
    o = MatMul(y, w_o)
    logits = MatMul(o, w_head)
}}
"""
_SEPARATE = "q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v)"
#: Lengths as onnxruntime-genai's builder computes them.
_LENGTHS = """
    sum = ReduceSum <keepdims = 0> (attention_mask, one_axis) less = Sub(sum, one)
    seqlens = Cast <to = 6> (less)
    shape = Shape(attention_mask) keys = Gather(shape, one) total_length = Cast <to = 6> (keys)
"""
_PASTS = "past_key_values__0__key, past_key_values__0__value"
_RESULTS = "y, present__0__key, present__0__value"
_COMMON: dict[str, np.ndarray] = {
    "embedding": numbers(VOCABULARY, HIDDEN),
    "w_head": numbers(HIDDEN, VOCABULARY, scale=0.2),
    "one": np.array(1),
    "one_axis": np.array([1]),
}


def tables(positions: int = 64, base: float = 1e4, rotated: int = SIZE) -> dict[str, np.ndarray]:
    """Cosines and sines as builders compute them, in float32."""
    frequency = (1 / base ** (np.arange(0, rotated, 2) / rotated)).astype(np.float32)
    angle = np.arange(positions, dtype=np.float32)[:, None] * frequency
    return {"cos": np.cos(angle), "sin": np.sin(angle)}


def decoder(
    body: str,
    more: Constants | None = None,
    *,
    opset: int = 22,
    positions: bool = False,
    kv_heads: int = KV_HEADS,
    size: int = SIZE,
) -> ir.Model:
    """A decoder of one attention, of which `body` computes y and the presents from x."""
    given = ", int64[batch, sequence] position_ids" if positions else ""
    text = _DECODER.format(body=body, positions=given, kv=kv_heads, size=size)
    return _parsed(text, _COMMON | _weights(kv_heads, size) | dict(more or {}), opset)


def _weights(kv_heads: int, size: int) -> dict[str, np.ndarray]:
    """Of the four linears around an attention."""
    query, key = HEADS * size, kv_heads * size
    widths = {"w_q": query, "w_k": key, "w_v": key}
    found = {name: numbers(HIDDEN, n, scale=0.2) for name, n in widths.items()}
    found["w_v"] = found["w_v"][::-1].copy()  # not the numbers of w_k
    return found | {"w_o": numbers(query, HIDDEN, scale=0.2)[::-1].copy()}


def grouped(
    attributes: str = "", more: str = "", packed: bool = False, size: int = SIZE, **constants: Any
) -> Any:
    """A maker of GroupQueryAttention."""

    def make() -> ir.Model:
        weights = _weights(KV_HEADS, size)
        given = {"w_qkv": np.concatenate([weights[w] for w in ("w_q", "w_k", "w_v")], axis=1)}
        before = "qkv = MatMul(x, w_qkv)" if packed else _SEPARATE
        values = "qkv, , " if packed else "q, k, v"
        called = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}{attributes}"
        body = f"""{before} {_LENGTHS}
            {_RESULTS} = com.microsoft.GroupQueryAttention <{called}>
                ({values}, {_PASTS}, seqlens, total_length{more})"""
        return decoder(body, given | tables() | constants, size=size)

    return make


def head_norms() -> ir.Model:
    """Norms of heads in front of GroupQueryAttention, as the builder writes Qwen 3."""
    norm = """
        {0}_heads = Reshape({0}, to_heads) {0}_normed = SimplifiedLayerNormalization <axis = -1,
            epsilon = 1e-6, stash_type = 1> ({0}_heads, head_scale)
        {0}_joined = Reshape({0}_normed, {0}_width)
    """
    called = f"num_heads = {HEADS}, kv_num_heads = {KV_HEADS}, do_rotary = 1"
    body = f"""{_SEPARATE} {_LENGTHS} {norm.format("q")} {norm.format("k")}
        {_RESULTS} = com.microsoft.GroupQueryAttention <{called}>
            (q_joined, k_joined, v, {_PASTS}, seqlens, total_length, cos, sin)"""
    more = {
        "to_heads": np.array([0, -1, SIZE]),
        "q_width": np.array([0, -1, _QUERY]),
        "k_width": np.array([0, -1, _KEY]),
        "head_scale": 1 + numbers(SIZE, scale=0.1),
    }
    return decoder(body, more | tables())


_BLOCK = """
g (float[batch, sequence, 64] x) => (float[batch, sequence, {width}] y) {{
    {body}
}}
"""


def block(body: str, width: int = 64, opset: int = 22, **constants: np.ndarray) -> Any:
    """A maker of a graph that computes y from x."""
    return lambda: _parsed(_BLOCK.format(body=body, width=width), constants, opset)


WEIGHT, _UP = numbers(64, 96, scale=0.2), numbers(64, 97, scale=0.2)[:, 1:].copy()
_DOWN = numbers(96, 64, scale=0.2)
SCALE, SHIFT = 1 + numbers(64, scale=0.1), numbers(65, scale=0.1)[1:].copy()
_LINEARS = {"w_gate": WEIGHT, "w_up": _UP, "w_down": _DOWN}


def feed_forward(activation: str, gated: bool = True, opset: int = 22, **constants: Any) -> Any:
    """A maker of a feed-forward block; `activation` computes a from g."""
    up = "u = MatMul(x, w_up) h = Mul(a, u)" if gated else "h = Identity(a)"
    body = f"g = MatMul(x, w_gate) {activation} {up} y = MatMul(h, w_down)"
    return block(body, opset=opset, **(_LINEARS | constants))


#: Constants of an attention whose keys have as many heads as its queries.
_WHOLE_HEADS: dict[str, np.ndarray] = {
    "to_heads": np.array([0, 0, HEADS, SIZE]),
    "width": np.array([0, 0, _QUERY]),
    "far": np.array(-1e9, np.float32),
    "nothing": np.array(0, np.float32),
    "quarter": np.array(0.25, np.float32),
    "frequency": (1e-4 ** (np.arange(0, SIZE, 2) / SIZE)).astype(np.float32),
    "w_k": numbers(HIDDEN, _QUERY, scale=0.2)[::-1].copy(),
    "w_v": numbers(HIDDEN, _QUERY, scale=0.2)[:, ::-1].copy(),
    "second": np.array([1]),
    "third": np.array([1, 2]),
    "behind": np.array([2]),
    "front": np.array([0, 1]),
    "zero": np.array(0),
    "front_half": np.array([0]),
    "middle": np.array([SIZE // 2]),
    "end": np.array([SIZE]),
    "last": np.array([-1]),
    "rest": np.array([-1]),
    "heads": np.array([HEADS]),
    "size": np.array([SIZE]),
}


def multi_head(rotary: str, mask: str = "", opset: int = 22, domain: str = "com.microsoft") -> Any:
    """A maker of attention whose keys are appended before the op."""

    def make() -> ir.Model:
        heads = "{0}_split = Reshape({1}, to_heads) {0}_new = Transpose<perm=[0,2,1,3]>({0}_split)"
        joined = "{0}_turned = Transpose<perm=[0,2,1,3]>({1}) {0}_all = Reshape({0}_turned, width)"
        body = f"""{_SEPARATE} {rotary} {heads.format("k", "k_rotated")} {heads.format("v", "v")}
            present__0__key = Concat <axis = 2> (past_key_values__0__key, k_new)
            present__0__value = Concat <axis = 2> (past_key_values__0__value, v_new)
            {joined.format("k", "present__0__key")} {joined.format("v", "present__0__value")}
            {mask}"""
        if domain:
            body += f"""
                y = com.microsoft.MultiHeadAttention <num_heads = {HEADS}>
                    (q_rotated, k_all, v_all, , , bias)"""
        else:
            body += f"""
                y = Attention <q_num_heads = {HEADS}, kv_num_heads = {HEADS}>
                    (q_rotated, k_all, v_all, bias)"""
        return decoder(body, _WHOLE_HEADS | tables(), opset=opset, positions=True, kv_heads=HEADS)

    return make


#: The causal mask of attention_mask, as a bias on the scores.
BIAS = """
    mask_shape = Shape(attention_mask) ids_shape = Shape(input_ids)
    key_count = Gather(mask_shape, one) query_count = Gather(ids_shape, one)
    start = Sub(key_count, query_count)
    key_places = Range(zero, key_count, one) query_places = Range(start, key_count, one)
    query_column = Unsqueeze(query_places, second)
    causal = LessOrEqual(key_places, query_column)
    shown = Cast <to = 9> (attention_mask) shown_keys = Unsqueeze(shown, third)
    visible = And(causal, shown_keys)
    bias = Where(visible, nothing, far)
"""
#: The same, for prompts and single steps only: the mask of other tokens has no shape.
PROMPT_OR_STEP = """
    mask_shape = Shape(attention_mask) ids_shape = Shape(input_ids)
    query_count = Gather(ids_shape, one) places = Range(zero, query_count, one)
    column = Unsqueeze(places, second) own = LessOrEqual(places, column)
    lengths = Shape <start = 1, end = 2> (input_ids)
    totals = Shape <start = 1, end = 2> (attention_mask)
    sizes = Concat <axis = 0> (lengths, totals) causal = Expand(own, sizes)
    shown = Cast <to = 9> (attention_mask) shown_keys = Unsqueeze(shown, third)
    visible = And(causal, shown_keys)
    bias = Where(visible, nothing, far)
"""
ROTATED = """
    q_rotated = com.microsoft.RotaryEmbedding (q, position_ids, cos, sin)
    k_rotated = com.microsoft.RotaryEmbedding (k, position_ids, cos, sin)
"""
ROTATED_23 = f"""
    q_rotated = RotaryEmbedding <num_heads = {HEADS}> (q, cos, sin, position_ids)
    k_rotated = RotaryEmbedding <num_heads = {HEADS}> (k, cos, sin, position_ids)
"""
#: Cosines and sines of each token instead of tables of positions.
ROTATED_COMPUTED = f"""
    place = Cast <to = 1> (position_ids) places = Unsqueeze(place, behind)
    angle = Mul(places, frequency) cosines = Cos(angle) sines = Sin(angle)
    q_rotated = RotaryEmbedding <num_heads = {HEADS}> (q, cosines, sines)
    k_rotated = RotaryEmbedding <num_heads = {HEADS}> (k, cosines, sines)
"""


def primitive(rotary: str = "", keys: str = "", past: str = "") -> Any:
    """A maker of attention in primitive ops.

    Args:
        rotary: Computes q_turned and k_turned from q_heads and k_heads ``[B, H, S, D]``.
        keys: Computes k_columns ``[B, H, D, T]`` from present__0__key.
        past: Computes past from past_key_values__0__key.
    """
    rotary = rotary or "q_turned = Identity(q_heads) k_turned = Identity(k_heads)"
    keys = keys or "k_columns = Transpose <perm = [0, 1, 3, 2]> (present__0__key)"
    past = past or "past = Identity(past_key_values__0__key)"

    def make() -> ir.Model:
        split = """{0}_split = Reshape({0}, to_heads)
            {0}_heads = Transpose <perm = [0, 2, 1, 3]> ({0}_split)"""
        body = f"""{_SEPARATE} {BIAS} {" ".join(split.format(x) for x in "qkv")} {rotary} {past}
            present__0__key = Concat <axis = 2> (past, k_turned)
            present__0__value = Concat <axis = 2> (past_key_values__0__value, v_heads)
            {keys}
            scores = MatMul(q_turned, k_columns) scaled = Mul(scores, quarter)
            biased = Add(scaled, bias) weights = Softmax <axis = -1> (biased)
            sums = MatMul(weights, present__0__value) turned = Transpose<perm=[0,2,1,3]>(sums)
            y = Reshape(turned, width)"""
        return decoder(body, _WHOLE_HEADS | tables(rotated=8), positions=True, kv_heads=HEADS)

    return make


#: Turns the first half of each head by an op.
TURNED_IN_PART = """
    {0}_low = Slice({0}_heads, front_half, middle, last)
    {0}_high = Slice({0}_heads, middle, end, last)
    {0}_rotated = com.microsoft.RotaryEmbedding ({0}_low, position_ids, cos, sin)
    {0}_turned = Concat <axis = -1> ({0}_rotated, {0}_high)
"""
#: Batch and heads are one dimension on the way.
FLAT_KEYS = """
    count = Unsqueeze(key_count, front_half) flat_shape = Concat <axis = 0> (rest, count, size)
    flat = Reshape(present__0__key, flat_shape) flat_columns = Transpose <perm=[0,2,1]> (flat)
    column_shape = Concat <axis = 0> (rest, heads, size, count)
    k_columns = Reshape(flat_columns, column_shape)
"""
