"""What the zeros of a ReLU save: a decode step of a made decoder, whole and with masks.

    python -m benchmarks zeros [--shape 7b] [--keep 0.05,0.1,0.3] [--threads 2] [--json FILE]

The graph has the products and norms of one decode step. `SHAPES` has the sizes: those of Llama 3.2
1B, and of Llama-2-7B, as ProSparse and ReluLLaMA have them, both with a head of 32,000 tokens.
Attention to keys is left out. Weights are random int4 with scales of 8 bits, as builds store where
masks act, each layer with its own; a bias leaves the given fraction of activations. With `--part`
layers and head are that much fewer, so that ratios stay as they are. `relu2` has up, ReLU² and
down, `gated` also a gate. `whole` multiplies everything. `down` skips the inputs of down that are
0, and `chosen` also the outputs of up that the gate makes 0. These give the same bits. `predicted`
also leaves out the gates that their signs predict to be closed, as state-pack-signs does: it reads
one bit of each of their weights. All run interleaved. `ratio` is how often as fast as `whole` a
step is, and `bytes_ratio` how often fewer bytes of weights it reads: what could be reached if
nothing but bytes took time.

Signs find nothing where all gates are alike. Trained models have some that are open often and many
that hardly are, so the bias of a gate is drawn: with `--spread` times the deviation of its product.
`hot` is the part of the gates that has 80 % of all that are open. PowerInfer (arXiv 2312.12456)
found 0.26 in OPT-30B and 0.43 in a Llama 2 70B with ReLU, and a spread of 1 gives 0.27, 0.7 0.38.
Limits are fitted to normal inputs for a `--recall`. `recall` is what was found of the open gates in
all layers of steps of `TOKENS` inputs, `computed` the part that signs kept, and `kl` the divergence
of the softmax of the head from that of `whole`, in nats.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper

import tamiz_ops
from benchmarks.common import record
from benchmarks.common.graphs import PAGE, external, interleaved, load, numbers
from tamiz.evaluation.bench import read_bandwidth
from tamiz_passes.fuse import FuseNodes
from tamiz_state_pack.signs import STEPS, Gates, Levels

VOCABULARY = 32000
ROUNDS, TILE, UNIT = 51, 16, 0.01
MODELS = {"relu2": ("whole", "down"), "gated": ("whole", "down", "chosen", "predicted")}
TOKENS, SAMPLES, PLANES = 32, 512, 4


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder."""

    hidden: int
    kv: int
    ffn: int
    layers: int

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Outputs and inputs of each product."""
        return {
            "q": (self.hidden, self.hidden),
            "k": (self.kv, self.hidden),
            "v": (self.kv, self.hidden),
            "o": (self.hidden, self.hidden),
            "gate": (self.ffn, self.hidden),
            "up": (self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "head": (VOCABULARY, self.hidden),
        }


SHAPES = {"1b": Shape(2048, 512, 8192, 16), "7b": Shape(4096, 4096, 11008, 32)}


@dataclass
class Step:
    """The graph of a step in the making, and the file of its weights."""

    name: str
    folder: Path
    packed: dict[str, np.ndarray]
    shape: Shape
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    end: int = 0

    def op(self, op: str, inputs: list[str], output: str, *more: str, **attributes: Any) -> str:
        """Adds a node; returns its first output."""
        made = helper.make_node(op, inputs, [output, *more], domain="tamiz", **attributes)
        self.nodes.append(made)
        return output

    def constant(self, name: str, kind: str) -> str:
        """A constant with the bytes of a kind, in a place of its own."""
        array, data = self.packed[kind], self.folder / f"{self.name}.data"
        blob = array.tobytes() + bytes(-array.nbytes % PAGE)
        with data.open("ab") as file:
            file.write(blob)
        self.constants.append(external(name, array, data, self.end))
        self.end += len(blob)
        return name

    def product(self, part: str, at: str, x: str, bias: str = "") -> str:
        """A whole product."""
        n, k = self.packed[part].shape[0] * TILE, self.shape.products[part][1]
        inputs = [x, self.constant(f"{at}.{part}", part), "", bias]
        return self.op("BlockMatMul", inputs, f"{at}.{part}.y", bits=4, n=n, k=k, scale_bits=8)

    def layer(self, at: str, x: str, total: str, gated: bool, skips: str) -> tuple[str, str]:
        """A layer of the normed x and the residual stream; returns both after it."""
        q = self.product("q", at, x)
        self.outputs += [self.product(part, at, x) for part in "kv"]
        o, norm = self.product("o", at, q), self.constant(f"{at}.norm", "norm")
        x = self.op("RMSNorm", [o, norm, total], f"{at}.x", f"{at}.sum", epsilon=1e-5)
        y = self.feed_forward(at, x, gated, skips)
        total = f"{at}.sum_1"
        return self.op("RMSNorm", [y, norm, f"{at}.sum"], f"{at}.x_1", total, epsilon=1e-5), total

    def feed_forward(self, at: str, x: str, gated: bool, skips: str) -> str:
        """A feed-forward block."""
        if skips == "predicted":
            first = self.open_gates(at, x)
        else:
            first = self.product("gate" if gated else "up", at, x, "bias")
        relu2, mask = {"activation": "relu2"}, f"{at}.mask"
        if skips in ("chosen", "predicted"):
            opened = self.op("SwiGLU", [first], f"{at}.open", **relu2)
            self.op("ZeroMask", [opened], mask)
            up = self.chosen("up", at, x, mask)
        else:
            up = self.product("up", at, x) if gated else ""
        hidden = self.op("SwiGLU", [first, *([up] if up else [])], f"{at}.h", **relu2)
        if skips == "whole":
            return self.product("down", at, hidden)
        if skips == "down":
            self.op("ZeroMask", [hidden], mask)
        inputs = [hidden, self.constant(f"{at}.down", "channels"), mask]
        n, k = self.shape.products["down"]
        return self.op("ChannelMatMul", inputs, f"{at}.down.y", n=n, k=k, scale_bits=8)

    def open_gates(self, at: str, x: str) -> str:
        """The gates that are predicted to be open, the others 0."""
        n, k = self.shape.products["gate"]
        sizes = {"n": n, "k": k, "planes": PLANES, "step": STEPS[PLANES]}
        signs = [x, self.constant(f"{at}.signs", "signs"), "limits"]
        return self.chosen(
            "gate", at, x, self.op("SignMask", signs, f"{at}.guess", **sizes), "bias"
        )

    def chosen(self, part: str, at: str, x: str, mask: str, bias: str = "") -> str:
        """The outputs of a product that a mask keeps."""
        n, k = self.shape.products[part]
        inputs = [x, self.constant(f"{at}.{part}", f"{part} records"), mask, bias]
        return self.op("ChosenMatMul", inputs, f"{at}.{part}.y", n=n, k=k, scale_bits=8)

    def session(self, gated: bool, skips: str, threads: int) -> onnxruntime.InferenceSession:
        """The whole step, fused as builds are."""
        norm = self.constant("norm", "norm")
        x = self.op("RMSNorm", ["x", norm], "first", epsilon=1e-5)
        total = "x"
        for layer in range(self.shape.layers):
            x, total = self.layer(str(layer), x, total, gated, skips)
        self.outputs.append(self.product("head", "last", x))
        ports = helper.make_tensor_value_info
        starts = [ports("x", TensorProto.FLOAT, [1, self.shape.hidden])]
        starts += [ports("bias", TensorProto.FLOAT, [self.shape.ffn])]
        if skips == "predicted":
            starts += [ports("limits", TensorProto.INT32, [self.shape.ffn])]
        ends = [ports(y, TensorProto.FLOAT, None) for y in self.outputs]
        graph = helper.make_graph(self.nodes, "step", starts, ends, self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
        model = ir.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=8))
        FuseNodes()(model)
        return load(ir.to_proto(model), self.folder / f"{self.name}.onnx", threads)


def made_weights(rng: np.random.Generator, shape: Shape, part_of: int) -> dict[str, np.ndarray]:
    """One packed weight of each kind, of the head a part of its tiles."""
    packed: dict[str, np.ndarray] = {"norm": np.ones(shape.hidden, np.float32)}
    for part, (n, k) in shape.products.items():
        scales = rng.integers(128, 255, (n, k // 32), dtype=np.uint8)
        quants, units = rng.integers(0, 16, (n, k), dtype=np.uint8), np.full(n, UNIT, np.float16)
        parts = quants, scales, (scales * 0.9375).astype(np.uint8), units
        packed[part] = tamiz_ops.pack_int4_in_units(*parts)
        if part == "head":
            packed[part] = packed[part][: n // TILE // part_of]
        if part in ("gate", "up"):
            packed[f"{part} records"] = tamiz_ops.pack_records_in_units(*parts)
        elif part == "down":
            packed["channels"] = tamiz_ops.pack_channels_in_units(*parts)
    return packed


class GatesOfNormals:
    """The gates of a made layer on inputs that are normal, as the steps' are after norms."""

    def __init__(self, packed: np.ndarray, shape: Shape) -> None:
        weight = tamiz_ops.dequantize(packed, 4, shape.ffn, shape.hidden, 8)
        self.signs = np.where(weight > 0, np.int8(1), np.int8(-1))
        rng = np.random.default_rng(2)
        x = rng.standard_normal((SAMPLES, shape.hidden), dtype=np.float32)
        levels = Levels(np.zeros(shape.hidden, np.float32), STEPS[PLANES], PLANES)
        self._values, self._agree = x @ weight.T, levels.levels(x) @ self.signs.T.astype(np.float32)
        self._deviation = float(np.sqrt(np.square(weight).mean() * shape.hidden))
        self._places = rng.standard_normal(shape.ffn)
        self._most = (2**PLANES - 1) * shape.hidden

    def bias(self, keep: float, spread: float) -> np.ndarray:
        """Leaves a fraction of the gates open."""
        middle = NormalDist(0, float(np.hypot(1, spread))).inv_cdf(1 - keep)
        bias: np.ndarray = self._deviation * (spread * self._places - middle)
        return bias.astype(np.float32)

    def limits(self, bias: np.ndarray, recall: float) -> np.ndarray:
        """Those that find a part of the open gates."""
        values = self._values + bias
        gates = Gates.of(self._agree, values)
        least = float(np.quantile(gates.scores(self._agree)[values > 0], 1 - recall))
        return gates.limits(least, self._most)

    def hot(self, bias: np.ndarray) -> float:
        """The part of the gates that has 80 % of all that are open."""
        often = np.sort((self._values + bias > 0).sum(axis=0))[::-1].cumsum()
        return float((np.searchsorted(often, 0.8 * often[-1]) + 1) / len(often))


