"""Products of many rows, as encoders and prompts have them: BlockMatMul against MLAS.

    python -m benchmarks many-rows [--rows 1024] [--threads 2] [--shapes mpnet|qwen-1.5b]
                                   [--json FILE]

The shapes are all-mpnet-base-v2's, whose 1,024 rows are 8 texts of 128 tokens, or Qwen 1.5B's.
``mlas int8`` is what ``onnxruntime.quantization.quantize_dynamic`` makes of a MatMul. All sessions
run interleaved, and so does a loop of nothing but VPDPBUSD where the processor has it: the peak of
products with inputs of 8 bits; inputs of 16 bits need twice as many instructions. A result has the
median of milliseconds, the median and the quartiles of the ratio to ``mlas int8`` within a round
(above 1 is faster), billions of operations a second, their percentage of the peak (both medians),
and the cosine with the product in float64.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import tamiz_ops
from benchmarks.common import record
from tamiz_ops.formats import find_format, pack_blocks

SHAPES = {  # k, n
    "mpnet": [(768, 768), (768, 3072), (3072, 768)],
    "qwen-1.5b": [(1536, 1536), (1536, 8960), (8960, 1536)],
}
FORMATS = ("q8_0", "q4_0", "q6_k", "q4_k")
BITS = (16, 8)
SECONDS = 4.0  # a shape, at least
PAUSE = 0.01  # seconds between sessions
RUNS = 4  # of a session in a turn, after one that is not measured
PEAK = Path(__file__).with_name("vpdpbusd.c")
PEAK_ROUNDS = 8_000_000  # some milliseconds more than a thread takes to start


def graph_of(node, initializers, k, n):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", k])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", n])
    graph = helper.make_graph([node], "product", [x], [y], initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def session(model, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    tamiz_ops.register(options)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def dense(w):
    weight = numpy_helper.from_array(np.ascontiguousarray(w.T), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return graph_of(node, [weight], w.shape[1], w.shape[0])


def dynamically_quantized(w, folder):
    from onnxruntime.quantization import quantize_dynamic

    logging.disable(logging.WARNING)  # it advises to preprocess the model
    onnx.save(dense(w), folder / "dense.onnx")
    quantize_dynamic(folder / "dense.onnx", folder / "int8.onnx")
    return onnx.load(folder / "int8.onnx")


def packed(w, name, bits):
    import gguf
    from gguf.constants import GGMLQuantizationType as Type

    n, k = w.shape
    if not name.endswith("_k"):
        blocks = gguf.quants.quantize(w, Type[name.upper()])
    else:  # gguf cannot write k-quants: random blocks do for speed, they have no cosine
        blocks = random_blocks(Type[name.upper()], n, k)
    weight = numpy_helper.from_array(pack_blocks(find_format(name), blocks, k), "w")
    attributes = {"format": name, "n": n, "k": k}
    if bits != 16:
        attributes["activation_bits"] = bits
    node = helper.make_node("BlockMatMul", ["x", "w"], ["y"], domain="tamiz", **attributes)
    return graph_of(node, [weight], k, n)


def random_blocks(kind, n, k):
    from gguf.constants import GGML_QUANT_SIZES

    block, size = GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(1).integers(0, 256, (n, k // block, size), np.uint8)
    halves = {"Q4_K": (0, 2), "Q6_K": (208,)}[kind.name]
    for at in halves:
        blocks[:, :, at : at + 2] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
    return blocks.reshape(n, -1)


def peak_of(threads, folder):
    """What measures the peak, in operations a second; None without VPDPBUSD."""
    if not tamiz_ops.cpu()["features"].get("avx512vnni"):
        return None
    library = folder / "vpdpbusd.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", PEAK, "-o", library], check=True)
    loop = ctypes.CDLL(str(library)).vpdpbusd
    loop.restype = ctypes.c_double
    pool = ThreadPoolExecutor(threads)

    def measure():
        start = time.perf_counter()
        operations = sum(pool.map(loop, [PEAK_ROUNDS] * threads))
        return operations / (time.perf_counter() - start)

    return measure


def measure(k, n, rows, threads, peak):
    rng = np.random.default_rng(0)
    w = rng.standard_normal((n, k), np.float32) / np.float32(k**0.5)
    x = rng.standard_normal((rows, k), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        models = {"mlas int8": dynamically_quantized(w, Path(folder)), "mlas fp32": dense(w)}
    for name in FORMATS:
        for bits in BITS:
            models[f"{name}, activations of {bits} bits"] = packed(w, name, bits)
    runs = {name: session(model, threads) for name, model in models.items()}
    exact = (x.astype(np.float64) @ w.T.astype(np.float64)).ravel()
    times: dict[str, list[float]] = {name: [] for name in runs}
    peaks = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        if peak:
            time.sleep(PAUSE)
            peaks.append(peak())
        for name, run in runs.items():
            time.sleep(PAUSE)  # until the threads of the session before no longer spin
            run.run(None, {"x": x})
            start = time.perf_counter()
            for _ in range(RUNS):
                run.run(None, {"x": x})
            times[name].append((time.perf_counter() - start) / RUNS)
    results = {}
    most = float(np.median(peaks)) / 1e9 if peaks else None
    reference = np.array(times["mlas int8"])
    for name, seconds in times.items():
        low, middle, high = np.percentile(reference / np.array(seconds), (25, 50, 75))
        y = runs[name].run(None, {"x": x})[0].ravel().astype(np.float64)
        cosine = float(y @ exact / np.linalg.norm(y) / np.linalg.norm(exact))
        speed = 2 * rows * k * n / float(np.median(seconds)) / 1e9
        instructions = 2 if name.endswith("16 bits") else 1
        results[name] = {
            "ms": round(1e3 * float(np.median(seconds)), 3),
            "gop_s": round(speed, 1),
            "peak_percent": round(100 * instructions * speed / most, 1) if most else None,
            "speed": [round(float(v), 3) for v in (middle, low, high)],
            "cosine": round(cosine, 7) if "_k" not in name else None,
        }
    return {"peak_gop_s": round(most, 1) if most else None, "sessions": results}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", choices=SHAPES, default="mpnet")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    shapes = {}
    with tempfile.TemporaryDirectory() as folder:
        peak = peak_of(options.threads, Path(folder))
    for k, n in SHAPES[options.shapes]:
        results = measure(k, n, options.rows, options.threads, peak)
        shapes[f"{k}x{n}"] = results
        print(f"K {k}, N {n}, peak {results['peak_gop_s']} Gop/s")
        for name, entry in results["sessions"].items():
            middle, low, high = entry["speed"]
            print(
                f"  {name:28s} {entry['ms']:8.3f} ms, {entry['gop_s']:7.1f} Gop/s"
                f" ({entry['peak_percent']} % of the peak), {middle:.2f} x mlas int8"
                f" ({low:.2f} to {high:.2f}), cosine {entry['cosine']}"
            )
    if options.json:
        settings = {name: vars(options)[name] for name in ("shapes", "rows", "threads")}
        record.write(options.json, "many-rows", shapes, settings=settings)
