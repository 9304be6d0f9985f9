"""Layers of a 7B model, 4096 x 11008, made for what a technique is for: what acceptance.py times.

Every layer multiplies one row with weights that are 640 MB together, but for trains, whose cores
stay in the cache.
"""

from __future__ import annotations

import functools
import struct
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import tamiz_ops
from benchmarks.common.graphs import BYTES, PAGE, external, load, session, tamiz_weights
from tamiz.api.site import Site, SiteKind
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit
from tamiz.testing.trial import gemm
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.fit import fit as event_fit
from tamiz_ops.formats import GROUP, TILE
from tamiz_tensor_train.fit import dimensions
from tamiz_tensor_train.rewrite import rewrite

Float = NDArray[np.float32]

FLOAT32, INT4 = "float32", "int4"
K, N = 4096, 11008
#: Existing blocks are one of so many; ranks of trains; ρ of the inputs of event-driven.
EXISTING, RANKS, PERSISTENCE = (2, 4), (8, 32, 64), (0.9, 0.99, 0.999, 0.9999)
#: Cores of a train, and trains of a run.
CORES, TRAINS = 3, 32
#: Steps of event-driven: of the fit, before the clock starts, generated in all, judged by the gap.
FITTED, WARM, STEPS, JUDGED = 256, 40, 700, 32
#: Gap that the fit of event-driven is allowed: a little less than steps may have.
FIT_GAP = 0.028


@dataclass(frozen=True)
class Layer:
    """A product with several weights in one session.

    Attributes:
        names: Technique and situation; the baseline's name and nothing.
        run: Runs it with all weights.
        copies: Number of weights.
        size: Bytes of a weight; None where they do not count.
        told: Error of the output, and what the situation is called, after all runs.
    """

    names: tuple[str, str]
    run: Callable[[], Any]
    copies: int
    size: int | None
    told: Callable[[], tuple[float, str]]


