"""Products of a mixture with many rows: ExpertMatMul against BlockMatMul, per multiply-add.

    python -m benchmarks expert-rows [--formats q4_k] [--bits 16,8] [--rows 8,16,64] [--json FILE]

The mixture has 32 experts of 768 outputs and 2,048 inputs, and each takes ``rows`` rows. The dense
product has the weight of one expert and as many rows as all experts together. Both run in turns. A
result has the best GMAC/s of each, and the median and the quartiles of their ratio within a round
(1 is as fast as the dense product). With one thread the time is that of the processor.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tamiz_ops
from benchmarks.common import record
from benchmarks.common.graphs import numbers
from tamiz_ops.formats import find_format

K, N, EXPERTS = 2048, 768, 32
SECONDS = 2.0  # a case, at least
ROUNDS = 5  # at least


def session(op: str, name: str, bits: int, threads: int) -> onnxruntime.InferenceSession:
    """One node with random bytes as weight: below 64, so that all scales are finite."""
    chosen = op == "ExpertMatMul"
    n = N * EXPERTS if chosen else N
    attributes: dict[str, Any] = {"format": name, "n": n, "k": K, "activation_bits": bits}
    if chosen:
        attributes["experts"] = EXPERTS
    weight = np.random.default_rng(0).integers(
        0, 64, find_format(name).packed_shape(n, K), np.uint8
    )
    port = helper.make_tensor_value_info
    inputs = [port("x", TensorProto.FLOAT, ["rows", K])]
    if chosen:
        inputs.append(port("chosen", TensorProto.INT32, ["rows", 1]))
    names = ["x", "w", "chosen"] if chosen else ["x", "w"]
    node = helper.make_node(op, names, ["y"], domain="tamiz", **attributes)
    outputs = [port("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(
        [node], "product", inputs, outputs, [numpy_helper.from_array(weight, "w")]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait for the next run of one session would take a core from the other.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    tamiz_ops.register(options)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def measure(name: str, bits: int, threads: int, row_counts: list[int]) -> list[dict[str, Any]]:
    """One result for every number of rows an expert."""
    mixture, dense = (session(op, name, bits, threads) for op in ("ExpertMatMul", "BlockMatMul"))
    clock = time.process_time if threads == 1 else time.perf_counter
    rng = np.random.default_rng(1)
    results = []
    for rows in row_counts:
        feed = {"x": rng.standard_normal((rows * EXPERTS, K), dtype=np.float32)}
        ids = rng.permutation(np.repeat(np.arange(EXPERTS, dtype=np.int32), rows))
        feeds = [(mixture, {**feed, "chosen": ids[:, None]}), (dense, feed)]
        for made, given in feeds:
            made.run(None, given)
        times: list[list[float]] = [[], []]
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end or len(times[0]) < ROUNDS:
            for (made, given), seconds in zip(feeds, times, strict=True):
                start = clock()
                made.run(None, given)
                seconds.append(clock() - start)
        ours, theirs = map(np.array, times)
        low, middle, high = np.percentile(theirs / ours, (25, 50, 75))
        work = rows * EXPERTS * K * N / 1e9
        result: dict[str, Any] = {"format": name, "activation_bits": bits, "rows": rows}
        result["gmac_s"] = [round(work / float(each.min()), 1) for each in (ours, theirs)]
        result["ratio"] = [round(float(value), 3) for value in (middle, low, high)]
        results.append(result)
        print(
            f"{name:>12}{bits:6d}{rows:6d}{result['gmac_s'][0]:10.1f}{result['gmac_s'][1]:10.1f}"
            f"{middle:8.2f} ({low:.2f} to {high:.2f})",
            flush=True,
        )
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="q4_k", help="weight formats")
    parser.add_argument("--bits", type=numbers, default="16,8", help="bits of quantised inputs")
    parser.add_argument("--rows", type=numbers, default="8,16,32,64,128", help="rows an expert")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    print("      format  bits  rows    GMAC/s     dense   ratio")
    results = [
        result
        for name in options.formats.split(",")
        for bits in options.bits
        for result in measure(name, bits, options.threads, options.rows)
    ]
    if options.json:
        record.write(options.json, "expert_rows", results, settings=vars(options))
