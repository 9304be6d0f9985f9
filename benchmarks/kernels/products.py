"""The block-quantised matmul alone, in ONNX Runtime: tamiz.BlockMatMul against MatMulNBits.

A graph is a row of nodes with weights of their own, 640 MB together, so that no cache holds them:
what a decode step meets. Both graphs run interleaved; the table gives medians, of all threads
together. MatMulNBits has accuracy_level 4: 8-bit activations in groups of 32, where BlockMatMul
has 16-bit ones. `read` is what the machine reads from memory at that moment.

    python -m benchmarks products [--threads 1,2] [--rows 1,8,32,512] [--json FILE]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

import tamiz_ops
from benchmarks.common import record
from benchmarks.common.graphs import BYTES, interleaved, numbers, session, tamiz_weights
from tamiz.evaluation.bench import read_bandwidth

SHAPES = [(576, 1536, 4), (1536, 576, 4), (4096, 11008, 4), (576, 49152, 8)]  # k, n, bits


def peer_weights(k, n, bits, rng):
    quants = rng.integers(1, 256, (n, k // 32, 4 * bits), dtype=np.uint8)
    return [quants, rng.uniform(0.001, 0.02, (n, k // 32)).astype(np.float32)]


def measure(k, n, bits, threads, row_counts):
    """One result for every number of rows."""
    rng = np.random.default_rng(0)
    ours, theirs = tamiz_weights(k, n, bits, rng), peer_weights(k, n, bits, rng)
    copies = -(-BYTES // ours[0].nbytes)
    attributes = {"bits": bits, "n": n, "k": k}
    peer_attributes = {"bits": bits, "N": n, "K": k, "block_size": 32, "accuracy_level": 4}
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        both = [
            session("BlockMatMul", "tamiz", attributes, ours, copies, threads, folder),
            session(
                "MatMulNBits", "com.microsoft", peer_attributes, theirs, copies, threads, folder
            ),
        ]
        for rows in row_counts:
            feed = {"x": rng.standard_normal((rows, k), dtype=np.float32)}
            runs = [lambda made=made, feed=feed: made.run(None, feed) for made in both]
            read = read_bandwidth(threads)
            seconds, peer = (s / copies for s in interleaved(5 if rows < 100 else 3, *runs))
            results.append(
                {
                    "k": k,
                    "n": n,
                    "bits": bits,
                    "rows": rows,
                    "threads": threads,
                    "us": seconds * 1e6,
                    "peer_us": peer * 1e6,
                    "ratio": peer / seconds,
                    "gb_s": ours[0].nbytes / seconds / 1e9,
                    "read_gb_s": max(read, read_bandwidth(threads)),
                    "gmac_s": rows * k * n / seconds / 1e9,
                }
            )
            print(line(results[-1]), flush=True)
        calls = tamiz_ops.metrics(both[0]).values()
        assert all(node["calls"] == calls_of(calls) for node in calls), "a node did not run"
    return results


def calls_of(nodes):
    return max(node["calls"] for node in nodes)


def line(result):
    return (
        "{k:5d} x {n:<6d}{bits:4d}{rows:6d}{threads:8d}{us:11.1f}{peer_us:11.1f}{ratio:7.2f}"
        "{gb_s:7.1f}{read_gb_s:7.1f}{gmac_s:9.1f}"
    ).format(**result)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default="1,2", help="thread counts")
    parser.add_argument("--rows", type=numbers, default="1,8,32,512", help="rows of x")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    print("    k x n     bits  rows threads         us    peer us  ratio   GB/s   read   GMAC/s")
    results = [
        result
        for threads in arguments.threads
        for shape in SHAPES
        for result in measure(*shape, threads, arguments.rows)
    ]
    if arguments.json:
        record.write(arguments.json, "kernels", results, settings=vars(arguments))
