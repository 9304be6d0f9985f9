"""Gives attention the mean and the sizes of its keys, where it sketches or rounds them.

    mean_d  = mean over tokens of k_d           q.(k - mean) = q.k - a constant of the query
    scale_d = 2^round(log2(max |k_d - mean_d|))   q.k = (q scale).(k / scale)

The constant does not change which keys score best nor a softmax, so that any mean is right and a
close one is good: signs of centred keys tell more, and what is left takes fewer bits. Bytes of a
row share one scale, which rounds small channels away beside large ones: divided by their own sizes
all channels are alike. Keys lie around their mean whatever the text is: random tokens serve as well
as a calibration text. Positions are spread over `_REACH` because rotary embedding turns the mean;
with near positions alone far keys are rounded worse than without it
(`lab/2026-11-25-int8-cache.md`).
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

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
)
from tamiz_ops.attention_reference import rotate

_TOKENS, _REACH, _SEED = 512, 4096, 0
#: The first keys of a sequence are unlike all others.
_FIRST = 4


class KeyStatistics(GraphPass):
    """Runs the model once on random tokens and writes mean and sizes of each head's keys."""

    name = "key-statistics"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph, nodes = GraphEditor(model), [node for node in model.graph if _lacks_any(node)]
        for node, keys in zip(nodes, _keys(model, nodes) if nodes else (), strict=True):
            mean = keys[_FIRST:].mean(axis=0)
            if input_of(node, "key_mean") is None:
                graph.connect(node, "key_mean", graph.constant(f"{node.name}.key_mean", mean))
            if _rounds(node):
                stored = keys[_FIRST:] - (mean if _centres(node) else 0)
                scale = _power_of_two(np.abs(stored).max(axis=0))
                graph.connect(node, "key_scale", graph.constant(f"{node.name}.key_scale", scale))
        return ir.passes.PassResult(model, modified=bool(nodes))


def _lacks_any(node: ir.Node) -> bool:
    """Whether the node is an attention that uses statistics and has none."""
    if (node.domain, node.op_type) != (DOMAIN, "Attention"):
        return False
    if _rounds(node):
        return input_of(node, "key_scale") is None
    return input_of(node, "past_sketch") is not None and input_of(node, "key_mean") is None


def _rounds(node: ir.Node) -> bool:
    return bool(attribute_of(node, "cache_bits") == 8)


def _centres(node: ir.Node) -> bool:
    """Whether keys are stored less their mean."""
    return not attribute_of(node, "softcap") and input_of(node, "head_sink") is None


def _power_of_two(sizes: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest powers of two, so that dividing by them is exact; 1 for 0."""
    return np.exp2(np.rint(np.log2(np.where(sizes > 0, sizes, 1)))).astype(np.float32)


def _keys(model: ir.Model, nodes: list[ir.Node]) -> list[NDArray[np.float32]]:
    """Rotated keys ``[tokens, KV heads, head size]`` of the nodes for random tokens."""
    wanted = [input_of(node, port) for node in nodes for port in ("k", "position_ids")]
    frequencies = [input_of(node, "inverse_frequency") for node in nodes]
    chosen = [value for value in frequencies if value is not None and value.const_value is None]
    names = [value.name or "" for value in (*wanted, *chosen) if value is not None]
    found = dict(zip(names, _run(model, names), strict=True))
    keys = []
    for node, frequency in zip(nodes, frequencies, strict=True):
        k, positions = (found[_name(node, port)] for port in ("k", "position_ids"))
        split = k.reshape(1, _TOKENS, attribute_of(node, "kv_heads"), -1)
        if frequency is not None:
            constant = frequency.const_value
            turns = found[frequency.name or ""] if constant is None else constant.numpy()
            split = rotate(split, positions, turns, attribute_of(node, "rotary_scale"))
        keys.append(split[0].astype(np.float32))
    return keys


def _name(node: ir.Node, port: str) -> str:
    value = input_of(node, port)
    return "" if value is None else value.name or ""


def _run(model: ir.Model, names: list[str]) -> list[Any]:
    """Those inputs or inner values for random tokens that nothing precedes."""
    model = model.clone()
    feeds = _random_tokens(model)
    inner = {value.name: value for node in model.graph for value in node.outputs}
    made = [name for name in dict.fromkeys(names) if name in inner]
    model.graph.outputs.clear()
    for name in made:
        inner[name].type = inner[name].type or ir.TensorType(ir.DataType.FLOAT)
        model.graph.outputs.append(inner[name])
    options = ort.SessionOptions()
    options.log_severity_level = 3
    tamiz_ops.register(options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        ir.save(model, path, external_data="model.data")
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        inputs = {value.name: value for value in session.get_inputs()}
        given = {name: value for name, value in feeds.items() if name in inputs}
        for name, value in inputs.items():
            if name.startswith(PAST) and (state := State.of(value)):
                given[name] = state.zeros()
        found = dict(zip(made, session.run(made, given, _only_path()), strict=True))
    return [(feeds | found)[name] for name in names]


def _random_tokens(model: ir.Model) -> dict[str, NDArray[np.int64]]:
    """Inputs of a prompt, by name."""
    logits = next(value for value in model.graph.outputs if value.name == "logits")
    assert logits.shape is not None
    vocabulary = logits.shape[-1]
    assert isinstance(vocabulary, int)
    tokens = np.random.default_rng(_SEED).integers(0, vocabulary, (1, _TOKENS))
    return {
        "input_ids": tokens,
        "attention_mask": np.ones_like(tokens),
        "position_ids": np.linspace(0, _REACH - 1, _TOKENS).astype(np.int64)[None],
    }


def _only_path() -> ort.RunOptions:
    """Options of a run in which neither the end of the last layer nor the head runs."""
    options = ort.RunOptions()
    options.only_execute_path_to_fetches = True
    return options
