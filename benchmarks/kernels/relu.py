"""What skipping the zeros of a ReLU saves: synthetic feed-forward blocks of int4 in ONNX Runtime.

A graph is a row of blocks up → Relu → down on one token, with weights of their own, 640 MB
together.
The bias of up leaves the given fraction of the hidden activations. `int4` multiplies with
BlockMatMul; `skip` has ZeroMask and ChannelMatMul in place of the down product, and gives the same
bits. Both run interleaved.

    python -m benchmarks relu [--threads 1,2] [--keep 0.5,0.2,0.1,0.05] [--sizes 4096,11008]
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import tamiz_ops
from benchmarks.common.graphs import BYTES, PAGE, external, interleaved, load, numbers
from benchmarks.kernels.skipping import fractions, int4
from tamiz.evaluation.bench import read_bandwidth


def block(index, hidden, features, skips):
    """Nodes of one block, and the names of its constants."""
    up, bias, down = names = [f"{part}{index}" for part in ("up", "bias", "down")]
    sizes = {"n": features, "k": hidden}
    back = {"n": hidden, "k": features}
    made = [
        helper.make_node(
            "BlockMatMul", ["x", up, "", bias], [f"h{index}"], domain="tamiz", bits=4, **sizes
        ),
        helper.make_node("Relu", [f"h{index}"], [f"a{index}"]),
    ]
    a, y = f"a{index}", f"y{index}"
    if skips:
        mask = f"m{index}"
        made.append(helper.make_node("ZeroMask", [a], [mask], domain="tamiz"))
        made.append(helper.make_node("ChannelMatMul", [a, down, mask], [y], domain="tamiz", **back))
    else:
        made.append(helper.make_node("BlockMatMul", [a, down], [y], domain="tamiz", bits=4, **back))
    return made, names


def session(name, copies, arrays, sizes, threads, folder):
    nodes, constants, offset = [], [], 0
    data = folder / f"{name}.data"
    with data.open("wb") as file:
        for index in range(copies):
            made, names = block(index, sizes[0], sizes[1], name == "skip")
            nodes += made
            for constant, array in zip(names, arrays, strict=True):
                blob = array.tobytes() + bytes(-array.nbytes % PAGE)
                file.write(blob)
                constants.append(external(constant, array, data, offset))
                offset += len(blob)
    port = helper.make_tensor_value_info
    outputs = [port(f"y{copies - 1}", TensorProto.FLOAT, [1, sizes[0]])]
    x = port("x", TensorProto.FLOAT, [1, sizes[0]])
    graph = helper.make_graph(nodes, "relu", [x], outputs, constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return load(model, folder / f"{name}.onnx", threads)


def measure(sizes, keep, threads):
    hidden, features = sizes
    rng = np.random.default_rng(0)
    up, down = int4(features, hidden, rng), int4(hidden, features, rng)
    x = rng.standard_normal((1, hidden), dtype=np.float32)
    packed = tamiz_ops.pack_int4(*up)
    [h] = tamiz_ops.run("BlockMatMul", [x, packed], bits=4, n=features, k=hidden)
    bias = np.full(features, -np.quantile(h, 1 - keep), np.float32)
    downs = {"int4": tamiz_ops.pack_int4(*down), "skip": tamiz_ops.pack_channels(*down)}
    copies = -(-BYTES // (2 * packed.nbytes))
    with tempfile.TemporaryDirectory() as folder:
        made = {
            name: session(name, copies, [packed, bias, weight], sizes, threads, Path(folder))
            for name, weight in downs.items()
        }
        results = [run.run(None, {"x": x})[0] for run in made.values()]
        np.testing.assert_array_equal(*results)
        counted = tamiz_ops.metrics(made["skip"]).values()
        density = sum(c.get("pack.nonzero", 0) for c in counted) / copies / features
        read = read_bandwidth(threads)
        times = interleaved(5, *(lambda r=r: r.run(None, {"x": x}) for r in made.values()))
    dense, skip = (1e6 * seconds / copies for seconds in times)
    print(
        f"{hidden} x {features}, {threads} threads, {read:.0f} GB/s, density {density:.3f}: "
        f"int4 {dense:.0f} us, skip {skip:.0f} us, {dense / skip:.2f} x"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=numbers, default="1,2", help="thread counts")
    parser.add_argument("--keep", type=fractions, default="0.5,0.2,0.1,0.05", help="densities")
    parser.add_argument("--sizes", type=numbers, default="4096,11008", help="hidden, features")
    arguments = parser.parse_args()
    for threads in arguments.threads:
        for keep in arguments.keep:
            measure(arguments.sizes, keep, threads)
