"""ONNX files that other tools quantised: a build against plain ONNX Runtime on the same file.

    python -m benchmarks quantized-onnx --json quantized-onnx.json

The files are made here, from a GGUF (or what else `tamiz export` reads) as float32: ``nbits``
(MatMulNBitsQuantizer, 4 bits, blocks of 32, zero points, accuracy_level 0), ``qdq`` (the same as
DequantizeLinear) and ``float16`` (onnxruntime.transformers.float16). ONNX Runtime runs each file
as it is, in tamiz' runtime; rounds of both alternate. ``--activation-bits 32`` measures builds that
do not round the inputs of products. ONNX Runtime turns DequantizeLinear before MatMul into products
with inputs of 8 bits: for the comparison of logits, and not for speeds, it is told to round none.
Definitions: tamiz/evaluation/bench.py.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnxruntime as ort
from rich.console import Console

from benchmarks.common import record
from benchmarks.engines.peers import fold_transposed_weights
from tamiz.building.build import Options, build
from tamiz.evaluation import bench
from tamiz.files.bundle import Bundle, Source, write_manifest
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins, load
from tamiz.runtime.session import load_session, session_options
from tamiz.survey.export import export

FORMS = ("nbits", "qdq", "float16")
#: Tokens of the prompt whose logits are compared.
_PROMPT = 64


@click.command()
@click.argument("source", default="smollm2")
@click.option("--form", "forms", multiple=True, type=click.Choice(FORMS), default=FORMS)
@click.option("--context", "contexts", type=int, multiple=True, default=(128,), help="Tokens.")
@click.option("--threads", default=2, show_default=True)
@click.option("--activation-bits", type=click.IntRange(8, 32), help="Of builds; default: 16.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    source: str,
    forms: tuple[str, ...],
    contexts: tuple[int, ...],
    threads: int,
    activation_bits: int | None,
    output: Path | None,
) -> None:
    """Measures each form of SOURCE."""
    settings = None if activation_bits is None else {"bits": activation_bits}
    console = Console(stderr=True)
    plugins = load()
    report: dict[str, Any] = {"threads": threads}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        console.print(f"exporting {source}")
        dense = export(source, folder / "float32", plugins, "float32")
        for form in forms:
            console.print(f"making {form}")
            theirs = make(dense, form, folder / f"ort-{form}")
            ours = built(theirs, folder / form, plugins, settings)
            report[form] = compared(theirs, ours) | measured(
                theirs, ours, contexts, threads, console
            )
            console.print_json(data=report[form])
            shutil.rmtree(theirs)
            shutil.rmtree(folder / form)
    if output is not None:
        given = {"model": source, "contexts": list(contexts), "activation_bits": activation_bits}
        record.write(output, "quantized-onnx", report, settings=given)


def make(dense: Bundle, form: str, target: Path) -> Path:
    """Writes a float32 bundle in one of the forms, as a bundle that plain ONNX Runtime runs."""
    import onnx

    model = onnx.load(str(dense.model))
    fold_transposed_weights(model)  # the quantisers skip a tied head
    model = _halves(model) if form == "float16" else _four_bits(model, form)
    target.mkdir()
    onnx.save(model, target / "model.onnx", save_as_external_data=True, location="model.onnx.data")
    for file in dense.path.iterdir():
        if not file.name.startswith("model.onnx") and file.name != "tamiz.json":
            shutil.copy(file, target)
    write_manifest(target, "dense", Source(f"{dense.path.name}, {form}"))
    return target


def _halves(model: Any) -> Any:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model)


def _four_bits(model: Any, form: str) -> Any:
    from onnxruntime.quantization import QuantFormat
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.disable(logging.INFO)  # a line a node
    quantizer = MatMulNBitsQuantizer(
        model,
        bits=4,
        block_size=32,
        is_symmetric=False,
        accuracy_level=0,
        quant_format=QuantFormat.QDQ if form == "qdq" else QuantFormat.QOperator,
    )
    quantizer.process()
    return quantizer.model.model


def built(
    theirs: Path, folder: Path, plugins: Plugins, activation_bits: dict[str, int] | None = None
) -> Path:
    """The default build of a file, with activation-bits where its settings are given."""
    wanted = {} if activation_bits is None else {"activation-bits": activation_bits}
    folder.mkdir()
    dense = export(str(theirs / "model.onnx"), folder / "dense", plugins)
    build(
        dense.path,
        folder / "built",
        choose(plugins.techniques(), wanted),
        plugins,
        Options(max_dppl=None, min_cosine=None),
    )
    return folder / "built"


def compared(theirs: Path, ours: Path) -> dict[str, Any]:
    """What is left of other tools' ops, bytes, and the largest difference of logits."""
    import onnx

    nodes = onnx.load(str(ours / "model.onnx"), load_external_data=False).graph.node
    left = Counter(n.op_type for n in nodes if n.op_type in ("MatMulNBits", "DequantizeLinear"))
    ids = np.random.default_rng(0).integers(0, 1000, (1, _PROMPT))
    exact = session_options(2)
    exact.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    a = _logits(ort.InferenceSession(str(theirs / "model.onnx"), exact), ids)
    session, _constants = load_session(Bundle.open(ours), threads=2)
    b = _logits(session, ids)
    difference = float(np.abs(a - b).max())
    return {
        "left": dict(left),
        "file_mb": _megabytes(theirs),
        "built_mb": _megabytes(ours),
        "largest_logit": float(np.abs(a).max()),
        "largest_difference": difference,
        "relative_difference": difference / float(np.abs(a).max()),
        "same_top1": float((a.argmax(-1) == b.argmax(-1)).mean()),
    }


def _logits(session: ort.InferenceSession, ids: np.ndarray) -> np.ndarray:
    kinds = {"tensor(float16)": np.float16, "tensor(float)": np.float32}
    feeds: dict[str, Any] = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "position_ids": np.arange(ids.shape[1])[None],
    }
    inputs = session.get_inputs()
    for value in inputs:
        if value.name.startswith("past"):
            shape = [1, value.shape[1], 0, value.shape[3]]
            feeds[value.name] = np.zeros(shape, kinds[value.type])
        elif value.name == "logits_to_keep":
            feeds[value.name] = np.array(ids.shape[1])
    names = {value.name for value in inputs}
    found = session.run(["logits"], {k: v for k, v in feeds.items() if k in names})[0]
    return np.asarray(found, np.float32)


def _megabytes(folder: Path) -> float:
    return round(sum(file.stat().st_size for file in folder.glob("model.onnx*")) / 1e6, 1)


def measured(
    theirs: Path, ours: Path, contexts: tuple[int, ...], threads: int, console: Console
) -> dict[str, Any]:
    """Speeds of both, and of every round ours by theirs."""
    children = [bench.bundle_child(path, threads) for path in (ours, theirs)]
    try:
        own, other = bench.measure(children, contexts, console.print)
    finally:
        for child in children:
            child.close()
    return {"tamiz": own.summary(), "onnxruntime": other.summary(), "ratio": own.ratio(other)}
