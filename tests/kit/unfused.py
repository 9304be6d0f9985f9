"""A built bundle with its fused layers taken apart: what every stage gives can be looked at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

import tamiz_ops
from tamiz.files.bundle import Bundle
from tamiz.interface.metadata import DOMAIN
from tamiz.runtime.model import Model
from tamiz_ops.program import read_program

Array = NDArray[Any]


@dataclass(frozen=True)
class Stage:
    """One op of the graph.

    Attributes:
        op_type: Its type.
        site: The site that its constants belong to; empty where none tells.
        attributes: By name.
        constants: Constant inputs by port.
        mask: Name of its output `mask`, if it has one.
    """

    op_type: str
    site: str
    attributes: dict[str, Any]
    constants: dict[str, Array]
    mask: str | None


@dataclass(frozen=True)
class Unfused:
    """The graph taken apart.

    Attributes:
        model: Its session also gives all masks.
        stages: In the order of the graph.
    """

    model: Model
    stages: list[Stage]

    @classmethod
    def of(cls, path: Path) -> Unfused:
        """Takes a bundle apart; the new graph stands beside the old one."""
        graph = (whole := ir.load(path / "model.onnx")).graph
        for node in list(graph):
            if (node.domain, node.op_type) == (DOMAIN, "Fused"):
                _take_apart(graph, node)
        stages = [_stage(graph, node) for node in graph if node.domain == DOMAIN]
        ir.save(whole, path / "unfused.onnx")
        options = ort.SessionOptions()
        tamiz_ops.register(options)
        session = ort.InferenceSession(path / "unfused.onnx", options)
        return cls(Model(Bundle.open(path), session), stages)

    def read(self, prompt: Sequence[int], decoded: Sequence[int]) -> tuple[Array, dict[str, Array]]:
        """Reads a prompt at once and then token by token.

        Returns:
            The logits after the prompt and after each token, and each mask ``[tokens, K]``.
        """
        names = [stage.mask for stage in self.stages if stage.mask]
        states = {state.past: state.zeros() for state in self.model.states}
        presents = [state.present for state in self.model.states]
        logits, end = [], 0
        masks: dict[str, list[Array]] = {name: [] for name in names}
        for ids in [list(prompt), *([token] for token in decoded)]:
            start, end = end, end + len(ids)
            feeds = {
                "input_ids": np.array([ids]),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(start, end)[None],
            }
            every, *found = self.model.session.run(
                ["logits", *presents, *names], {**feeds, **states}
            )
            states = dict(zip(states, found[: len(states)], strict=True))
            logits.append(every[0, -1])
            for name, mask in zip(names, found[len(states) :], strict=True):
                masks[name].append(mask[0] != 0)
        return np.array(logits), {name: np.concatenate(rows) for name, rows in masks.items()}


def _take_apart(graph: ir.Graph, fused: ir.Node) -> None:
    stacks = fused.attributes["stacks"].as_ints() if "stacks" in fused.attributes else ()
    single = len(fused.inputs) - len(stacks)
    values = list(fused.inputs[:single])
    for whole, count in zip(fused.inputs[single:], stacks, strict=True):
        values += _members(graph, fused, whole, count)
    for number, stage in enumerate(read_program(fused.attributes["program"].as_string())):
        node = ir.node(
            stage.op,
            [None if value is None else values[value] for value in stage.inputs],
            stage.attributes,
            domain=DOMAIN,
            name=f"{fused.name}/{number}",
            num_outputs=len(stage.outputs),
        )
        for port, (value, given) in enumerate(zip(node.outputs, stage.outputs, strict=True)):
            value.name = "" if given is None else f"{node.name}/{port}"
            if given is not None:
                values.append(value)
        graph.insert_before(fused, node)
    made = [values[number] for number in fused.attributes["outputs"].as_ints()]
    stacked = made[len(made) - sum(stacks) :]
    news = made[: len(made) - sum(stacks)]
    for count in stacks:
        news.append(_whole(graph, fused, stacked[:count]))
        del stacked[:count]
    for old, new in zip(fused.outputs, news, strict=True):
        name = old.name
        new.shape, new.type, old.name = old.shape, old.type, f"{name}/fused"
        new.name = name
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    graph.remove(fused, safe=True)


def _members(graph: ir.Graph, fused: ir.Node, whole: ir.Value, count: int) -> list[ir.Value]:
    """The values that a stack holds."""
    split = ir.node("Split", [whole], {"axis": 0, "num_outputs": count}, num_outputs=count)
    axis = _axis(graph, fused)
    squeezed = [ir.node("Squeeze", [part, axis]) for part in split.outputs]
    graph.insert_before(fused, [split, *squeezed])
    return [node.outputs[0] for node in squeezed]


def _whole(graph: ir.Graph, fused: ir.Node, members: list[ir.Value]) -> ir.Value:
    """The stack that holds the values."""
    axis = _axis(graph, fused)
    parts = [ir.node("Unsqueeze", [member, axis]) for member in members]
    concat = ir.node("Concat", [part.outputs[0] for part in parts], {"axis": 0})
    graph.insert_before(fused, [*parts, concat])
    return concat.outputs[0]


def _axis(graph: ir.Graph, fused: ir.Node) -> ir.Value:
    zero = ir.node("Constant", [], {"value_ints": [0]})
    graph.insert_before(fused, zero)
    return zero.outputs[0]


def _stage(graph: ir.Graph, node: ir.Node) -> Stage:
    schema = tamiz_ops.schemas()[node.op_type]
    ports = [port["name"] for port in schema["outputs"]]
    mask = node.outputs[ports.index("mask")] if "mask" in ports else None
    if mask is not None:
        mask.type = ir.TensorType(ir.DataType.UINT8)
        graph.outputs.append(mask)
    constants = {
        port["name"]: value
        for port, value in zip(schema["inputs"], node.inputs, strict=False)
        if value is not None and value.const_value is not None
    }
    sites = [re.match(r"layers\.\d+\.(attn|ffn)_[a-z]+", str(v.name)) for v in constants.values()]
    return Stage(
        node.op_type,
        next((found[0] for found in sites if found), ""),
        {name: attribute.value for name, attribute in node.attributes.items()},
        {port: value.const_value.numpy() for port, value in constants.items()},
        None if mask is None else mask.name,
    )
