"""Gives attention that sketches its keys their mean: signs of centred keys tell much more.

    mean_h = mean over tokens of k_h           q.(k - mean) = q.k - a constant of the query

The constant does not change which keys score best, so that any mean is right and a close one is
good. Keys lie around theirs whatever the text is: random tokens serve as well as a calibration
text (measured: the same perplexity). Positions are spread over `_REACH` because rotary embedding
turns the mean.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

import tamiz_ops
from tamiz.api import (
    DOMAIN,
    PAST,
    GraphEditor,
    GraphPass,
    Phase,
    State,
    attribute_of,
    input_of,
    output_of,
)
from tamiz_ops.cache_rows import unpack_rows

_TOKENS, _REACH, _SEED = 512, 4096, 0
#: The first keys of a sequence are unlike all others.
_FIRST = 4


class KeyMeans(GraphPass):
    """Runs the model once on random tokens and writes the mean keys of each head as constants."""

    name = "key-means"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph, nodes = GraphEditor(model), [node for node in model.graph if _lacks_mean(node)]
        if nodes:
            names = [output_of(node, "present_key").name or "" for node in nodes]
            for node, keys in zip(nodes, _run(model, names), strict=True):
                if attribute_of(node, "cache_bits") == 8:
                    keys = unpack_rows(keys).astype(np.float32)
                mean = keys[0, :, _FIRST:].mean(axis=1)
                graph.connect(node, "key_mean", graph.constant(f"{node.name}.key_mean", mean))
        return ir.passes.PassResult(model, modified=bool(nodes))


def _lacks_mean(node: ir.Node) -> bool:
    """Whether the node is an attention that sketches its keys and knows no mean of them."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention"):
        return False
    return input_of(node, "past_sketch") is not None and input_of(node, "key_mean") is None


def _run(model: ir.Model, names: list[str]) -> list[Any]:
    """Those outputs for random tokens that nothing precedes."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    tamiz_ops.register(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path, external_data="model.data")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        logits = next(v for v in session.get_outputs() if v.name == "logits")
        tokens = np.random.default_rng(_SEED).integers(0, logits.shape[-1], (1, _TOKENS))
        feeds = {
            "input_ids": tokens,
            "attention_mask": np.ones_like(tokens),
            "position_ids": np.linspace(0, _REACH - 1, _TOKENS).astype(np.int64)[None],
        }
        found = {v.name: v for v in session.get_inputs()}
        feeds = {name: value for name, value in feeds.items() if name in found}
        for name, value in found.items():
            if name.startswith(PAST) and (state := State.of(value)):
                feeds[name] = state.zeros()
        # Nothing but the keys is asked for, so that the head runs for one position at most.
        outputs: list[Any] = session.run(names, feeds, _only_path())
        return outputs


def _only_path() -> ort.RunOptions:
    options = ort.RunOptions()
    options.only_execute_path_to_fetches = True
    return options
