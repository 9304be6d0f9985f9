"""Attention alone, in ONNX Runtime: tamiz.Attention against com.microsoft.GroupQueryAttention.

A graph is a chain of attention nodes, each with a key/value buffer of its own, appended in place
(SmolLM2-135M: 9 query heads, 3 key/value heads of 64). Decode walks 30 layers, so that a long
context does not stay in the processor's caches. The graphs run interleaved: floats, the same with a
cache of 8 bits, and the peer. The table gives medians, of wall time and of the process's CPU time.

    python -m benchmarks attention [--threads 1,2] [--json FILE]
"""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import tamiz_ops
from benchmarks.common import record
from tamiz_ops.cache_rows import pack_rows

HEADS, KV_HEADS, DIM, ROTARY_BASE = 9, 3, 64, 100000.0
CASES = [  # name, layers, past, tokens
    ("decode", 30, 127, 1),
    ("decode", 30, 1999, 1),
    ("decode", 30, 7999, 1),
    ("prefill", 2, 0, 512),
    ("prefill", 2, 2000, 512),
    ("prefill", 2, 7500, 512),
]
SECONDS = 2.0  # a case, at least


def tamiz_node(layer, query, y, bits=32):
    names = [f"{which}.{layer}" for which in ("past_key", "past_value", "key", "value")]
    inputs = [query, "k", "v", *names[:2], "attention_mask", "position_ids", "inverse_frequency"]
    return helper.make_node(
        "Attention",
        inputs,
        [y, *names[2:]],
        domain="tamiz",
        num_heads=HEADS,
        kv_heads=KV_HEADS,
        cache_bits=bits,
    )


def byte_node(layer, query, y):
    return tamiz_node(layer, query, y, bits=8)


def peer_node(layer, query, y):
    names = [f"{which}.{layer}" for which in ("past_key", "past_value", "key", "value")]
    inputs = [query, "k", "v", *names[:2], "seqlens_k", "total_sequence_length", "cosine", "sine"]
    return helper.make_node(
        "GroupQueryAttention",
        inputs,
        [y, *names[2:]],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=KV_HEADS,
        do_rotary=1,
    )


