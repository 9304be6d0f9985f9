"""Small graphs of tamiz's operators in onnxruntime, whose times measure the speed of a machine.

Arrays lie as those of a loaded bundle do, in large pages where the system gives them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api.attention import sketch_words
from tamiz.runtime import large_pages
from tamiz.runtime.session import session_options
from tamiz_ops.formats import int_format
from tamiz_ops.program import Stage, write_program

#: KV heads, query heads for each, head size of an attention.
KV_HEADS, QUERIES, HEAD_SIZE = 3, 3, 64
#: Bytes of a position's keys and values.
KEY_BYTES = 8 * KV_HEADS * HEAD_SIZE

Bytes = NDArray[np.uint8]


@dataclass
class Probe:
    """Nodes with the arrays that they run on.

    Attributes:
        inputs: Arrays by the input of the graph that they are bound to.
        outputs: The same of outputs.
        values: The graph's inputs and outputs.
        nodes: The nodes.
        steps: Into how many like parts of them a run falls, once it is loaded.
        run: Runs them all once.
    """

    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, ir.Value] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)
    steps: int = 0
    run: Callable[[], None] = lambda: None

    def input(self, name: str, array: NDArray[Any]) -> ir.Value:
        """An input of the graph and what is bound to it."""
        self.inputs[name] = array
        return self._value(name, array)

    def output(self, value: ir.Value, name: str, array: NDArray[Any]) -> None:
        """Makes a node's output one of the graph, written to the array."""
        like = self._value(name, array)
        value.name, value.type, value.shape = name, like.type, like.shape
        self.values[name] = value
        self.outputs[name] = array

    def _value(self, name: str, array: NDArray[Any]) -> ir.Value:
        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.values[name] = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind)
        return self.values[name]

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, int | float],
        outputs: int = 1,
    ) -> Sequence[ir.Value]:
        """Adds a node of the domain `tamiz`; returns its outputs."""
        made = ir.node(op, inputs, attributes, num_outputs=outputs, domain="tamiz")
        self.nodes.append(made)
        return made.outputs

    def load(self, threads: int, step: int = 1) -> Probe:
        """Makes the session of one node, as a bundle's is; from now on `run` runs it.

        Args:
            threads: Of onnxruntime's pool.
            step: Nodes of a step.
        """
        self.steps = len(self.nodes) // step
        ends = [[self.values[name] for name in names] for names in (self.inputs, self.outputs)]
        opsets = {"": 17, "tamiz": 1}
        fused = self._fused(*ends)
        graph = ir.Graph(ends[0], fused.outputs, nodes=[fused], opset_imports=opsets, name="probe")
        options = session_options(threads)
        # Threads that wait for the next run of one graph would take a core from another.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        tamiz_ops.register(options)
        model = ir.to_proto(ir.Model(graph, ir_version=8)).SerializeToString()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        binding = session.io_binding()
        for bind, arrays in (
            (binding.bind_input, self.inputs),
            (binding.bind_output, self.outputs),
        ):
            for name, array in arrays.items():
                bind(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        self.run = lambda: session.run_with_iobinding(binding)
        self.run()
        return self

    def _fused(self, inputs: list[ir.Value], outputs: list[ir.Value]) -> ir.Node:
        """The nodes as stages of one."""
        stages = (
            Stage(n.op_type, {a.name: a.value for a in n.attributes.values()}, n.inputs, n.outputs)
            for n in self.nodes
        )
        program = write_program(inputs, stages, outputs)
        made = ir.node("Fused", inputs, program, num_outputs=len(outputs), domain="tamiz")
        for value, like in zip(made.outputs, outputs, strict=True):
            value.name, value.type, value.shape = like.name, like.type, like.shape
        return made


def weight_bytes(bits: int, size: int) -> int:
    """Of the packed weights of a square product."""
    return int_format(bits).bytes(size, size)


def weights(size: int) -> Bytes:
    """So many bytes of packed weights."""
    made = large_pages.zeros(size)
    made[:] = 1
    return made


def products(
    bits: int,
    size: int,
    weights: Bytes,
    threads: int,
    nodes: int | None = None,
    stored: int | None = None,
) -> Probe:
    """A chain of products ``[1, size] · [size, size]``.

    Args:
        bits: Of a weight, 4 or 8.
        size: In- and outputs, a multiple of 32.
        weights: Packed weights, of which each product takes the next.
        threads: Of onnxruntime's pool.
        nodes: Products; None for as many as there are weights for.
        stored: Weights to go round in; None for all.
    """
    probe, step = Probe(), weight_bytes(bits, size)
    last = probe.input("x", np.ones((1, size), np.float32))
    whole = weights[: len(weights) // step * step].reshape(-1, size // 16, step * 16 // size)
    values = [probe.input(f"w{i}", weight) for i, weight in enumerate(whole[:stored])]
    attributes = {"bits": bits, "n": size, "k": size}
    for index in range(len(values) if nodes is None else nodes):
        (last,) = probe.node("BlockMatMul", [last, values[index % len(values)]], attributes)
    probe.output(last, "y", np.zeros((1, size), np.float32))
    return probe.load(threads)


def skipping(size: int, weights: Bytes, threads: int) -> Probe:
    """A chain of products ``[1, size] · [size, size]``, half of whose inputs are masked.

    Int4. A step is a product and a norm, as inputs that shrink to zeros would read nothing.
    """
    probe = Probe()
    generator = np.random.default_rng(0)
    last = probe.input("x", np.ones((1, size), np.float32))
    ones = probe.input("ones", np.ones(size, np.float32))
    kept = generator.permutation(size).reshape(1, -1) < size // 2
    mask = probe.input("mask", kept.astype(np.uint8))
    attributes = {"n": size, "k": size, "block": 1}
    panels, step = size // 64, weight_bytes(4, size)
    whole = weights[: len(weights) // step * step]
    for index, stored in enumerate(whole.reshape(-1, panels, 4, step // (4 * panels))):
        weight = probe.input(f"w{index}", stored)
        (last,) = probe.node("ChannelMatMul", [last, weight, mask], attributes)
        last = probe.node("RMSNorm", [last, ones], {"epsilon": 1e-5})[0]
    probe.output(last, "y", np.empty((1, size), np.float32))
    return probe.load(threads, step=2)


def norms(size: int, nodes: int, threads: int) -> Probe:
    """A chain of norms of one row."""
    probe = Probe()
    last = probe.input("x", np.ones((1, size), np.float32))
    weight = probe.input("weight", np.ones(size, np.float32))
    for _ in range(nodes):
        last = probe.node("RMSNorm", [last, weight], {"epsilon": 1e-5})[0]
    probe.output(last, "y", np.empty((1, size), np.float32))
    return probe.load(threads)


def attention(
    positions: int, layers: int, threads: int, keep: int = 0, cache_bits: int = 32
) -> Probe:
    """Decode steps of one attention after the other, each with keys and values of its own.

    Args:
        positions: Keys, the step's own the last of them.
        layers: Attentions.
        threads: Of onnxruntime's pool.
        keep: Keys that a filter chooses by their sketches, here and there; 0: no filter.
        cache_bits: Of an element of the cache, 32 or 8.
    """
    probe = Probe()
    words = HEAD_SIZE if cache_bits == 32 else HEAD_SIZE // 4 + 1
    shape, sketch = ((1, KV_HEADS, positions, n) for n in (words, sketch_words(HEAD_SIZE, 1)))
    queries = np.ones((1, 1, QUERIES * KV_HEADS * HEAD_SIZE), np.float32)
    row = np.ones((1, 1, KV_HEADS * HEAD_SIZE), np.float32)
    last = probe.input("q", queries)
    new = [probe.input(name, row) for name in ("k", "v")]
    mask = probe.input("mask", np.ones((1, positions), np.int64))
    position = probe.input("position", np.full((1, 1), positions - 1))
    attributes = {"num_heads": QUERIES * KV_HEADS, "kv_heads": KV_HEADS, "cache_bits": cache_bits}
    if keep:
        attributes |= {"keep": keep, "recent": 1, "sinks": 0}
    generator = np.random.default_rng(0)
    for index in range(layers):
        kept = {"keys": _floats(shape), "values": _floats(shape)}
        if keep:
            kept["sketches"] = _floats(sketch)
            kept["sketches"][:] = generator.standard_normal(sketch, np.float32)
            kept["sketches"][..., -1] = 1  # its size
        past = [probe.input(f"{name}{index}", array) for name, array in kept.items()]
        operands = [last, *new, *past[:2], mask, position, None, *past[2:]]
        last, *presents = probe.node("Attention", operands, attributes, 1 + len(kept))
        for value, (name, array) in zip(presents, kept.items(), strict=True):
            probe.output(value, f"{name}_out{index}", array)
    probe.output(last, "y", np.empty_like(queries))
    return probe.load(threads)


def _floats(shape: tuple[int, ...]) -> NDArray[np.float32]:
    made = large_pages.zeros(4 * math.prod(shape)).view(np.float32).reshape(shape)
    made[:] = 1
    return made
