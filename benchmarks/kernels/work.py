"""Work of kernels in weights of an int4 product: what techniques declare as their cost.

    python -m benchmarks work [--seconds 20]

One thread, CPU time, everything from the caches, all graphs in turn, medians. An amount of work is
the time of a larger graph less that of a smaller one, over that of an int4 product's weights found
in the same way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api.site import Site, SiteKind
from tamiz.evaluation.probes import KEY_BYTES, Probe, attention, products, weights
from tamiz_ops.formats import FORMATS, Format
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.fit import fit

K, DIMS = 576, 64
SIGNS = K - DIMS


def shortlist(n: int, refined: int, tiles: int, nodes: int = 4) -> Probe:
    """Heads of `n` outputs, with 64 axes in 4 bits and the other directions' signs."""
    probe = Probe()
    generator = np.random.default_rng(0)

    def packed(name: str, rows: int, row_bytes: int) -> ir.Value:
        return probe.input(name, np.ones((rows // 16, row_bytes), np.uint8))

    x = probe.input("x", generator.standard_normal((1, K), np.float32))
    offset = probe.input("offset", generator.standard_normal(n, np.float32))
    sign_bytes = SIGNS // 32 * 64 + 32
    operands = [
        x,
        packed("weight", n, K // 32 * 544),
        None,
        None,
        packed("project", K, K // 32 * 544),
        packed("sketch", n, DIMS // 32 * 320),
        offset,
        packed("signs", n, sign_bytes),
        packed("refinement", n, sign_bytes),
        offset,
    ]
    attributes = {"bits": 8, "n": n, "k": K, "dims": DIMS, "sketch_bits": 4, "sign_dims": SIGNS}
    attributes |= {"refined": refined, "tiles": tiles}
    for index in range(nodes):
        (y,) = probe.node("HeadShortlist", operands, attributes)
        probe.output(y, f"y{index}", np.empty((1, n), np.float32))
    return probe.load(1)


def formatted(form: Format, size: int, nodes: int = 16) -> Probe:
    """Square products of one input with one weight of the format."""
    probe = Probe()
    x = probe.input("x", np.ones((1, size), np.float32))
    weight = probe.input("weight", np.ones(form.packed_shape(size, size), np.uint8))
    attributes: dict[str, Any] = {"format": form.name, "n": size, "k": size}
    for index in range(nodes):
        (y,) = probe.node("BlockMatMul", [x, weight], attributes)
        probe.output(y, f"y{index}", np.empty((1, size), np.float32))
    return probe.load(1)


def seeded(size: int, nodes: int = 16) -> Probe:
    """A chain of square products with deltas to hashed weights, of which every record is stored."""
    site = Site(
        id="layers.0.ffn_up",
        kind=SiteKind.LINEAR,
        node="up",
        layer=0,
        tensor="ffn_up",
        in_features=size,
        out_features=size,
    )
    weight = np.random.default_rng(0).standard_normal((size, size), np.float32)
    made = fit(site, weight, None, ProcSparseConfig(shed_eps=0))
    attributes: dict[str, Any] = {**made.attributes}
    probe = Probe()
    last = probe.input("x", np.ones((1, size), np.float32))
    constants = [probe.input(name, made.tensors[name]) for name in ("deltas", "starts")]
    for _ in range(nodes):
        (last,) = probe.node("ProcSparseMatMul", [last, *constants], attributes)
    probe.output(last, "y", np.empty((1, size), np.float32))
    return probe.load(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    arguments = parser.parse_args()
    stored = weights(1_000_000)
    sizes = (512, 1024)
    graphs = {
        "int4": [products(4, size, stored, 1, nodes=32, stored=1) for size in sizes],
        "deltas": [seeded(size) for size in sizes],
        "8-bit key": [attention(keys, 1, 1, cache_bits=8) for keys in (256, 1024)],
        "scanned key": [attention(keys, 1, 1, keep=64) for keys in (512, 1536)],
        "scanned output": [shortlist(n, 8, 8) for n in (2048, 4096)],
        "refined output": [shortlist(4096, refined, 8) for refined in (8, 72)],
        "exact output": [shortlist(4096, 72, tiles) for tiles in (8, 24)],
        **{name: [formatted(form, size) for size in sizes] for name, form in FORMATS.items()},
    }
    spent = measure(graphs, arguments.seconds)
    square = sizes[1] ** 2 - sizes[0] ** 2
    unit = spent["int4"] / square
    print(f"int4: {1e-9 / unit:.1f} G weights/s")
    print("| work of | int4 weights |")
    print("| --- | --- |")
    for what, name, count, less in (
        ("a weight of hash and delta", "deltas", square, 0.0),
        ("a float's byte of 8-bit keys and values", "8-bit key", 768 * KEY_BYTES, 0.0),
        ("a float's byte of scanned keys and values", "scanned key", 1024 * KEY_BYTES, 0.0),
        ("a sign of a head's sketch", "scanned output", 2048 * SIGNS, DIMS / SIGNS),
        ("a sign of a refined output", "refined output", 64 * 16 * SIGNS, 0.0),
        ("an int8 weight of an exact output", "exact output", 16 * 16 * K, 0.0),
        *((f"a weight of {name}", name, square, 0.0) for name in FORMATS),
    ):
        print(f"| {what} | {spent[name] / unit / count - less:.2f} |")


def measure(graphs: dict[str, list[Probe]], seconds: float) -> dict[str, float]:
    """CPU seconds a node that the larger of two graphs takes more than the smaller."""
    spent: dict[str, list[list[float]]] = {name: [] for name in graphs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, pair in graphs.items():
            spent[name].append([cpu_seconds(graph) for graph in pair])
    medians = {
        name: [statistics.median(times) for times in zip(*rounds, strict=True)]
        for name, rounds in spent.items()
    }
    return {name: more - less for name, (less, more) in medians.items()}


def cpu_seconds(graph: Probe) -> float:
    """Of a node; the first run fills the caches."""
    graph.run()
    start = time.thread_time()
    graph.run()
    graph.run()
    return (time.thread_time() - start) / 2 / graph.steps
