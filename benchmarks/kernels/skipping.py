"""What skipping single inputs saves: tamiz.ChannelMatMul with masks of block 1 in ONNX Runtime.

As in products.py a graph is a row of nodes with weights of their own, 640 MB together, on one row.
Keep is the fraction of inputs that a random mask leaves; `saved` is the fraction of the time
without a mask that it saves, `/ skipped` that over the fraction skipped. BlockMatMul, the product
without skipping, runs in between.

    python -m benchmarks skipping [--threads 1,2] [--keep 0.7,0.5,0.3] [--json FILE]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import tamiz_ops
from benchmarks.common import record
from benchmarks.common.graphs import BYTES, interleaved, numbers, session
from tamiz.evaluation.bench import read_bandwidth

SHAPES = [(4096, 11008), (11008, 4096), (576, 1536), (1536, 576), (576, 576)]  # k, n


def int4(n, k, rng):
    """Quants, scales and minima of some weights."""
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (n, k // 32)).astype(np.float16)
    return quants, scales, -8 * scales


def measure(k, n, threads, keeps):
    """One result: BlockMatMul, ChannelMatMul without mask and with each."""
    rng = np.random.default_rng(0)
    parts = int4(n, k, rng)
    x = rng.standard_normal((1, k), dtype=np.float32)
    tiles, channels = tamiz_ops.pack_int4(*parts), tamiz_ops.pack_channels(*parts)
    copies = -(-BYTES // channels.nbytes)
    sizes = {"n": n, "k": k}
    with tempfile.TemporaryDirectory() as name:
        dense = session(
            "BlockMatMul", "tamiz", sizes | {"bits": 4}, [tiles], copies, threads, Path(name)
        )
        skipping = session(
            "ChannelMatMul", "tamiz", sizes, [channels], copies, threads, Path(name), ["mask"]
        )
        runs = [lambda: dense.run(None, {"x": x})]
        for keep in (1.0, *keeps):
            mask = np.zeros((1, k), np.uint8)
            mask[0, rng.permutation(k)[: round(keep * k)]] = 1
            runs.append(partial(skipping.run, None, {"x": x, "mask": mask}))
        read = read_bandwidth(threads)
        seconds = [s / copies for s in interleaved(5, *runs)]
    return {
        "k": k,
        "n": n,
        "threads": threads,
        "dense_us": seconds[0] * 1e6,
        "keep": [1.0, *keeps],
        "us": [s * 1e6 for s in seconds[1:]],
        "saved": [1 - s / seconds[1] for s in seconds[1:]],
        "read_gb_s": read,
    }


def lines(result):
    head = "{k:5d} x {n:<6d}{threads:8d}{dense_us:11.1f}".format(**result)
    for keep, us, saved in zip(result["keep"], result["us"], result["saved"], strict=True):
        ratio = f"{saved / (1 - keep):11.2f}" if keep < 1 else ""
        yield f"{head}{keep:7.2f}{us:10.1f}{saved:8.2f}{ratio}"
        head = " " * len(head)


def fractions(text):
    return [float(number) for number in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default="1,2", help="thread counts")
    parser.add_argument("--keep", type=fractions, default="0.7,0.5,0.3", help="fractions kept")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    print("    k x n      threads   dense us   keep        us   saved  / skipped")
    results = []
    for threads in arguments.threads:
        for k, n in SHAPES:
            results.append(measure(k, n, threads, arguments.keep))
            print("\n".join(lines(results[-1])), f"  ({results[-1]['read_gb_s']:.0f} GB/s)")
    if arguments.json:
        record.write(arguments.json, "skipping", results, settings=vars(arguments))
