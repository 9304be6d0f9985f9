"""Voice activity detection, frame by frame, with event-driven products in its LSTM.

    pip install silero-vad --no-deps
    python examples/streaming_vad.py [--model silero_vad_16k_sequence.onnx] [--wav FILE]

Silero VAD reads 32 ms of sound a frame: convolutions, one LSTM of 128 cells, a probability of
speech. A stream is where deltas are the natural thing: what the LSTM reads changes little from
frame to frame. Its two products W x and R h are no sites that tamiz finds (an LSTM node holds
them), so this script writes one step of the LSTM out as a graph, dense and with EventSelect and
EventSum around both products, and compares with the original model: decisions, and time a frame.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

# Before it is imported: versions from 1.29 on look up a host for telemetry.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import tamiz_ops
from tamiz.api import Fit, Site, SiteKind, Statistics
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.fit import fit

RATE, FRAME, CONTEXT, CELLS = 16_000, 512, 64, 128
TEXT = (
    "A sieve lets through what is fine and keeps what is coarse. The baker shakes it over the "
    "table, and the flour falls like snow."
)

Float = NDArray[np.float32]


# ---- sound ----


def spoken() -> tuple[Float, str]:
    """Speech at 16 kHz, and where it comes from: espeak-ng where it is installed."""
    if program := shutil.which("espeak-ng"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "speech.wav"
            subprocess.run([program, "-w", str(path), TEXT], check=True)
            return read_wav(path), "espeak-ng"
    return formants(), "formant synthesis"


def read_wav(path: Path) -> Float:
    """The first channel, resampled by linear interpolation."""
    with wave.open(str(path)) as file:
        data = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        data, rate = data[:: file.getnchannels()], file.getframerate()
    at = np.arange(0, len(data) - 1, rate / RATE)
    return np.interp(at, np.arange(len(data)), data / 32768).astype(np.float32)


def formants(seconds: float = 8.0) -> Float:
    """Syllables of a source-filter voice: harmonics of a gliding pitch under three formants.

    Formants of vowels after Peterson and Barney 1952.
    """
    rng = np.random.default_rng(0)
    vowels = [(730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480)]
    pieces: list[NDArray[Any]] = []
    while sum(map(len, pieces)) < seconds * RATE:
        n = int(rng.uniform(0.12, 0.28) * RATE)
        pitch = np.linspace(rng.uniform(100, 160), rng.uniform(100, 160), n)
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        vowel = np.array(vowels[rng.integers(len(vowels))]) * rng.uniform(0.95, 1.05)
        voice = np.zeros(n)
        for harmonic in range(1, 36):
            frequency = harmonic * pitch.mean()
            gain = sum(1 / (1 + ((frequency - f) / 80) ** 2) for f in vowel) / harmonic**0.5
            voice += gain * np.sin(harmonic * phase)
        envelope = np.sin(np.linspace(0, np.pi, n)) ** 0.5
        hiss = rng.standard_normal(int(0.06 * RATE)) * 0.02
        pieces += [0.1 * voice * envelope, hiss]
    return np.concatenate(pieces).astype(np.float32)


def stream(speech: Float) -> Float:
    """Speech between silences, with faint noise; frames ``[T, context + frame]``."""
    rng = np.random.default_rng(1)
    parts = [np.zeros(RATE, np.float32)]
    for part in np.array_split(speech, 4):
        parts += [part, np.zeros(int(1.5 * RATE), np.float32)]
    sound = np.concatenate(parts)
    sound = sound + 1e-3 * rng.standard_normal(len(sound)).astype(np.float32)
    sound = np.pad(sound, (CONTEXT, -len(sound) % FRAME)).astype(np.float32)
    starts = range(0, len(sound) - CONTEXT - FRAME + 1, FRAME)
    return np.stack([sound[s : s + CONTEXT + FRAME] for s in starts])


# ---- the model ----


def find_model() -> Path:
    spec = importlib.util.find_spec("silero_vad")
    if spec is None or spec.origin is None:
        raise SystemExit("error: silero-vad is not installed; give --model")
    return Path(spec.origin).parent / "data" / "silero_vad_16k_sequence.onnx"


def front_end(model: onnx.ModelProto, lstm: onnx.NodeProto, frames: Float) -> Float:
    """What the LSTM reads, ``[T, 128]``."""
    cut = onnx.ModelProto()
    cut.CopyFrom(model)
    del cut.graph.output[:]
    value = helper.make_tensor_value_info(lstm.input[0], onnx.TensorProto.FLOAT, None)
    cut.graph.output.append(value)
    session = ort.InferenceSession(cut.SerializeToString(), providers=["CPUExecutionProvider"])
    empty = np.zeros((1, 1, CELLS), np.float32)
    features: Float = session.run(None, {"input": frames, "h": empty, "c": empty})[0].reshape(
        -1, CELLS
    )
    return features


class Step:
    """One step of the LSTM as a graph, its products in int8.

    Attributes:
        fits: Of event-driven by product; none for the dense graph.
    """

    def __init__(self, constants: dict[str, Float], fits: dict[str, Fit]) -> None:
        self.fits = fits
        self.nodes: list[Any] = []
        self.state: dict[str, Any] = {}
        self.inputs, self.outputs = ["x", "h", "c"], ["h_next", "c_next"]
        self.constants: dict[str, Any] = {}
        bias = constants["B"][0].reshape(2, -1).sum(axis=0)  # of W x and of R h
        self.product("W", "x", constants["W"][0], bias)
        self.product("R", "h", constants["R"][0], None)
        self.cells()
        values = [
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
            for name in (*self.inputs, *self.outputs)
        ]
        graph = helper.make_graph(
            self.nodes, "step", values[: len(self.inputs)], values[len(self.inputs) :],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        tamiz_ops.register(options)
        self.session = ort.InferenceSession(made.SerializeToString(), options)

    def tamiz(self, op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        self.nodes.append(
            helper.make_node(op, inputs, outputs, outputs[0], domain="tamiz", **attributes)
        )

    def product(self, name: str, x: str, weight: Float, bias: Float | None) -> None:
        """The nodes of y = weight x + bias."""
        n, k = weight.shape
        self.constants[name] = pack_int8(weight)
        if bias is not None:
            self.constants[f"{name}_bias"] = bias
        tail = [] if bias is None else [f"{name}_bias"]
        matmul = {"bits": 8, "n": n, "k": k, "block": 1}
        if name not in self.fits:
            return self.tamiz("BlockMatMul", [x, name, "", *tail], [f"{name}_y"], **matmul)
        made = self.fits[name]
        event = {"k": k, "n": n} | dict(made.attributes)
        tolerance = event.pop("gap_tol")
        alpha = np.float32(event["alpha"])
        base = -alpha * (np.zeros(n, np.float32) if bias is None else bias)
        if "mean" in made.tensors:
            self.constants[f"{name}_mean"] = made.tensors["mean"]
            base += (1 - alpha) * made.tensors["product"]
        self.constants |= {f"{name}_scale": made.tensors["scale"], f"{name}_base": base}
        past = f"past_event.{name}"
        self.state[past] = np.zeros((1, 3 + (n + k) * bool(alpha)), np.float32)
        self.inputs.append(past)
        self.outputs.append(f"present_event.{name}")
        mean = f"{name}_mean" if "mean" in made.tensors else ""
        chosen = [f"{name}_{value}" for value in ("delta", "mask", "plan", "reference")]
        self.tamiz("EventSelect", [x, past, mean, f"{name}_scale"], chosen, **event)
        self.tamiz("BlockMatMul", [chosen[0], name, chosen[1], *tail], [f"{name}_dy"], **matmul)
        self.tamiz(
            "EventSum", [f"{name}_dy", past, *chosen[2:], f"{name}_base"],
            [f"{name}_y", self.outputs[-1]],
            k=k, n=n, alpha=event["alpha"], beta=event["beta"], gap_tol=tolerance,
        )  # fmt: skip

    def cells(self) -> None:
        """i, o, f, c = W x + R h;  c' = σ(f) c + σ(i) tanh(c);  h' = σ(o) tanh(c')."""

        def node(op: str, *values: str, **attributes: Any) -> None:
            *inputs, output = values
            self.nodes.append(helper.make_node(op, inputs, output.split(), **attributes))

        node("Add", "W_y", "R_y", "gates")
        node("Split", "gates", "i o f g", axis=2)
        for gate in "iof":
            node("Sigmoid", gate, f"{gate}_open")
        node("Tanh", "g", "new")
        node("Mul", "f_open", "c", "kept")
        node("Mul", "i_open", "new", "added")
        node("Add", "kept", "added", "c_next")
        node("Tanh", "c_next", "shown")
        node("Mul", "o_open", "shown", "h_next")

    def __call__(self, features: Float) -> tuple[Float, list[float]]:
        """h of every frame ``[T, 128]``, and microseconds that each took."""
        feeds: dict[str, Any] = {"h": np.zeros((1, 1, CELLS), np.float32)}
        feeds["c"] = feeds["h"]
        feeds |= {name: np.zeros_like(value) for name, value in self.state.items()}
        rows, times = [], []
        for x in features:
            feeds["x"] = x[None, None]
            start = time.perf_counter()
            results = self.session.run(self.outputs, feeds)
            times.append(1e6 * (time.perf_counter() - start))
            feeds["h"], feeds["c"], *states = results
            feeds |= dict(zip(self.state, states, strict=True))
            rows.append(results[0][0, 0])
        return np.array(rows), times


def pack_int8(weight: Float) -> NDArray[np.uint8]:
    """w ≈ scale · q, scale = max |w| / 127 of every 32 inputs."""
    groups = weight.reshape(len(weight), -1, 32)
    scales = (np.abs(groups).max(axis=-1) / 127).astype(np.float16)
    quants = np.rint(groups / scales.astype(np.float32)[..., None]).clip(-127, 127)
    packed: NDArray[np.uint8] = tamiz_ops.pack_int8(
        quants.reshape(weight.shape).astype(np.int8), scales
    )
    return packed


def probabilities(h: Float, constants: dict[str, Float]) -> Float:
    logits = np.maximum(h, 0) @ constants["output.weight"].reshape(-1) + constants["output.bias"]
    result: Float = 1 / (1 + np.exp(-logits))
    return result


def fitted(name: str, weight: Float, run: Float, topk: float) -> Fit:
    """event-driven at one product, calibrated on consecutive inputs."""
    site = Site(f"lstm.{name}", SiteKind.LINEAR, name, None, None, name, *weight.shape[::-1])
    statistics = Statistics(len(run), np.square(run).mean(axis=0), run, run=run)
    config = EventDrivenConfig(topk=topk, gap_every=0, anywhere=True)
    return fit(site, weight, statistics, config)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--wav", type=Path, help="16 bits; default: synthesised speech")
    parser.add_argument("--topk", type=float, nargs="*", default=[1.0, 0.7, 0.5, 0.3])
    arguments = parser.parse_args()
    model = onnx.load(arguments.model or find_model())
    lstm = next(node for node in model.graph.node if node.op_type == "LSTM")
    values = {v.name: numpy_helper.to_array(v).astype(np.float32) for v in model.graph.initializer}
    constants = dict(zip("WRB", (values[name] for name in lstm.input[1:4]), strict=True)) | values
    speech, source = (read_wav(arguments.wav), "file") if arguments.wav else spoken()
    frames = stream(speech)
    half = len(frames) // 2  # the first is for calibration, the second is reported

    empty = np.zeros((1, 1, CELLS), np.float32)
    original = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    expected = original.run(None, {"input": frames, "h": empty, "c": empty})[0].reshape(-1)
    features = front_end(model, lstm, frames)
    dense = Step(constants, {})
    h, _ = dense(features)
    report: dict[str, Any] = {"source": source, "frames": len(frames) - half}
    report["speech"] = round(float((expected[half:] > 0.5).mean()), 3)
    report["settings"] = []
    for topk in arguments.topk:
        fits = {
            "W": fitted("W", constants["W"][0], features[:half], topk),
            "R": fitted("R", constants["R"][0], h[: half - 1], topk),
        }
        event = Step(constants, fits)
        times: dict[str, list[float]] = {"dense": [], "event": []}
        for _ in range(5):  # interleaved
            times["dense"] += dense(features)[1]
            found, spent = event(features)
            times["event"] += spent
        p = probabilities(found, constants)
        counted = tamiz_ops.metrics(event.session).values()
        kept = sum(node.get("event.topk_kept", 0) for node in counted)
        inputs = sum(node.get("event.channels", 0) for node in counted)
        report["settings"].append(
            {
                "topk": topk,
                "kept": round(kept / max(inputs, 1), 3) if inputs else 1.0,
                "alpha": {name: round(f.metrics["alpha"], 3) for name, f in fits.items()},
                "agreement": round(float(((p > 0.5) == (expected > 0.5))[half:].mean()), 4),
                "largest_difference": round(float(np.abs(p - expected)[half:].max()), 4),
                "us_dense": round(float(np.median(times["dense"])), 1),
                "us_event": round(float(np.median(times["event"])), 1),
            }
        )
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
