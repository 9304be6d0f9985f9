"""The block-quantised matmul alone, in ONNX Runtime: tamiz.BlockMatMul against MatMulNBits.

A graph is a row of nodes with weights of their own, 640 MB together, so that no cache holds them:
what a decode step meets. Both graphs run interleaved; the table gives medians, of all threads
together. MatMulNBits has accuracy_level 4: 8-bit activations in groups of 32, where BlockMatMul
has 16-bit ones. `read` is what the machine reads from memory at that moment.

    python benchmarks/kernels.py [--threads 1,2] [--rows 1,8,32,512] [--json FILE]
"""

import argparse
import statistics
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
import record
from onnx import TensorProto, helper

import tamiz_ops
from tamiz.evaluation.bench import read_bandwidth

SHAPES = [(576, 1536, 4), (1536, 576, 4), (4096, 11008, 4), (576, 49152, 8)]  # k, n, bits
BYTES = 640 << 20
SECONDS = 1.0  # a case, at least
PAGE = 4096


def tamiz_weights(k, n, bits, rng):
    groups = k // 32
    scales = rng.uniform(0.001, 0.02, (n, groups)).astype(np.float16)
    if bits == 8:
        return [tamiz_ops.pack_int8(rng.integers(-127, 128, (n, k), dtype=np.int8), scales)]
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    return [tamiz_ops.pack_int4(quants, scales, -8 * scales)]


def peer_weights(k, n, bits, rng):
    quants = rng.integers(1, 256, (n, k // 32, 4 * bits), dtype=np.uint8)
    return [quants, rng.uniform(0.001, 0.02, (n, k // 32)).astype(np.float32)]


def external(name, array, data, offset):
    """An initializer like `array` that lies at `offset` of the file `data`, beside the model."""
    tensor = TensorProto(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )
    place = {"location": data.name, "offset": offset, "length": array.nbytes}
    for key, value in place.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def session(op, domain, attributes, weights, copies, threads, folder, more=()):
    """`copies` nodes on the same x and `more` inputs; only the last has a consumer, all are run."""
    blobs = [weight.tobytes() + bytes(-weight.nbytes % PAGE) for weight in weights]
    data = folder / f"{op}.data"
    with data.open("wb") as file:
        for copy in range(copies):
            for blob in blobs:
                # ONNX Runtime would share what it prepacks of equal weights.
                file.write(blob if domain == "tamiz" else struct.pack("<I", copy) + blob[4:])
    nodes, initializers, offset = [], [], 0
    for copy in range(copies):
        names = [f"w{copy}.{i}" for i in range(len(weights))]
        inputs = ["x", *names, *more]
        nodes.append(helper.make_node(op, inputs, [f"y{copy}"], domain=domain, **attributes))
        for name, weight, blob in zip(names, weights, blobs, strict=True):
            initializers.append(external(name, weight, data, offset))
            offset += len(blob)
    port = helper.make_tensor_value_info
    masks = [port(name, TensorProto.UINT8, ["rows", None]) for name in more]
    x, y = (port(name, TensorProto.FLOAT, ["rows", None]) for name in ("x", f"y{copies - 1}"))
    graph = helper.make_graph(nodes, "matmul", [x, *masks], [y], initializers)
    opsets = [
        helper.make_opsetid(domain, version)
        for domain, version in [("", 17), ("com.microsoft", 1), ("tamiz", 1)]
    ]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return load(model, folder / f"{op}.onnx", threads)


def load(model, path, threads):
    """The session of a model, which is written to `path`, beside its data."""
    path.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait for the next run of one session would take a core from another.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # The optimiser would drop the nodes without a consumer.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    tamiz_ops.register(options)
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def interleaved(rounds, *runs):
    """Median seconds of each run, all of them measured in turns."""
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end or len(times[0]) < rounds:
        for run, seconds in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


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


def numbers(text):
    return [int(number) for number in text.split(",")]


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


if __name__ == "__main__":
    main()