def bytes_read(session: onnxruntime.InferenceSession, feed: dict[str, Any]) -> float:
    """Bytes of weights that one step reads, and of signs."""
    tamiz_ops.reset_metrics(session)
    session.run(None, feed)
    signs = total(session, "pack.outputs") * feed["x"].size / 8
    return total(session, "matmul.bytes_read") + signs


def total(session: onnxruntime.InferenceSession, metric: str) -> float:
    """What all ops of a session counted of a metric."""
    counted = tamiz_ops.metrics(session).values()
    return float(sum(each.get(metric, 0) for each in counted))


def prediction(
    whole: onnxruntime.InferenceSession,
    chosen: onnxruntime.InferenceSession,
    predicted: onnxruntime.InferenceSession,
    feed: dict[str, Any],
) -> dict[str, float]:
    """What signs find, keep and lose, over steps of `TOKENS` inputs."""
    rng, divergences = np.random.default_rng(3), []
    for session in (chosen, predicted):
        tamiz_ops.reset_metrics(session)
    for _ in range(TOKENS):
        fed = feed | {"x": rng.standard_normal(feed["x"].shape, dtype=np.float32)}
        limits = fed.pop("limits")
        chosen.run(None, fed)
        logits = [run.run(None, more)[-1].astype(np.float64) for run, more in (
            (whole, fed), (predicted, fed | {"limits": limits})
        )]  # fmt: skip
        p, q = (each - np.logaddexp.reduce(each, axis=-1) for each in logits)
        divergences.append((np.exp(p) * (p - q)).sum())
    found, computed = total(predicted, "pack.nonzero"), total(predicted, "pack.predicted")
    return {
        "recall": round(found / total(chosen, "pack.nonzero"), 4),
        "computed": round(computed / total(predicted, "pack.outputs"), 4),
        "kl": round(float(np.mean(divergences)), 5),
    }


