"""Attention in NumPy, in float64: rotary embedding, KV cache, windows and sketch filters."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import event_attention_reference, sketch_reference
from tamiz_ops.cache_rows import (
    PAGE,
    pack_rows,
    round_queries,
    round_weights,
    unpack_rows,
)
from tamiz_ops.declarations import ports
from tamiz_ops.event_attention_reference import soft_cap

Array = npt.NDArray[Any]


def rotate(x: Array, position_ids: Array, inverse_frequency: Array, factor: float) -> Array:
    """Rotary embedding, pairs (i, i + R/2) of the first R dimensions (Su et al. 2021).

    Args:
        x: [batch, sequence, heads, head size].
        position_ids: [batch, sequence].
        inverse_frequency: float32 [R/2].
        factor: of cosine and sine.

    Returns:
        The rotated x. The angle is a float32 product, as in the models' own code: at position 8000
        its rounding is worth 2e-4, and the models were trained with it.
    """
    half = len(inverse_frequency)
    angle = position_ids.astype(np.float32)[..., np.newaxis] * inverse_frequency
    cosine = np.cos(angle.astype(np.float64))[:, :, np.newaxis] * factor
    sine = np.sin(angle.astype(np.float64))[:, :, np.newaxis] * factor
    a, b, rest = np.split(x.astype(np.float64), [half, 2 * half], axis=-1)
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine, rest], axis=-1)


def attention(
    q: Array,
    k: Array | None,
    v: Array | None,
    past_key: Array,
    past_value: Array | None,
    attention_mask: Array,
    position_ids: Array,
    inverse_frequency: Array | None = None,
    past_sketch: Array | None = None,
    key_mean: Array | None = None,
    past_event: Array | None = None,
    key_scale: Array | None = None,
    head_sink: Array | None = None,
    query_weight: Array | None = None,
    head_slope: Array | None = None,
    *,
    num_heads: int,
    kv_heads: int,
    scale: float = 0.0,
    softcap: float = 0.0,
    rotary_scale: float = 1.0,
    cache_bits: int = 32,
    theta: float = 0.027,
    least_keys: int = 0,
    age_max: int = 32,
    turn: int = 0,
    gap_tol: float = 0.25,
    **choice: Any,
) -> list[Array]:
    """y = softmax(soft_cap(scale q k^T, softcap)) v over the visible keys, 0 where there is none.

    Query i of row b sees the keys j <= past + i with attention_mask[b, j] != 0, past = keys -
    sequence, of which `choice` (window, sinks, keep, ...; see the op) leaves some. Returns [y,
    present_key, present_value] and, with past_sketch, present_sketch, with past_event,
    present_event; a present is as long as
    attention_mask, or has the shape of the past where that is a buffer of at least this many keys.
    With cache_bits = 8 the pasts and presents of keys and values are `pack_rows`, and what is
    attended to is what they stand for. Keys are less key_mean there, unless there is a softcap,
    or head_sink, and divided by key_scale, and queries multiplied by it. Queries are then rounded
    to 16 bits, and weights times the scales of values to 8 without a sign, in blocks of `PAGE`
    keys. exp(head_sink) of a query head joins the sum of its softmax. Rotated queries are
    multiplied by query_weight. head_slope times (j - past - i) is added to the score of query i and
    key j.

    Without v the values are the keys as they are stored, less no mean, and there is no
    present_value. Without k the pasts hold all keys, and there are no presents.
    """
    batch, tokens, width = q.shape
    dim = width // num_heads
    past = attention_mask.shape[1] - tokens
    queries = q.reshape(batch, tokens, num_heads, dim).astype(np.float64)
    new = [x.reshape(batch, tokens, kv_heads, dim) for x in (k, v) if x is not None]
    if inverse_frequency is not None:
        queries = rotate(queries, position_ids, inverse_frequency, rotary_scale)
        new[:1] = [rotate(x, position_ids, inverse_frequency, rotary_scale) for x in new[:1]]
    if query_weight is not None:
        queries = queries * query_weight
    # What 8-bit keys lack; a soft cap, a sink, or values that are keys would not cancel it.
    centred = cache_bits == 8 and not softcap and head_sink is None and past_value is not None
    mean = key_mean if centred else None
    pasts = [rows for rows in (past_key, past_value) if rows is not None]
    stored = _stored(new, cache_bits, mean, key_scale) if new else []
    presents = [_append(rows, x, past) for rows, x in zip(pasts, stored, strict=False)]
    kept = presents or pasts
    keys, *rest = map(unpack_rows, kept) if cache_bits == 8 else kept
    values = rest[0] if rest else keys
    if past_sketch is not None:
        if past_event is None:
            rows = _sketches(new[0].astype(np.float32), key_mean, **choice)
        else:
            rows = event_attention_reference.pack(new[0].astype(np.float32), key_mean)
        presents.append(_append(past_sketch, rows, past))

    queries *= scale or dim**-0.5
    group = num_heads // kv_heads
    # Queries as they meet the keys of the cache; sketches are of keys as they are.
    scaled = queries if key_scale is None else queries * np.repeat(key_scale, group, axis=0)
    met = round_queries(scaled) if cache_bits == 8 else scaled
    sketches = None if past_sketch is None or past_event is not None else presents[-1]
    y = np.zeros((batch, tokens, num_heads, dim))
    for b, i, head in np.ndindex(batch, tokens, kv_heads):
        heads = range(head * group, (head + 1) * group)
        row = None if sketches is None else sketches[b, head, : past + i + 1]
        seen = attention_mask[b, : past + i + 1] != 0
        visible = _chosen(queries[b, i, heads], row, seen, tokens, **choice)
        scales, at = None, visible
        if cache_bits == 8:
            scales = kept[len(rest)][b, head, visible, -1]
            at = list(range(len(visible))) if tokens == 1 and sketches is not None else visible
        for h in heads if len(visible) else ():
            score = soft_cap(keys[b, head, visible] @ met[b, i, h], softcap)
            if head_slope is not None:
                score = score + float(head_slope[h]) * (np.array(visible) - past - i)
            sink = None if head_sink is None else float(head_sink[h])
            y[b, i, h] = _averaged(score, values[b, head, visible], scales, at, sink)
    if past_event is not None:
        presents.append(event_attention_reference.forget(past_event, past))
        steps = tokens == 1 and (length := attention_mask.shape[1]) >= least_keys
        for b in range(batch) if steps else ():
            y[b, 0], presents[-1][b] = event_attention_reference.step(
                past_event[b], queries[b, 0], met[b, 0], keys[b, :, :length],
                values[b, :, :length], presents[-2][b, :, :length],
                kept[len(rest)][b, :, :length, -1] if cache_bits == 8 else None,
                key_mean if mean is None else None, attention_mask[b] != 0,
                theta=theta, age_max=age_max, turn=turn, gap_tol=gap_tol, softcap=softcap,
            )  # fmt: skip
    return [y.reshape(batch, tokens, width), *presents]


def attention_op(*inputs: Array | None, **attributes: Any) -> list[Array]:
    """The op with its inputs in order: `paged_attention` where `sequences` has rows."""
    given = dict(zip(ports("Attention").inputs, inputs, strict=False))
    for name in ("without_window", "without_choice"):
        given.pop(name, None)
    sequences = given.pop("sequences", None)
    if sequences is None or not len(sequences):
        return attention(**given, **attributes)  # type: ignore[arg-type]
    for name in ("attention_mask", "past_event"):
        given.pop(name, None)
    return paged_attention(**given, sequences=sequences, **attributes)  # type: ignore[arg-type]


def paged_attention(
    q: Array,
    k: Array | None,
    v: Array | None,
    past_key: Array,
    past_value: Array | None,
    position_ids: Array,
    inverse_frequency: Array | None = None,
    past_sketch: Array | None = None,
    *,
    sequences: Array,
    **given: Any,
) -> list[Array]:
    """`attention` of several sequences in one row of the batch, each by itself.

    Args:
        q, k, v: float32 [1, tokens, heads * head size]; k and v as `attention` takes them.
        past_key, past_value: [1, kv_heads, pages * PAGE, words of a row].
        position_ids: [1, tokens].
        inverse_frequency: As `attention` takes it.
        past_sketch: [1, kv_heads, pages * PAGE, words].
        sequences: int64 [segments, 2 + pages]: keys before, tokens, and the pages of the keys. -1
            tokens are one, which is a decode step; others attend to all keys.
        **given: Attributes of the op, key_mean, key_scale, head_sink, query_weight
            and head_slope.

    Returns:
        [y, present_key, present_value] and, with past_sketch, present_sketch; with neither
        value nor k less of them.
    """
    pasts = [] if k is None else [past_key, past_value, past_sketch]
    presents, y, begin = [x.copy() for x in pasts if x is not None], np.zeros(q.shape), 0
    for past, counted, *pages in sequences.tolist():
        tokens, choice = abs(counted), {} if counted < 0 else {"density": 0.0}
        part = slice(begin, begin + tokens)
        key = np.arange(past + tokens)
        rows = np.array(pages)[key // PAGE] * PAGE + key % PAGE
        k_of, v_of = (None if x is None else x[:, part] for x in (k, v))
        held = rows if k is None else rows[:past]
        values, sketch = (None if x is None else x[:, :, held] for x in (past_value, past_sketch))
        mask = np.ones((1, len(rows)), np.int64)
        outputs = attention(
            q[:, part], k_of, v_of, past_key[:, :, held], values, mask, position_ids[:, part],
            inverse_frequency, sketch, **{**given, **choice},
        )  # fmt: skip
        y[:, part] = outputs[0]
        for present, grown in zip(presents, outputs[1:], strict=True):
            present[:, :, rows] = grown
        begin += tokens
    return [y, *presents]


def _near(table: Array, distance: Array) -> Array:
    """A table [.., 2 reach + 1] at distances; beyond the reach what is at its ends."""
    reach = table.shape[-1] // 2
    found: Array = table[..., reach + np.clip(distance, -reach, reach)]
    return found


def _relative(q: Array, k: Array, c2p: Array | None, p2c: Array | None, column: Array) -> Array:
    """q_i c2p[:, b] + k_j p2c[:, b] with b = column[i, j], [heads, queries, keys]."""
    query, key = np.indices(column.shape)
    found = np.zeros((len(q), *column.shape))
    if c2p is not None:
        found += (q @ c2p)[:, query, column]
    if p2c is not None:
        found += (k @ p2c)[:, key, column]
    return found


def _stored(
    new: list[Array], cache_bits: int, mean: Array | None, scale: Array | None
) -> list[Array]:
    """Keys, and values where there are any, [batch, tokens, heads, dim] as the cache has them."""
    if cache_bits != 8:
        return [x.astype(np.float64) for x in new]
    # In float32 as in the op, where the last bit of a key decides how it is rounded.
    keys, *values = (x.astype(np.float32) for x in new)
    centred: Array = keys - (np.float32(0) if mean is None else mean)
    smoothed = centred / (np.float32(1) if scale is None else scale)
    return [pack_rows(x.astype(np.float32)) for x in (smoothed, *values)]


def _averaged(
    score: Array, values: Array, scales: Array | None, at: list[int], sink: float | None
) -> Array:
    """softmax(score) values; weights are rounded where the values have scales."""
    weight = np.exp(score - score.max())
    total = weight.sum() + (0.0 if sink is None else np.exp(sink - score.max()))
    if scales is not None:
        weight = round_weights(weight, scales, np.array(at) // PAGE)
    averaged: Array = weight @ values / total
    return averaged


def _sketches(
    keys: Array, mean: Array | None, *, ternary: int = 0, epsilon: float = 0.0, **_: Any
) -> Array:
    return sketch_reference.sketch(keys, mean, 1 + ternary, epsilon)


def _chosen(
    queries: Array,
    sketches: Array | None,
    visible: Array,
    tokens: int,
    *,
    window: int = 0,
    sinks: int = 4,
    keep: int = 0,
    keep_fraction: float = 0.0,
    recent: int = 64,
    density: float = 1.0,
    ternary: int = 0,
    epsilon: float = 0.0,
    query_bits: int = 4,
) -> list[int]:
    """The keys that the queries [group, dim] of one KV head attend to, ascending."""
    shown = np.flatnonzero(visible)  # what is hidden does not count
    scope = min(window, len(shown)) if window else len(shown)
    keep = max(keep, int(np.ceil(np.float32(keep_fraction) * np.float32(scope))))
    begin = int(shown[-scope]) if scope else 0
    kept = keep + recent + sinks
    if sketches is None or tokens > 1 or kept > density * scope or kept >= scope:
        return sketch_reference.select(queries[:0], visible, begin, begin, sinks, 0)
    bits = 32 * (sketches.shape[1] - 1) // (1 + ternary)
    score = [
        sketch_reference.scores(q, sketches, bits, 1 + ternary, epsilon, query_bits)
        for q in queries.astype(np.float32)
    ]
    last = int(shown[-recent])
    return sketch_reference.select(np.array(score), visible, begin, last, sinks, keep)


def _append(buffer: Array, new: Array, past: int) -> Array:
    """The cache [batch, heads, keys, dim] with `new` [batch, tokens, heads, dim] from `past` on."""
    batch, heads, rows, dim = buffer.shape
    end = past + new.shape[1]
    present = np.zeros((batch, heads, max(rows, end), dim), new.dtype)
    present[:, :, :rows] = buffer
    present[:, :, past:end] = new.transpose(0, 2, 1, 3)
    return present


def text_attention(
    q: Array,
    k: Array,
    v: Array,
    attention_mask: Array | None = None,
    text_begins: Array | None = None,
    inverse_frequency: Array | None = None,
    distance_bias: Array | None = None,
    c2p: Array | None = None,
    p2c: Array | None = None,
    buckets: Array | None = None,
    *,
    num_heads: int,
    kv_heads: int = 0,
    scale: float = 0.0,
    causal: int = 0,
    reach: int = 0,
    factor_bits: int = 32,
) -> list[Array]:
    """y = softmax(scale q k^T + bias) v over the tokens of a text, 0 where none is visible.

    See the op TextAttention for the inputs. With 16 factor_bits the op may round what is not
    rounded here.
    """
    batch, tokens, width = q.shape
    dim = width // num_heads
    rows = [(row, 0, tokens) for row in range(batch)]
    if text_begins is not None and len(text_begins) > 1:
        firsts = [t for t in range(tokens) if text_begins[t] == t]
        rows = [(0, a, b) for a, b in zip(firsts, [*firsts[1:], tokens], strict=True)]
        attention_mask = None
    if attention_mask is None:
        attention_mask = np.ones((batch, tokens), np.int64)
    y = np.zeros(q.shape)
    for row, begin, end in rows:
        heads = [x[row, begin:end].reshape(1, end - begin, -1, dim) for x in (q, k, v)]
        if inverse_frequency is not None:
            places = np.arange(end - begin)[None]
            heads[:2] = [rotate(x, places, inverse_frequency, 1.0) for x in heads[:2]]
        turned = [x[0].astype(np.float64).transpose(1, 0, 2) for x in heads]
        turned[1:] = [x.repeat(num_heads // (kv_heads or num_heads), axis=0) for x in turned[1:]]
        score = turned[0] @ turned[1].transpose(0, 2, 1)
        column = np.arange(end - begin)
        distance = column - column[:, np.newaxis]
        if buckets is not None:
            score = score + _relative(turned[0], turned[1], c2p, p2c, _near(buckets, distance))
        score = (scale or dim**-0.5) * score
        if distance_bias is not None:
            score = score + _near(distance_bias, distance)
        seen = np.broadcast_to(attention_mask[row, begin:end] != 0, score.shape)
        if reach:
            seen = seen & (np.abs(distance) <= reach)
        if causal:
            seen = seen & (distance <= 0)
        score = np.where(seen, score, -np.inf)
        top = np.where(seen.any(-1), score.max(-1), 0)[..., np.newaxis]
        p = np.exp(score - top)
        p = p / np.where(p.sum(-1) == 0, 1, p.sum(-1))[..., None]
        y[row, begin:end] = (p @ turned[2]).transpose(1, 0, 2).reshape(end - begin, width)
    return [y]
