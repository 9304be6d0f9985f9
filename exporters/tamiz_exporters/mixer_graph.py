"""The nodes of what mixes tokens in a layer of a decoder's graph, and the states that it keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from tamiz_exporters.convolution_graph import add_convolution, convolution_state
from tamiz_exporters.decoder_config import (
    DeltaNet,
    LayerAttention,
    Mamba,
    Mamba2,
    ShortConvolution,
    SideBySide,
    attention_of,
    mamba_of,
)
from tamiz_exporters.delta_net_graph import add_delta_net, delta_state
from tamiz_exporters.mamba_graph import add_mamba, mamba_state
from tamiz_exporters.scan_graph import add_scan, scan_states

if TYPE_CHECKING:
    from tamiz_exporters.decoder_graph import DecoderGraph

_PARTS = ("past", "present")


def mixer_states(
    of: DecoderGraph, number: int, length: str
) -> tuple[list[ir.Value], list[ir.Value]]:
    """What a layer keeps of a sequence: its pasts, and its presents of `length` tokens.

    Args:
        of: The graph.
        number: The layer.
        length: Name of the number of tokens.
    """
    layer = of.config.layers[number]
    if isinstance(layer, ShortConvolution):
        name = f"model.layers.{number}.conv.conv.weight"
        hidden = of.initializers[name].shape.numpy()[0]  # type: ignore[union-attr]
        past, present = (
            convolution_state(f"{part}_conv.{number}", layer.taps, hidden) for part in _PARTS
        )
        return [past], [present]
    if isinstance(layer, DeltaNet):
        past, present = (delta_state(f"{part}_delta.{number}", layer) for part in _PARTS)
        return [past], [present]
    if isinstance(layer, Mamba):
        pasts, presents = (scan_states(part, number, layer) for part in _PARTS)
        return pasts, presents
    pasts, presents = [], []
    attention = attention_of(layer)
    if attention is not None and attention.shares is None:
        parts = ("key", "value") if of.config.latent is None else ("key",)
        pasts += [of.cache(f"past_key_values.{number}.{part}", attention) for part in parts]
        presents += [of.cache(f"present.{number}.{part}", attention, length) for part in parts]
    if (mamba := mamba_of(layer)) is not None:
        past, present = (mamba_state(f"{part}_mamba.{number}", mamba) for part in _PARTS)
        pasts, presents = [*pasts, past], [*presents, present]
    return pasts, presents


def mixed(
    of: DecoderGraph, number: int, x: ir.Value, past: list[ir.Value], present: list[ir.Value]
) -> ir.Value:
    """What the layer adds to the residual stream before its feed-forward block.

    Args:
        of: The graph.
        number: The layer.
        x: The normed residual stream ``[B, S, H]``.
        past: See `mixer_states`; without it the layer has no cache.
        present: Likewise.
    """
    name, layer = f"/model/layers.{number}", of.config.layers[number]
    epsilon, mask = of.config.epsilon, of.attention_mask
    if isinstance(layer, ShortConvolution):
        return add_convolution(of, f"{name}/conv", x, of.shown, *past, *present)
    if isinstance(layer, DeltaNet):
        return add_delta_net(of, f"{name}/linear_attn", layer, epsilon, x, mask, *past, *present)
    if isinstance(layer, Mamba):
        return add_scan(of, f"{name}/mamba", layer, x, mask, past, present)
    if isinstance(layer, SideBySide):
        states = past[-1], present[-1]
        other = add_mamba(of, f"{name}/mamba", layer.mamba, epsilon, x, mask, *states)
        x = of.times(f"{name}/self_attn/scale_in", x, layer.input_scale)
        y = of.attention(f"{name}/self_attn", layer.attention, x, past[:2], present[:2])
        y = of.times(f"{name}/self_attn/scale_out", y, layer.output_scale)
        return of.op("Add", f"{name}/mixed/Add", other, y)
    if isinstance(layer, Mamba2):
        return add_mamba(of, f"{name}/mamba", layer, epsilon, x, mask, *past, *present)
    assert isinstance(layer, LayerAttention)
    return of.attention(f"{name}/self_attn", layer, x, past, present)
