"""Ways to store a weight: bits and error on SmolLM2's tensors, speed of the kernels.

    python -m benchmarks weights error            # bits per weight, error, seconds of the fit
    python -m benchmarks weights speed            # one row of x, weights from memory, 2 threads

The source is a Q4_1 file: its weights lie on int4 levels with a float minimum, which is why
that column is 0.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import gguf
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

import tamiz_ops
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Fit
from tamiz_exporters.gguf import locate
from tamiz_proc_sparse import fit as proc_sparse
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_seed_delta import fit as seed_delta
from tamiz_seed_delta.config import SeedDeltaConfig

LAYER = "blk.7."
TENSORS = ("attn_q", "attn_output", "ffn_gate", "ffn_down")
GROUP = 32


def round_to_nearest(w: np.ndarray, bits: int) -> tuple[float, np.ndarray]:
    """scale * q, symmetric, a scale of 16 bits for every 32."""
    groups = w.reshape(-1, GROUP)
    top = 2 ** (bits - 1) - 1
    scale = np.abs(groups).max(1, keepdims=True) / top
    return bits + 16 / GROUP, (np.rint(groups / scale) * scale).reshape(w.shape)


def with_minimum(w: np.ndarray) -> tuple[float, np.ndarray]:
    packed = tamiz_ops.pack_int4(*tamiz_ops.quantize_groups(w, 4))
    return 8 * packed.nbytes / w.size, tamiz_ops.dequantize(packed, 4, *w.shape)


def fitted(module: object, config: object) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    def apply(w: np.ndarray) -> tuple[float, np.ndarray]:
        n, k = w.shape
        site = Site("s", SiteKind.LINEAR, "n", weight="w", in_features=k, out_features=n)
        made: Fit = module.fit(site, w, None, config)  # type: ignore[attr-defined]
        return made.bits_per_weight, module.dequantize(site, made)  # type: ignore[attr-defined]

    return apply


def ways(k: int) -> Iterator[tuple[str, Callable[[np.ndarray], tuple[float, np.ndarray]]]]:
    yield "int4, minimum", with_minimum
    yield "int4 nearest", lambda w: round_to_nearest(w, 4)
    yield "int3 nearest", lambda w: round_to_nearest(w, 3)
    for bits in (3, 4):
        config = SeedDeltaConfig(base="seedlm", base_bits=bits, k=0)
        yield f"seed-delta seedlm {bits}", fitted(seed_delta, config)
    for share in (0.7, 0.6, 0.4):
        for base_scale in (0, 0.05):
            sparse = ProcSparseConfig(watermark=int(share * k), base_scale=base_scale)
            yield f"proc-sparse {share}, hash {base_scale}", fitted(proc_sparse, sparse)
    yield (
        "proc-sparse, 0.9 of blocks",
        fitted(proc_sparse, ProcSparseConfig(fanout=int(0.9 * k / GROUP))),
    )
    for base in ("none", "xor-circulant", "hadamard"):
        for scheme in ("coo", "block"):
            config = SeedDeltaConfig(base=base, scheme=scheme, k=k // 2, bits=4, perm_trials=4)
            yield f"seed-delta {base}, {scheme} 0.5", fitted(seed_delta, config)


def print_errors() -> None:
    tensors = {t.name: t for t in gguf.GGUFReader(locate("smollm2")).tensors}
    results: dict[str, list[tuple[float, float, float]]] = {}
    for name in TENSORS:
        tensor = tensors[f"{LAYER}{name}.weight"]
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for label, way in ways(w.shape[1]):
            start = time.perf_counter()
            bits, made = way(w)
            seconds = time.perf_counter() - start
            error = float(np.linalg.norm(made - w) / np.linalg.norm(w))
            results.setdefault(label, []).append((bits, error, seconds))
    print(f"{'bits | error | s':32s}", *(f"{name:>21s}" for name in TENSORS))
    for label, row in results.items():
        print(f"{label:32s}", *(f"{b:6.2f} | {e:6.4f} | {s:3.0f}" for b, e, s in row))


# ---- speed ----

ROTATE = 320 << 20  # bytes of weights that pass before one comes again: more than any L3


class Runner:
    """One op in a session; every call takes the next copy of its weight."""

    def __init__(
        self,
        op: str,
        tensors: list[np.ndarray],
        size: tuple[int, int],
        places: list[int] | None = None,
        **attributes,
    ):
        """`places`: which inputs the tensors are, 1 and on if it is not given."""
        n, k = size
        names = [f"t{i}" for i in range(len(tensors))]
        ports = ["x"] + [""] * max(places or [len(names)])
        for place, name in zip(places or range(1, len(ports)), names, strict=True):
            ports[place] = name
        types = [helper.np_dtype_to_tensor_dtype(t.dtype) for t in tensors]
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, k])]
        inputs += [
            helper.make_tensor_value_info(name, kind, list(t.shape))
            for name, kind, t in zip(names, types, tensors, strict=True)
        ]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, n])]
        domain = "" if op == "MatMul" else "tamiz"
        node = helper.make_node(op, ports, ["y"], domain=domain, **attributes)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
        graph = helper.make_graph([node], "g", inputs, outputs)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 2
        tamiz_ops.register(options)
        self.session = ort.InferenceSession(
            helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString(),
            options,
            providers=["CPUExecutionProvider"],
        )
        self.bytes = sum(t.nbytes for t in tensors)
        self.times: list[float] = []
        x = np.random.default_rng(0).standard_normal((1, k)).astype(np.float32)
        self.bindings = []
        for _ in range(-(-ROTATE // self.bytes)):
            binding = self.session.io_binding()
            copies = [x, *(t.copy() for t in tensors)]
            for name, value in zip(["x", *names], copies, strict=True):
                binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(value))
            binding.bind_output("y")
            self.bindings.append(binding)

    def step(self) -> None:
        binding = self.bindings[len(self.times) % len(self.bindings)]
        start = time.perf_counter()
        self.session.run_with_iobinding(binding)
        self.times.append(time.perf_counter() - start)


def seed_delta_runner(fit: Fit, size: tuple[int, int]) -> Runner:
    ports = [port["name"] for port in tamiz_ops.schemas()["SeedDeltaMatMul"]["inputs"]]
    names = [name for name in ports if name in fit.tensors]
    places = [ports.index(name) for name in names]
    tensors = [fit.tensors[name] for name in names]
    return Runner("SeedDeltaMatMul", tensors, size, places, **fit.attributes)


def runners(n: int, k: int) -> dict[str, Runner]:
    w = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    site = Site("s", SiteKind.LINEAR, "n", weight="w", in_features=k, out_features=n)
    int4 = tamiz_ops.pack_int4(*tamiz_ops.quantize_groups(w, 4))
    int8 = tamiz_ops.pack_int8(*tamiz_ops.quantize_groups(w, 8)[:2])
    made = {
        "dense fp32, onnxruntime": Runner("MatMul", [np.ascontiguousarray(w.T)], (n, k)),
        "block-quant int8": Runner("BlockMatMul", [int8], (n, k), bits=8, n=n, k=k),
        "block-quant int4": Runner("BlockMatMul", [int4], (n, k), bits=4, n=n, k=k),
    }
    blocks = k // GROUP
    for label, config in {
        "proc-sparse, all blocks": ProcSparseConfig(fanout=blocks, shed_eps=0),
        "proc-sparse, 0.75 of blocks": ProcSparseConfig(fanout=3 * blocks // 4),
        "proc-sparse, 0.5 of blocks": ProcSparseConfig(fanout=blocks // 2),
        "proc-sparse, 0.6 of weights": ProcSparseConfig(
            fanout=blocks, watermark=int(0.6 * k), base_scale=0
        ),
        "proc-sparse, 0.6 and hash": ProcSparseConfig(fanout=blocks, watermark=int(0.6 * k)),
        "proc-sparse, 0.05 and hash": ProcSparseConfig(
            fanout=blocks, watermark=int(0.05 * k), bits=8
        ),
    }.items():
        fit = proc_sparse.fit(site, w, None, config)
        attributes: dict[str, Any] = {**fit.attributes}
        made[label] = Runner("ProcSparseMatMul", list(fit.tensors.values()), (n, k), **attributes)
    for base in ("none", "xor-circulant", "hadamard"):
        fields = {"base": base, "k": k // 2, "bits": 4, "perm_trials": 1}
        delta = SeedDeltaConfig.model_validate(fields)
        if base == "hadamard" and n * k > 1 << 21:
            continue  # its fit makes an n x L matrix
        fit = seed_delta.fit(site, w, None, delta)
        made[f"seed-delta {base}, 0.5 of blocks"] = seed_delta_runner(fit, (n, k))
    for bits in (3, 4):
        delta = SeedDeltaConfig(base="seedlm", base_bits=bits, k=0)
        fit = seed_delta.fit(site, w, None, delta)
        made[f"seed-delta seedlm {bits}"] = seed_delta_runner(fit, (n, k))
    return made


def print_speeds(rounds: int = 40) -> None:
    for n, k in ((1536, 576), (576, 1536)):
        made = runners(n, k)
        for _ in range(rounds):
            for runner in made.values():
                runner.step()
        print(f"\n{n} x {k}: median and least µs, MB, GB/s at the median")
        for label, runner in made.items():
            times = np.sort(np.array(runner.times[3:])) * 1e6
            median = times[len(times) // 2]
            print(
                f"{label:36s} {median:8.0f} {times[0]:8.0f} {runner.bytes / 1e6:8.2f} "
                f"{runner.bytes / median / 1e3:6.1f}"
            )


def main() -> None:
    """Prints errors, or speeds."""
    parts = {"error": print_errors, "speed": print_speeds}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=parts)
    parts[parser.parse_args().part]()
