"""The nodes of what depends on positions.

rotary(u) = u·cos θ + rotate_half(u)·sin θ
growth(p) = 1 + β · ln(1 + ⌊p / L⌋)
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.decoder_config import Growth, Rotary
from tamiz_exporters.graph_builder import GraphBuilder

Tables = tuple[ir.Value, ir.Value]


def rotary_table(of: GraphBuilder, rotary: Rotary, number: int, position_ids: ir.Value) -> Tables:
    """Returns cos θ and sin θ, ``[B, 1, S, R]``, θ = position · inverse frequency.

    Args:
        of: The graph.
        rotary: The embedding.
        number: Tells the embeddings of a graph apart.
        position_ids: ``[B, S]``.
    """
    which = f".{number}" if number else ""
    name, constant = f"/model/rotary_emb{which}", f"model.rotary_emb{which}.inv_freq"
    frequency = of.initialize(constant, ir.tensor(rotary.inverse_frequency, name=constant))
    if rotary.long_frequency is not None:
        frequency = _frequency_of_length(of, name, rotary, frequency, position_ids)
    position = of.op("Unsqueeze", f"{name}/Unsqueeze", position_ids, of.constant([1, 3]))
    position = of.op("Cast", f"{name}/Cast", position, to=ir.DataType.FLOAT)
    angle = of.op("Mul", f"{name}/Mul", position, frequency)
    angle = of.op("Concat", f"{name}/Concat", angle, angle, axis=-1)
    cos, sin = of.op("Cos", f"{name}/Cos", angle), of.op("Sin", f"{name}/Sin", angle)
    if rotary.factor == 1:
        return cos, sin
    factor = of.constant(rotary.factor, np.float32)
    return of.op("Mul", f"{name}/Mul_1", cos, factor), of.op("Mul", f"{name}/Mul_2", sin, factor)


def query_growth(of: GraphBuilder, growth: Growth, position_ids: ir.Value) -> ir.Value:
    """Returns growth(p), ``[B, S, 1]``, of positions ``[B, S]``.

    Its values are looked up, as ONNX Runtime's Log of a token depends on how many stand beside it.
    """
    name, constant = "/model/query_growth", "model.query_growth.table"
    steps = np.log1p(np.arange(growth.steps, dtype=np.float32))
    table: np.ndarray = np.float32(1) + np.float32(growth.factor) * steps
    values = of.initialize(constant, ir.tensor(table, name=constant))
    step = of.op("Div", f"{name}/Div", position_ids, of.constant(growth.span))
    step = of.op("Unsqueeze", f"{name}/Unsqueeze", step, of.constant([2]))
    return of.op("Gather", f"{name}/Gather", values, step, axis=0)


def _frequency_of_length(
    of: GraphBuilder, name: str, rotary: Rotary, short: ir.Value, position_ids: ir.Value
) -> ir.Value:
    """The frequencies of this run: others if any position is beyond the original context."""
    constant = f"{name[1:].replace('/', '.')}.long_inv_freq"
    assert rotary.long_frequency is not None
    long = of.initialize(constant, ir.tensor(rotary.long_frequency, name=constant))
    last = of.op("ReduceMax", f"{name}/ReduceMax", position_ids, keepdims=0)
    limit = of.constant(rotary.original_context - 1)
    beyond = of.op("Greater", f"{name}/Greater", last, limit)
    return of.op("Where", f"{name}/Where", beyond, long, short)


def rotate(
    of: GraphBuilder, name: str, tables: Tables, rotary: Rotary, head_dim: int, x: ir.Value
) -> ir.Value:
    """Rotates the first R of D channels of ``[B, heads, S, D]``; channel i pairs with i + R/2."""
    half = len(rotary.inverse_frequency)
    cos, sin = tables
    rest = None
    if 2 * half < head_dim:
        rest = _slice(of, f"{name}/Slice_rest", x, 2 * half, head_dim)
        x = _slice(of, f"{name}/Slice_rotary", x, 0, 2 * half)
    low = _slice(of, f"{name}/Slice", x, 0, half)
    high = _slice(of, f"{name}/Slice_1", x, half, 2 * half)
    turned = of.op("Neg", f"{name}/Neg", high)
    turned = of.op("Concat", f"{name}/Concat", turned, low, axis=-1)
    straight = of.op("Mul", f"{name}/Mul", x, cos)
    turned = of.op("Mul", f"{name}/Mul_1", turned, sin)
    y = of.op("Add", f"{name}/Add", straight, turned)
    if rest is not None:
        y = of.op("Concat", f"{name}/Concat_rest", y, rest, axis=-1)
    return y


def _slice(of: GraphBuilder, name: str, x: ir.Value, begin: int, end: int) -> ir.Value:
    axis = of.constant([3])
    return of.op("Slice", name, x, of.constant([begin]), of.constant([end]), axis)
