"""Products with ternary weights alone, in ONNX Runtime, exact and by popcounts: against int4.

As in products.py a graph is a row of nodes with weights of their own, 640 MB together, on one row,
and all graphs run interleaved.

    python -m benchmarks ternary [--threads 1,2] [--json FILE]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import tamiz_ops
from benchmarks.common import record
from benchmarks.common.graphs import BYTES, interleaved, numbers, session, tamiz_weights
from tamiz.evaluation.bench import read_bandwidth

SHAPES = [(4096, 11008), (11008, 4096), (1536, 576)]  # k, n


def measure(k, n, threads):
    rng = np.random.default_rng(0)
    (int4,) = tamiz_weights(k, n, 4, rng)
    levels = rng.integers(-1, 2, (n, k), dtype=np.int8)
    packed = tamiz_ops.pack_ternary(levels, np.ones((n, k // 32), np.float16))
    ternary = [packed, np.ones(n, np.float32)]
    sizes = {"n": n, "k": k}
    feed = {"x": rng.standard_normal((1, k), dtype=np.float32)}
    cases = {
        "BlockMatMul": ([int4], sizes | {"bits": 4}),
        "TernaryMatMul": (ternary, sizes),
        "PopcountMatMul": (ternary, sizes | {"epsilon": 1.0}),
    }
    with tempfile.TemporaryDirectory() as name:
        copies = {op: -(-BYTES // weights[0].nbytes) for op, (weights, _) in cases.items()}
        made = [
            session(op, "tamiz", attributes, weights, copies[op], threads, Path(name))
            for op, (weights, attributes) in cases.items()
        ]
        read = read_bandwidth(threads)
        seconds = interleaved(5, *(lambda run=run: run.run(None, feed) for run in made))
    us = {op: s / copies[op] * 1e6 for op, s in zip(cases, seconds, strict=True)}
    return {"k": k, "n": n, "threads": threads, "read_gb_s": read, "us": us}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default="1,2", help="thread counts")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    results = []
    for threads in arguments.threads:
        for k, n in SHAPES:
            results.append(measure(k, n, threads))
            us = "  ".join(f"{op} {time:.1f}" for op, time in results[-1]["us"].items())
            print("{k} x {n}, {threads} threads, {read_gb_s:.0f} GB/s:".format(**results[-1]), us)
    if arguments.json:
        record.write(arguments.json, "ternary", results, settings=vars(arguments))