def session(node, layers, feeds, buffers, threads):
    """The chain of nodes, bound to `feeds` and to `buffers` as past and present."""
    nodes = [node(i, f"y.{i}" if i else "q", f"y.{i + 1}") for i in range(layers)]
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int64): TensorProto.INT64}
    types[np.dtype(np.int32)] = TensorProto.INT32

    def info(name, array):
        return helper.make_tensor_value_info(name, types[array.dtype], array.shape)

    pasts = {f"past_{which}.{i}": b for i, pair in enumerate(buffers) for which, b in pair.items()}
    presents = {f"{which}.{i}": b for i, pair in enumerate(buffers) for which, b in pair.items()}
    graph = helper.make_graph(
        nodes,
        "attention",
        [info(name, array) for name, array in {**feeds, **pasts}.items()],
        [
            info(f"y.{layers}", feeds["q"]),
            *(info(name, array) for name, array in presents.items()),
        ],
    )
    opsets = [
        helper.make_opsetid(domain, version)
        for domain, version in [("", 17), ("com.microsoft", 1), ("tamiz", 1)]
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    tamiz_ops.register(options)
    run = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = run.io_binding()

    def at(name, array):
        return name, "cpu", 0, array.dtype, array.shape, array.ctypes.data

    for name, array in {**feeds, **pasts}.items():
        binding.bind_input(*at(name, array))
    for name, array in presents.items():
        binding.bind_output(*at(name, array))
    binding.bind_output(f"y.{layers}")

    def call(_keep=(feeds, buffers)):  # the binding holds addresses only
        run.run_with_iobinding(binding)
        return binding.get_outputs()[-1].numpy()

    return call


def sessions(layers, past, tokens, threads):
    rng = np.random.default_rng(0)
    keys = past + tokens

    def random(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

    shared = {"q": random(1, tokens, HEADS * DIM)}
    shared |= {name: random(1, tokens, KV_HEADS * DIM) for name in ("k", "v")}
    frequency = (ROTARY_BASE ** (-np.arange(DIM // 2) / (DIM // 2))).astype(np.float32)
    angle = np.arange(keys, dtype=np.float32)[:, None] * frequency
    ours = {
        "attention_mask": np.ones((1, keys), np.int64),
        "position_ids": np.arange(past, keys)[None],
        "inverse_frequency": frequency,
    }
    theirs = {
        "seqlens_k": np.array([keys - 1], np.int32),
        "total_sequence_length": np.array([keys], np.int32),
        "cosine": np.cos(angle),
        "sine": np.sin(angle),
    }
    buffers = [
        {which: random(1, KV_HEADS, keys, DIM) for which in ("key", "value")} for _ in range(layers)
    ]
    packed = [{which: pack_rows(rows) for which, rows in pair.items()} for pair in buffers]
    return (
        session(tamiz_node, layers, shared | ours, buffers, threads),
        session(byte_node, layers, shared | ours, packed, threads),
        session(peer_node, layers, shared | theirs, buffers, threads),
    )


def interleaved(*runs):
    """Median seconds of each run, wall and CPU, all of them measured in turns."""
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in runs]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0][0]) < 5:
        for run, lists in zip(runs, times, strict=True):
            clocks = (time.perf_counter, time.process_time)
            starts = [clock() for clock in clocks]
            run()
            for clock, start, seconds in zip(clocks, starts, lists, strict=True):
                seconds.append(clock() - start)
    return [[statistics.median(seconds) for seconds in lists] for lists in times]


def measure(threads):
    """One row a case: microseconds a layer of each, GB/s of cache read, GFLOP/s, differences."""
    rows = []
    for name, layers, past, tokens in CASES:
        ours, in_bytes, peer = sessions(layers, past, tokens, threads)
        y = ours().copy()
        difference, byte_difference = (float(np.abs(y - run()).max()) for run in (peer, in_bytes))
        times = np.array(interleaved(ours, in_bytes, peer)) / layers
        (seconds, cpu), (byte_seconds, byte_cpu), (peer_seconds, _) = times.tolist()
        visible = tokens * past + tokens * (tokens + 1) // 2
        rows.append(
            {
                "case": name,
                "threads": threads,
                "keys": past + tokens,
                "us": seconds * 1e6,
                "cpu_us": cpu * 1e6,
                "int8_us": byte_seconds * 1e6,
                "int8_cpu_us": byte_cpu * 1e6,
                "int8_ratio": cpu / byte_cpu,
                "int8_difference": byte_difference,
                "peer_us": peer_seconds * 1e6,
                "gb_s": 2 * 4 * KV_HEADS * DIM * (past + tokens) / seconds / 1e9,
                "gflop_s": 4 * HEADS * DIM * visible / seconds / 1e9,
                "ratio": peer_seconds / seconds,
                "difference": difference,
            }
        )
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2", help="thread counts, separated by commas")
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    arguments = parser.parse_args()
    rows = [row for threads in arguments.threads.split(",") for row in measure(int(threads))]
    print(
        "case    threads  keys   us/layer   peer us  ratio   GB/s  GFLOP/s  difference"
        "    CPU us  int8 CPU us  ratio  difference"
    )
    for row in rows:
        print(
            "{case:8}{threads:7d}{keys:6d}{us:11.1f}{peer_us:10.1f}{ratio:7.2f}"
            "{gb_s:7.1f}{gflop_s:9.1f}{difference:12.1e}"
            "{cpu_us:10.1f}{int8_cpu_us:13.1f}{int8_ratio:7.2f}{int8_difference:12.1e}".format(
                **row
            )
        )
    if arguments.json:
        record.write(arguments.json, "attention", rows, settings=vars(arguments))
