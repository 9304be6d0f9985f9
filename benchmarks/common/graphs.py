"""Graphs of many nodes with weights of their own, their sessions, and runs in turn."""

import statistics
import struct
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

import tamiz_ops
from tamiz.files.external_data import external_tensors
from tamiz.runtime.large_pages import load_constants

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
    """The session of a model, which is written to `path`, beside its data.

    Weights lie in large pages, as those of a bundle do.
    """
    path.write_bytes(model.SerializeToString())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    # Threads that wait for the next run of one session would take a core from another.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # The optimiser would drop the nodes without a consumer.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    tamiz_ops.register(options)
    constants = load_constants(path.parent, external_tensors(path), options)
    made = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    made.constants = constants  # live as long as the session
    return made


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


def numbers(text):
    return [int(number) for number in text.split(",")]