def measure(
    model: str, options: argparse.Namespace, threads: int, packed: dict[str, np.ndarray]
) -> dict[float, dict[str, float]]:
    """By fraction kept: milliseconds of each kind of step, and the density that was found."""
    gated, kinds, shape = model == "gated", MODELS[model], options.made
    gates = GatesOfNormals(packed["gate" if gated else "up"], shape)
    packed = packed | {"signs": tamiz_ops.pack_sign_words(gates.signs)}
    x = np.random.default_rng(1).standard_normal((1, shape.hidden), dtype=np.float32)
    results = {}
    with tempfile.TemporaryDirectory() as name:
        made = {
            kind: Step(kind, Path(name), packed, shape).session(gated, kind, threads)
            for kind in kinds
        }
        for keep in options.keep:
            bias = gates.bias(keep, options.spread)
            feed = {"x": x, "bias": bias}
            exact = {kind: run for kind, run in made.items() if kind != "predicted"}
            outputs = [np.hstack(run.run(None, feed)) for run in exact.values()]
            for output in outputs[1:]:
                np.testing.assert_array_equal(output, outputs[0])
            feeds = dict.fromkeys(kinds, feed)
            if gated:
                feeds["predicted"] = feed | {"limits": gates.limits(bias, options.recall)}
            read = {kind: bytes_read(run, feeds[kind]) for kind, run in made.items()}
            kept = total(made[kinds[1]], "pack.nonzero") / shape.layers / shape.ffn
            runs = [partial(run.run, None, feeds[kind]) for kind, run in made.items()]
            milliseconds = [1e3 * seconds for seconds in interleaved(ROUNDS, *runs)]
            found = {"density": round(kept, 4), "hot": round(gates.hot(bias), 2)}
            for kind, each in zip(kinds, milliseconds, strict=True):
                found[f"{kind}_ms"] = round(each, 2)
                found[f"{kind}_ratio"] = round(milliseconds[0] / each, 3)
                found[f"{kind}_bytes_ratio"] = round(read["whole"] / read[kind], 3)
            if gated:
                found |= prediction(
                    made["whole"], made["chosen"], made["predicted"], feeds["predicted"]
                )
            results[keep] = found
            print(model, keep, threads, results[keep], flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--keep", default="0.05,0.1,0.3", help="fractions of activations left")
    parser.add_argument("--spread", type=float, default=0.7, help="of the gates' bias")
    parser.add_argument("--recall", type=float, default=0.95, help="of the open gates, predicted")
    parser.add_argument("--threads", type=numbers, default=[2], help="thread counts")
    parser.add_argument("--part", type=int, default=1, help="of layers and head: one in so many")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    options.keep = [float(keep) for keep in options.keep.split(",")]
    whole = SHAPES[options.shape]
    options.made = replace(whole, layers=whole.layers // options.part)
    packed = made_weights(np.random.default_rng(0), options.made, options.part)
    results: dict[str, Any] = {}
    for threads in options.threads:
        results[f"{threads} threads, read_gb_s"] = round(read_bandwidth(threads), 1)
        for model in MODELS:
            found = measure(model, options, threads, packed)
            for keep, one in found.items():
                results[f"{model}, keep {keep:g}, {threads} threads:"] = one
    if options.json:
        names = ("shape", "keep", "threads", "part", "spread", "recall")
        settings = {name: getattr(options, name) for name in names}
        record.write(options.json, "zeros", results, settings=settings)


if __name__ == "__main__":
    main()