@dataclass(frozen=True)
class Place:
    """Threads and data of layers, and what makes them."""

    threads: int
    folder: Path
    rng: np.random.Generator
    x: Float

    def layer(
        self, names: tuple[str, str], op: str, tensors: list[Any], y: Float | None, **more: Any
    ) -> Layer:
        """A layer of one op, whose exact output is `y`."""
        size = sum(tensor.nbytes for tensor in tensors)
        copies, domain = -(-BYTES // size), "" if op == "MatMul" else "tamiz"
        if domain:
            more |= {"n": N, "k": K}
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        made = session(op, domain, more, tensors, copies, self.threads, folder)
        return self.of_session(names, made, copies, size, y)

    def of_session(
        self, names: tuple[str, str], made: Any, copies: int, size: int, y: Float | None
    ) -> Layer:
        """A layer whose session takes x only."""
        run = functools.partial(made.run, None, {"x": self.x})
        return Layer(
            names, run, copies, size, lambda: (0.0 if y is None else error(run()[0], y), names[1])
        )


def error(found: Float, exact: Float) -> float:
    """‖found − exact‖ / ‖exact‖."""
    return float(np.linalg.norm(found.ravel() - exact.ravel()) / np.linalg.norm(exact))


def int4_parts(rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Quants, scales and minima of random weights."""
    quants = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (N, K // GROUP)).astype(np.float16)
    return quants, scales, -8 * scales


def dequantized(quants: Any, scales: Any, minima: Any) -> Float:
    """The weights of int4 parts."""
    groups = quants.reshape(*scales.shape, GROUP).astype(np.float32)
    groups *= scales[:, :, None]
    groups += minima[:, :, None]
    weight: Float = groups.reshape(quants.shape)
    return weight


def baselines(place: Place) -> list[Layer]:
    """The product with float32 and with int4 weights."""
    dense = place.rng.standard_normal((K, N), np.float32)
    int4 = tamiz_weights(K, N, 4, place.rng)
    return [
        place.layer((FLOAT32, ""), "MatMul", [dense], None),
        place.layer((INT4, ""), "BlockMatMul", int4, None, bits=4),
    ]


def ternary(place: Place) -> Iterator[Layer]:
    """Weights of three levels with a scale for each output."""
    levels = place.rng.integers(-1, 2, (N, K), dtype=np.int8)
    units = place.rng.uniform(0.01, 0.02, N).astype(np.float32)
    tensors = [tamiz_ops.pack_ternary(levels, np.ones((N, K // GROUP), np.float16)), units]
    y = units * (levels.astype(np.float32) @ place.x[0])
    yield place.layer(("ternary", "weights are ternary"), "TernaryMatMul", tensors, y)


def proc_sparse(place: Place) -> Iterator[Layer]:
    """Weights of which whole blocks are 0."""
    groups = K // GROUP
    for part in EXISTING:
        quants, *factors = int4_parts(place.rng)
        exists = place.rng.random((N // TILE, groups)).argsort(axis=1) < groups // part
        rows = np.repeat(exists, TILE, axis=0)
        parts = (quants, *(half * rows for half in factors))
        tensors = tamiz_ops.pack_deltas(np.repeat(rows, GROUP, axis=1), exists, *parts)
        more = {"bits": 4, "base": 0.0, "seed": 0, "block": GROUP}
        names = ("proc-sparse", f"1/{part} of the blocks exist")
        y = dequantized(*parts) @ place.x[0]
        yield place.layer(names, "ProcSparseMatMul", [*tensors], y, **more)


def trains(place: Place) -> Iterator[Layer]:
    """Weights that are tensor trains."""
    n, m = dimensions(N, K, CORES)
    for rank in RANKS:
        ranks = [1, *[rank] * (CORES - 1), 1]
        shapes = [*zip(ranks[:-1], n, m, ranks[1:], strict=True)]
        cores = [
            place.rng.standard_normal(shape, np.float32) / np.float32(rank) for shape in shapes
        ]
        made = load(repeated(train(cores), TRAINS), place.folder / "tt.onnx", place.threads)
        y = np.einsum("anbr,rcds,sefz,bdf->nce", *cores, place.x.reshape(m), optimize=True)
        bytes_ = sum(core.nbytes for core in cores)
        yield place.of_session(("tt", f"weight is a train of rank {rank}"), made, TRAINS, bytes_, y)


def train(cores: list[Float]) -> ir.Model:
    """The graph that multiplies with a train."""
    site = Site(
        "s",
        SiteKind.LINEAR,
        "node",
        weight="w",
        in_features=K,
        out_features=N,
        transposed=True,
    )
    model = gemm(site, np.zeros((N, K), np.float32))
    fit = Fit({f"core.{index}": core for index, core in enumerate(cores)}, {}, {}, 0.0)
    rewrite(site, fit, model)
    return model


def repeated(model: ir.Model, copies: int) -> onnx.ModelProto:
    """`copies` times the nodes of a graph of x, with constants of their own."""
    made = ir.to_proto(model)
    graph = made.graph
    nodes, constants = [*graph.node], {tensor.name: tensor for tensor in graph.initializer}
    used = {name for node in nodes for name in node.input} & set(constants)
    del graph.node[:], graph.initializer[:]
    for index in range(copies):
        for name in sorted(used):
            own = helper.make_tensor("", 1, [0], [])
            own.CopyFrom(constants[name])
            own.name = f"{name}.{index}"
            if own.data_type == TensorProto.FLOAT:  # equal ones would share what is prepacked
                (first,) = struct.unpack_from("<I", own.raw_data)
                own.raw_data = struct.pack("<I", first ^ index) + own.raw_data[4:]
            graph.initializer.append(own)
        for node in nodes:
            names = [f"{n}.{index}" if n != "x" else n for n in node.input]
            copy = helper.make_node(node.op_type, names, [f"{n}.{index}" for n in node.output])
            copy.attribute.extend(node.attribute)
            graph.node.append(copy)
    graph.output[0].name += f".{copies - 1}"
    return made


def events(place: Place) -> Iterator[Layer]:
    """Inputs that change slowly, chosen one by one or in blocks of 32."""
    parts = int4_parts(place.rng)
    weight = dequantized(*parts)
    products = {
        1: Product("ChannelMatMul", tamiz_ops.pack_channels(*parts), {}),
        GROUP: Product("BlockMatMul", tamiz_ops.pack_int4(*parts), {"bits": 4}),
    }
    for width, product in products.items():
        data, copies = place.folder / f"{product.op}.data", product.copies
        data.write_bytes((product.packed.tobytes() + bytes(product.padding)) * copies)
        for rho in PERSISTENCE:
            x = autoregressive(place.rng.standard_normal((STEPS, K), np.float32), rho)
            model = event_model(cheapest(x[:FITTED], weight, width), weight, product, data)
            made = load(model, place.folder / f"{product.op}-{rho}.onnx", place.threads)
            steps = Steps(made, x[FITTED:], copies)
            for _ in range(WARM):
                steps.run()
            told = functools.partial(steps.told, rho, width, weight, steps.counted())
            yield Layer(("event-driven", ""), steps.run, copies, None, told)


@dataclass(frozen=True)
class Product:
    """An op that multiplies chosen inputs, its weight and attributes."""

    op: str
    packed: NDArray[np.uint8]
    more: dict[str, int]

    @property
    def copies(self) -> int:
        """Weights of a run."""
        return -(-BYTES // self.packed.nbytes)

    @property
    def padding(self) -> int:
        """Bytes between a weight's end and the next one's page."""
        return -self.packed.nbytes % PAGE


def autoregressive(noise: Float, rho: float) -> Float:
    """AR(1) processes of variance 1, one for each column."""
    x = noise.copy()
    for t in range(1, len(x)):
        x[t] = rho * x[t - 1] + np.sqrt(1 - rho**2) * noise[t]
    return x


def cheapest(run: Float, weight: Float, width: int) -> Fit:
    """The fit that computes the smallest fraction of the inputs within the gap."""
    site = Site("s", SiteKind.LINEAR, "node", in_features=K, out_features=N)
    statistics = Statistics(len(run), np.square(run).mean(axis=0), run, run=run)
    fixed = {"reference": "ar1", "gap_every": 0, "anywhere": True, "block": width}

    @functools.cache
    def fitted(percent: int) -> Fit:
        config = EventDrivenConfig.model_validate(fixed | {"topk": percent / 100})
        return event_fit(site, weight, statistics, config)

    percents = range(5, 101, 5)  # all inputs have no gap
    at = bisect_left(percents, True, key=lambda p: fitted(p).metrics["gap"] <= FIT_GAP)
    return fitted(percents[at])


def event_model(fit: Fit, weight: Float, product: Product, data: Path) -> onnx.ModelProto:
    """EventSelect, product and EventSum for every copy; states are inputs and outputs."""
    given: dict[str, Any] = {"n": N, "k": K} | dict(fit.attributes)
    select = {name: value for name, value in given.items() if name != "gap_tol"} | {"block": 1}
    total = {name: given[name] for name in ("alpha", "beta", "gap_tol", "n", "k")}
    mean, scale = fit.tensors["mean"], fit.tensors["scale"]
    shared = {"mean": mean, "scale": scale, "base": (1 - given["alpha"]) * (weight @ mean)}
    constants = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in shared.items()]
    node: Callable[..., onnx.NodeProto] = functools.partial(helper.make_node, domain="tamiz")
    nodes, stride = [], product.packed.nbytes + product.padding
    for c in range(product.copies):
        constants.append(external(f"w{c}", product.packed, data, c * stride))
        chosen = [f"{name}{c}" for name in ("delta", "mask", "plan", "reference")]
        seen = ["x", f"past{c}", "mean", "scale", "tokens"]
        nodes.append(node("EventSelect", seen, chosen, **select))
        operands = [chosen[0], f"w{c}", chosen[1]]
        nodes.append(node(product.op, operands, [f"dy{c}"], n=N, k=K, block=1, **product.more))
        summed = [f"dy{c}", f"past{c}", *chosen[2:], "base"]
        nodes.append(node("EventSum", summed, [f"y{c}", f"present{c}"], **total))
    port = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT)
    ends = [
        [port(f"{name}{c}", shape=[1, K + N + 3]) for c in range(product.copies)]
        for name in ("past", "present")
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, None])
    inputs = [port("x", shape=[1, 1, K]), tokens, *ends[0]]
    outputs = [port(f"y{product.copies - 1}", shape=[1, 1, N]), *ends[1]]
    graph = helper.make_graph(nodes, "events", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


class Steps:
    """Steps of event-driven on inputs that follow each other."""

    def __init__(self, made: Any, x: Float, copies: int) -> None:
        """Starts a sequence of each copy."""
        self.made, self.x, self.at = made, x, 0
        self.states = [np.zeros((1, K + N + 3), np.float32)] * copies
        self.outputs: list[Float] = []

    def run(self) -> None:
        """One step; all copies see the same input."""
        x = self.x[self.at % len(self.x)].reshape(1, 1, K)
        feed = {f"past{c}": state for c, state in enumerate(self.states)}
        tokens = np.ones((1, 64), np.int64)  # more than the first tokens, which are dense
        y, *self.states = self.made.run(None, {"x": x, "tokens": tokens, **feed})
        self.outputs.append(y)
        self.at += 1

    def counted(self) -> tuple[float, float]:
        """Inputs that were computed so far, and inputs."""
        nodes = tamiz_ops.metrics(self.made).values()
        names = ("event.topk_kept", "event.channels")
        kept, every = (sum(node.get(name, 0.0) for node in nodes) for name in names)
        return kept, every

    def told(
        self, rho: float, width: int, weight: Float, before: tuple[float, float]
    ) -> tuple[float, str]:
        """Mean gap of the last steps, and the situation with what was computed since `before`."""
        kept, every = np.subtract(self.counted(), before)
        computed = kept / every if every else 1.0  # where all are chosen, nothing is counted
        last = range(self.at - JUDGED, self.at)
        gaps = [error(self.outputs[t], weight @ self.x[t % len(self.x)]) for t in last]
        blocks = f"blocks of {width}" if width > 1 else "single inputs"
        return float(np.mean(gaps)), f"AR(1), ρ {rho}, {blocks}, {computed:.2f} computed"


LAYERS: dict[str, Callable[[Place], Iterator[Layer]]] = {
    "ternary": ternary,
    "proc-sparse": proc_sparse,
    "tt": trains,
    "event-driven": events,
}
