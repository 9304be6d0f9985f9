"""How fast this machine reads weights, multiplies and attends: what a predicted speed rests on.

The profile is measured with tamiz's own operators in onnxruntime, once for each machine:

- ``read_gb_s``: 10^9 bytes of weights read per second, by working set in MB: a chain of int8
  products, which wait for memory.
- ``records_gb_s``: the same of single cache lines with gaps between them: a chain of products that
  skip a random half of their inputs.
- ``products_g_s``: 10^9 weights multiplied per second from the cache: a chain of int4 products.
- ``attention_gb_s``: 10^9 bytes of keys and values attended per second by a decode step.
- ``node_us``: microseconds that a product costs beside its work: what is left of small products
  when large ones tell how long a weight takes.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.bundle import read_json, write_json
from tamiz.errors import TamizError

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir
    from numpy.typing import NDArray

#: Working sets to read, in MB.
WORKING_SETS = (16, 64, 256)
#: In- and outputs of a product of the chain; one has 1.1 MB as int8 and 0.7 MB as int4.
_SIZE = 1024
_GROUP_BYTES = {4: 320, 8: 544}
#: The part of int4 weights that is scales and minima, which are read whatever is skipped.
INT4_FACTORS = 0.2
#: KV heads, positions and head size of an attention of the chain: 3.1 MB of keys and values.
_CACHE = (3, 2048, 64)
_ATTENTIONS = 16
#: Products of one weight, which stays in the cache.
_NODES = 64
#: Seconds that a graph runs before and while it is measured, and how often it does so at least.
_WARM_UP, _MEASURE, _LEAST_RUNS = 0.06, 0.08, 5


@dataclass(frozen=True)
class Speed:
    """What so many threads do; see the top of this file."""

    threads: int
    read_gb_s: dict[str, float]
    records_gb_s: dict[str, float]
    products_g_s: float
    attention_gb_s: float
    node_us: float

    def read_rate(self, working_set: int) -> float:
        """Bytes per second, linear in the logarithm of the working set (bytes)."""
        return _rate(self.read_gb_s, working_set)

    def record_rate(self, working_set: int) -> float:
        """The same of single cache lines."""
        return _rate(self.records_gb_s, working_set)


@dataclass(frozen=True)
class Profile:
    """The measured machine.

    Attributes:
        machine: What it was measured on; a profile of anything else is stale.
        speeds: With one thread, and with one a core.
    """

    machine: dict[str, str]
    speeds: tuple[Speed, ...]


def _rate(measured: Mapping[str, float], working_set: int) -> float:
    points = sorted((math.log(float(mb) * 1e6), gb) for mb, gb in measured.items())
    at = math.log(max(1, working_set))
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            part = max(0.0, (at - x0) / (x1 - x0))
            return (y0 + part * (y1 - y0)) * 1e9
    return points[-1][1] * 1e9


def path() -> Path:
    """Where the profile lies: in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tamiz" / "machine.json"


def load() -> Profile | None:
    """The profile of this machine; None if there is none, or one of another machine or version."""
    file = path()
    try:
        value = read_json(file)
        speeds = tuple(Speed(**speed) for speed in value["speeds"])
        profile = Profile(value["machine"], speeds)
    except (OSError, TamizError, KeyError, TypeError):
        return None
    return profile if profile.machine == identity() else None


def save(profile: Profile) -> Path:
    """Writes the profile where `load` finds it."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    write_json(scratch, json.loads(json.dumps(asdict(profile))))
    os.replace(scratch, file)
    return file


def identity() -> dict[str, str]:
    """What a profile depends on."""
    return {
        "cpu": _cpu_name(),
        "cores": str(cores()),
        "isa": os.environ.get("TAMIZ_ISA", ""),
        "tamiz_ops": version("tamiz-ops"),
        "onnxruntime": version("onnxruntime"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def cores() -> int:
    """Cores that this process may use."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return min(psutil.cpu_count(logical=False) or 1, allowed or 1 << 30)


def measure() -> Profile:
    """Measures this machine; takes one to two seconds where nothing else runs."""
    import numpy as np

    weights = np.ones(max(WORKING_SETS) * 1_000_000, np.uint8)
    speeds = [_speed(threads, weights) for threads in sorted({1, cores()})]
    return Profile(identity(), tuple(speeds))


