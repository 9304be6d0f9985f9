"""Every op of the `tamiz` domain in NumPy, in float64: what the kernels are tested against.

`run` has the calling convention of `tamiz_ops.run`; floating-point outputs are float64. A weight is
read from the kernels' packed layout, an activation is not quantised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.attention_reference import attention_op, text_attention
from tamiz_ops.basic_reference import add, layer_norm, rms_norm, scale, swiglu
from tamiz_ops.convolution_reference import short_conv
from tamiz_ops.deltas import splitmix64, unpack_deltas
from tamiz_ops.event_reference import event_select, event_sum
from tamiz_ops.expert_reference import expert_matmul, expert_router, expert_sum
from tamiz_ops.formats import GROUP, TILE
from tamiz_ops.mamba_reference import mamba2
from tamiz_ops.mask_reference import kwta_mask, sign_mask, zero_mask
from tamiz_ops.masked import masked
from tamiz_ops.program import read_program
from tamiz_ops.recurrence_reference import gated_delta_net
from tamiz_ops.scan_reference import selective_scan
from tamiz_ops.seedlm import unpack_seedlm
from tamiz_ops.signs import dequantize_signs
from tamiz_ops.ternary_reference import popcount_matmul, ternary_matmul
from tamiz_ops.weight_reference import dequantize as dequantize
from tamiz_ops.weight_reference import in_bytes as in_bytes
from tamiz_ops.weight_reference import stored_weight

Array = npt.NDArray[Any]


def run(op: str, inputs: Sequence[Array | None], **attributes: Any) -> list[Any]:
    """Runs one op.

    Args:
        op: name of the op.
        inputs: the inputs in order; None is an omitted one.
        **attributes: attributes of the op.

    Returns:
        All outputs in order.
    """
    outputs: list[Any] = _OPS[op](*inputs, **attributes)
    return outputs


def block_matmul(
    x: Array,
    weight: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    bits: int = 0,
    n: int,
    k: int,
    block: int = 32,
    scale_bits: int = 16,
    format: str = "",
    activation_bits: int = 16,
    scale_inputs: int = 32,
) -> list[Array]:
    """y = (x * mask) W^T + bias, `mask` one byte for every `block` inputs.

    x is not rounded to 16 or 32 bits; to 8 it is, with a scale for `scale_inputs` inputs.
    """
    x = masked(x.astype(np.float64), mask, block)
    if activation_bits == 8:
        x = in_bytes(x.astype(np.float32), scale_inputs)
    y = x @ stored_weight(weight, bits, n, k, scale_bits, format).T
    return [y if bias is None else y + bias]


def channel_matmul(
    x: Array,
    weight: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    n: int,
    k: int,
    block: int = 1,
    scale_bits: int = 16,
) -> list[Array]:
    """y = (x * mask) W^T + bias, W packed by input channel."""
    x = masked(x.astype(np.float64), mask, block)
    y = x @ dequantize_channels(weight, n, k, scale_bits).T
    return [y if bias is None else y + bias]


def chosen_matmul(
    x: Array,
    weight: Array,
    mask: Array,
    bias: Array | None = None,
    *,
    n: int,
    k: int,
    scale_bits: int = 16,
) -> list[Array]:
    """y = (x W^T + bias) * mask, W packed by output."""
    y = x.astype(np.float64) @ dequantize_records(weight, n, k, scale_bits).T
    return [np.where(mask != 0, y if bias is None else y + bias, 0.0)]


def dequantize_records(packed: Array, n: int, k: int, scale_bits: int = 16) -> Array:
    """The weight, float64 [n, k], that `packed` stands for, byte by byte as
    `src/kernels/chosen/chosen.h` says."""
    in_units, lanes, quad = scale_bits == 8, 16, 4
    chunk = 288 if in_units else 320
    chunks = packed.shape[1] // chunk
    data = packed[:, : chunks * chunk].reshape(n, chunks, chunk)
    vectors = data[..., :256].reshape(n, chunks, 4, lanes, quad)
    nibbles = np.stack([vectors & 15, vectors >> 4], axis=3)  # n, chunks, v, half, group, i
    quants = nibbles.transpose(0, 1, 4, 2, 3, 5).reshape(n, chunks * lanes, GROUP)
    factors = np.ascontiguousarray(data[..., 256:])
    factors = factors if in_units else factors.view(np.float16)
    scale, minimum = factors.reshape(n, chunks, 2, lanes).astype(np.float64).swapaxes(0, 2)
    scale, minimum = (part.swapaxes(0, 1).reshape(n, -1, 1) for part in (scale, minimum))
    weight: Array = scale * quants + (-8 * minimum if in_units else minimum)
    if in_units:
        units = np.ascontiguousarray(packed[:, -32:-30]).view(np.float16).astype(np.float64)
        weight = weight * units[:, :, None] / 256
    return weight.reshape(n, -1)[:, :k]


def dequantize_channels(packed: Array, n: int, k: int, scale_bits: int = 16) -> Array:
    """The weight, float64 [n, k], that `packed` stands for, byte by byte as
    `src/kernels/channels.h` says."""
    half_outputs, in_units = 64, scale_bits == 8
    groups = packed.shape[2] // (288 if in_units else 320)
    in_stream = 4 if in_units else 5  # records of a group
    data = np.ascontiguousarray(packed).reshape(-1)
    weight = np.zeros((packed.shape[0] * half_outputs, groups * GROUP))
    panel_start = 0
    for first in range(0, len(weight), 2 * half_outputs):
        outputs = min(2 * half_outputs, len(weight) - first)
        o = np.arange(outputs)
        quarter, nibble, lane = o // (outputs // 4), o % (outputs // 4), o % (outputs // 8)
        byte = lane // 4 * 16 + 4 * quarter + lane % 4
        shift = np.where(nibble < outputs // 8, 0, 4)
        streams = groups * 4 * in_stream * outputs
        panel = data[panel_start : panel_start + streams].reshape(-1, outputs // 2)
        rest = data[panel_start + streams :][: (groups * 2 + 2) * outputs]
        for g in range(groups):
            record = np.arange(8 * in_stream)
            number = (record % 8 * groups + g) * in_stream + record // 8
            group = panel[number].reshape(-1)
            records = group[: 16 * outputs].reshape(GROUP, outputs // 2)
            quants = (records[:, byte] >> shift & 15).T.astype(np.float64)
            if in_units:
                factors = rest[g * 2 * outputs :][: 2 * outputs].astype(np.float64)
                scale, minimum = factors.reshape(2, outputs, 1) * [[[1]], [[-8]]]
            else:
                factors = group[16 * outputs :].view(np.float16).astype(np.float64)
                scale, minimum = factors.reshape(2, outputs, 1)
            columns = slice(g * GROUP, (g + 1) * GROUP)
            weight[first : first + outputs, columns] = scale * quants + minimum
        panel_start += streams
        if in_units:
            units = rest[-2 * outputs :].view(np.float16).astype(np.float64)
            weight[first : first + outputs] *= units[:, None] / 256
            panel_start += len(rest)
    return weight[:n, :k]


def proc_sparse_matmul(
    x: Array,
    deltas: Array,
    starts: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    bits: int,
    n: int,
    k: int,
    base: float = 0.0,
    seed: int = 0,
    block: int = 32,
) -> list[Array]:
    """y = (x * mask) W^T + bias, W from `unpack_deltas`."""
    x = masked(x.astype(np.float64), mask, block)
    y = x @ unpack_deltas(deltas, starts, bits=bits, n=n, k=k, base=base, seed=seed).T
    return [y if bias is None else y + bias]


def seed_delta_matmul(
    x: Array,
    deltas: Array,
    starts: Array,
    row_scale: Array | None = None,
    spectrum: Array | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    dense: Array | None = None,
    seedlm: Array | None = None,
    *,
    bits: int,
    n: int,
    k: int,
    base: str,
    base_bits: int = 4,
    depth: int = 1,
    seed: int = 0,
    block: int = 32,
    dense_is_kn: int = 0,
) -> list[Array]:
    """y = (x * mask) (W0 + R)^T + bias; a row that is not finite with the dense weight instead.

    W0[o, i] is row_scale[o] sum_j spectrum[j] H[j, o ^ i] (xor-circulant), or row_scale[o] (Q_depth
    ... Q_1)[o, i] with Q_j[o, i] = H[o, p] s_j(p) / sqrt(L), where p is what P_j takes from i; or
    `unpack_seedlm`'s (seedlm).
    """
    size = 1 << (max(n, k) - 1).bit_length()
    walsh = np.ones((1, 1))
    while len(walsh) < size:
        walsh = np.block([[walsh, walsh], [walsh, -walsh]])
    weight = unpack_deltas(deltas, starts, bits=bits, n=n, k=k)
    if base == "xor-circulant" and spectrum is not None and row_scale is not None:
        circulant = (walsh @ spectrum)[np.arange(n)[:, None] ^ np.arange(k)]
        weight = weight + row_scale[:, None].astype(np.float64) * circulant
    elif base == "hadamard" and row_scale is not None:
        product = np.eye(size)
        for j in range(depth):
            step, first = (int(z) for z in splitmix64(seed, np.array([2 * j, 2 * j + 1])))
            order = [((step | 1) * i + first) % size for i in range(size)]
            words = [int(z) for z in splitmix64(seed, (j + 1 << 32) + np.arange(-(-size // 64)))]
            signs = [1 - 2 * (words[i // 64] >> i % 64 & 1) for i in range(size)]
            product = walsh @ (np.array(signs)[:, None] * product[order]) / np.sqrt(size)
        weight = weight + row_scale[:, None].astype(np.float64) * product[:n, :k]
    elif base == "seedlm" and seedlm is not None:
        weight = weight + unpack_seedlm(seedlm, base_bits, n, k)
    x = masked(x.astype(np.float64), mask, block)
    y = x @ weight.T
    if dense is not None:
        instead = x @ (dense if dense_is_kn else dense.T)
        y = np.where(np.isfinite(y).all(-1, keepdims=True), y, instead)
    return [y if bias is None else y + bias]


def block_gather(
    ids: Array,
    weight: Array,
    *,
    bits: int = 0,
    n: int,
    k: int,
    scale_bits: int = 16,
    format: str = "",
) -> list[Array]:
    """y = W[ids]."""
    return [stored_weight(weight, bits, n, k, scale_bits, format)[ids]]


def head_shortlist(
    x: Array,
    weight: Array,
    mask: Array | None,
    bias: Array | None,
    project: Array,
    sketch: Array,
    offset: Array,
    signs: Array | None = None,
    refinement: Array | None = None,
    refined_offset: Array | None = None,
    *,
    bits: int = 0,
    n: int,
    k: int,
    dims: int,
    tiles: int,
    block: int = 32,
    scale_bits: int = 16,
    format: str = "",
    sketch_bits: int = 4,
    sign_dims: int = 0,
    refined: int = 0,
    rows: int = 1,
    estimate: int = 1,
) -> list[Array]:
    """y = W x + bias in `tiles` tiles, elsewhere y = e.

    e = S z + R q + offset, (z, r) = P x, q = r rounded to multiples of max|r| / 31; then, in the
    `refined` tiles with the highest max(e) (at least `tiles`), e += R' q + refined_offset; of these
    tiles the `tiles` with the highest max(e) are exact. Of equal tiles the lower ones count.
    Elsewhere it is -infinity with `estimate` = 0; with more than `rows` rows of x all of it is
    exact.
    """
    kind: dict[str, Any] = {"bits": bits, "scale_bits": scale_bits, "format": format}
    (y,) = block_matmul(x, weight, mask, bias, n=n, k=k, block=block, **kind)
    if np.prod(x.shape[:-1]) > rows:
        return [y]
    (both,) = block_matmul(x, project, mask, bits=8, n=dims + sign_dims, k=k, block=block)
    z, r = both[..., :dims], both[..., dims:]
    (e,) = block_matmul(z, sketch, None, offset, bits=sketch_bits, n=n, k=dims)
    among = np.ones((*e.shape[:-1], -(-n // TILE)), bool)
    if signs is not None and refinement is not None and refined_offset is not None:
        step = np.abs(r).max(-1, keepdims=True) / 31
        q = np.rint(r / np.where(step == 0, 1, step)) * step
        e = e + q @ dequantize_signs(signs, n, sign_dims).T.astype(np.float64)
        finer = e + q @ dequantize_signs(refinement, n, sign_dims).T.astype(np.float64)
        among = _highest_tiles(e, max(refined, tiles), among)
        e = np.where(np.repeat(among, TILE, axis=-1)[..., :n], finer + refined_offset, e)
    exact = np.repeat(_highest_tiles(e, tiles, among), TILE, axis=-1)[..., :n]
    return [np.where(exact, y, e if estimate else -np.inf)]


def _highest_tiles(e: Array, count: int, among: Array) -> Array:
    """Which tiles, bool [..., tiles], have the `count` highest maxima of those in `among`."""
    padding = [(0, 0)] * (e.ndim - 1) + [(0, -e.shape[-1] % TILE)]
    padded = np.pad(e, padding, constant_values=-np.inf)
    highest = padded.reshape(*e.shape[:-1], -1, TILE).max(-1)  # NaN where one is NaN
    highest = np.where(np.isnan(highest), np.inf, highest)
    order = np.lexsort((-highest, ~among), axis=-1)
    chosen = np.zeros(highest.shape, bool)
    np.put_along_axis(chosen, order[..., :count], True, axis=-1)
    return chosen


def last_positions(x: Array, count: Array) -> list[Array]:
    """y = x[:, -count:]; all of x where count is 0 or more than there are."""
    return [x[:, -int(count[0]) :]]


def fused(*inputs: Array | None, program: str, outputs: Sequence[int]) -> list[Any]:
    """Runs the stages of a program (`tamiz_ops.program`); `outputs` are the values to return."""
    values: list[Any] = list(inputs)
    for stage in read_program(program):
        arguments = [None if value is None else values[value] for value in stage.inputs]
        results = run(stage.op, arguments, **stage.attributes)
        outs = zip(stage.outputs, results, strict=False)  # unused ones may be cut off
        values += [result for value, result in outs if value is not None]
    return [values[i] for i in outputs]


_OPS: dict[str, Any] = {
    "TextAttention": text_attention,
    "BlockMatMul": block_matmul,
    "ChannelMatMul": channel_matmul,
    "ChosenMatMul": chosen_matmul,
    "KwtaMask": kwta_mask,
    "BlockGather": block_gather,
    "HeadShortlist": head_shortlist,
    "LayerNorm": layer_norm,
    "Sum": add,
    "RMSNorm": rms_norm,
    "Scale": scale,
    "SwiGLU": swiglu,
    "ExpertRouter": expert_router,
    "ExpertMatMul": expert_matmul,
    "ExpertSum": expert_sum,
    "Attention": attention_op,
    "ShortConv": short_conv,
    "GatedDeltaNet": gated_delta_net,
    "Mamba2": mamba2,
    "SelectiveScan": selective_scan,
    "LastPositions": last_positions,
    "Fused": fused,
    "ProcSparseMatMul": proc_sparse_matmul,
    "SeedDeltaMatMul": seed_delta_matmul,
    "TernaryMatMul": ternary_matmul,
    "PopcountMatMul": popcount_matmul,
    "ZeroMask": zero_mask,
    "SignMask": sign_mask,
    "EventSelect": event_select,
    "EventSum": event_sum,
}