def _speed(threads: int, weights: NDArray[np.uint8]) -> Speed:
    small, large = (
        _seconds(_products(4, size, weights[: _bytes(4, size)], _NODES, threads))
        for size in (_SIZE // 2, _SIZE)
    )
    # t = node + weights / rate, for two sizes
    product = max(large - small, large / 2) / (_SIZE**2 - (_SIZE // 2) ** 2)
    node = max(0.0, small - product * (_SIZE // 2) ** 2)
    reads, records = {}, {}
    for mb in WORKING_SETS:
        chain = _products(8, _SIZE, weights, mb * 1_000_000 // _bytes(8, _SIZE), threads)
        reads[str(mb)] = round(_bytes(8, _SIZE) / max(_seconds(chain) - node, 1e-9) / 1e9, 2)
        skipping = _seconds(_skipping(weights[: mb * 1_000_000], threads)) - node
        skipping -= INT4_FACTORS * _bytes(4, _SIZE) / (reads[str(mb)] * 1e9)
        kept = (1 - INT4_FACTORS) / 2 * _bytes(4, _SIZE)
        records[str(mb)] = round(kept / max(skipping, 1e-9) / 1e9, 2)
    attention = _seconds(_attention(threads))
    return Speed(
        threads=threads,
        read_gb_s=reads,
        records_gb_s=records,
        products_g_s=round(1e-9 / product, 2),
        attention_gb_s=round(8 * math.prod(_CACHE) / max(attention - node, 1e-9) / 1e9, 2),
        node_us=round(1e6 * node, 3),
    )


def _bytes(bits: int, size: int) -> int:
    """Of the packed weights of a square product."""
    return size // 16 * (size // 32) * _GROUP_BYTES[bits]


def _seconds(probe: _Probe) -> float:
    """Seconds a node, median.

    The first runs wake the threads and fill the caches, and do not count.
    """
    start = time.perf_counter()
    spent: list[float] = []
    while len(spent) < _LEAST_RUNS or time.perf_counter() < start + _WARM_UP + _MEASURE:
        begin = time.perf_counter()
        probe.run()
        if begin > start + _WARM_UP:
            spent.append(time.perf_counter() - begin)
    return statistics.median(spent) / len(probe.nodes)


@dataclass
class _Probe:
    """A chain of nodes with the arrays that it runs on."""

    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    values: dict[str, ir.Value] = field(default_factory=dict)
    nodes: list[ir.Node] = field(default_factory=list)
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
        import onnx_ir as ir

        kind = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.values[name] = ir.Value(name=name, shape=ir.Shape(array.shape), type=kind)
        return self.values[name]

    def node(
        self, op: str, inputs: Sequence[ir.Value], attributes: Mapping[str, int], outputs: int = 1
    ) -> Sequence[ir.Value]:
        """Adds a node of the domain `tamiz`; returns its outputs."""
        import onnx_ir as ir

        made = ir.node(op, inputs, attributes, num_outputs=outputs, domain="tamiz")
        self.nodes.append(made)
        return made.outputs

    def load(self, threads: int) -> _Probe:
        """Makes the session; from now on `run` runs it."""
        import onnx_ir as ir
        import onnxruntime as ort

        import tamiz_ops
        from tamiz.runtime import session_options

        ends = [[self.values[name] for name in names] for names in (self.inputs, self.outputs)]
        opsets = {"": 17, "tamiz": 1}
        graph = ir.Graph(*ends, nodes=self.nodes, opset_imports=opsets, name="probe")
        options = session_options(threads)
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


def _products(bits: int, size: int, weights: NDArray[np.uint8], nodes: int, threads: int) -> _Probe:
    """A chain of products ``[1, size] · [size, size]`` through the weights in a circle."""
    import numpy as np

    probe = _Probe()
    step = _bytes(bits, size)
    last = probe.input("x", np.ones((1, size), np.float32))
    stored = [
        probe.input(f"w{at}", weights[at : at + step].reshape(size // 16, -1))
        for at in range(0, min(len(weights), nodes * step) - step + 1, step)
    ]
    attributes = {"bits": bits, "n": size, "k": size}
    for index in range(nodes):
        (last,) = probe.node("BlockMatMul", [last, stored[index % len(stored)]], attributes)
    probe.output(last, "y", np.zeros((1, size), np.float32))
    return probe.load(threads)


def _skipping(weights: NDArray[np.uint8], threads: int) -> _Probe:
    """Products ``[1, size] · [size, size]`` of one row, half of whose inputs are masked."""
    import numpy as np

    probe = _Probe()
    generator = np.random.default_rng(0)
    x = probe.input("x", generator.standard_normal((1, _SIZE), np.float32))
    kept = generator.permutation(_SIZE).reshape(1, -1) < _SIZE // 2
    mask = probe.input("mask", kept.astype(np.uint8))
    attributes = {"n": _SIZE, "k": _SIZE, "block": 1}
    panels, step = _SIZE // 64, _bytes(4, _SIZE)
    whole = weights[: len(weights) // step * step]
    for index, stored in enumerate(whole.reshape(-1, panels, step // panels)):
        weight = probe.input(f"w{index}", stored)
        (y,) = probe.node("ChannelMatMul", [x, weight, mask], attributes)
        probe.output(y, f"y{index}", np.empty((1, _SIZE), np.float32))
    return probe.load(threads)


def _attention(threads: int) -> _Probe:
    """Decode steps of one attention after the other, each with keys and values of its own."""
    import numpy as np

    probe = _Probe()
    heads, positions, size = _CACHE
    queries = np.ones((1, 1, 3 * heads * size), np.float32)
    row = np.ones((1, 1, heads * size), np.float32)
    last = probe.input("q", queries)
    new = [probe.input(name, row) for name in ("k", "v")]
    mask = probe.input("mask", np.ones((1, positions), np.int64))
    position = probe.input("position", np.full((1, 1), positions - 1))
    for index in range(_ATTENTIONS):
        caches = [np.ones((1, *_CACHE), np.float32) for _ in new]
        past = [
            probe.input(f"{name}{index}", cache)
            for name, cache in zip(("keys", "values"), caches, strict=True)
        ]
        operands = [last, *new, *past, mask, position]
        attributes = {"num_heads": 3 * heads, "kv_heads": heads}
        last, *presents = probe.node("Attention", operands, attributes, 3)
        for value, name, cache in zip(presents, ("keys", "values"), caches, strict=True):
            probe.output(value, f"{name}_out{index}", cache)
    probe.output(last, "y", np.empty_like(queries))
    return probe.load(threads)
