"""A bundle against what people use, interleaved in one run: decode, prefill, load and memory.

    python -m benchmarks peers smollm2-int4 --dense smollm2 --gguf SmolLM2.gguf --genai genai-int4 \
        --python llama.cpp=other-venv/bin/python --json peers.json

Peers: ``other`` (another bundle; with ``--python other=venv/bin/python`` another version of tamiz
runs it), ``inputs-8`` (a bundle built with ``--activation-bits=8``, the precision of llama.cpp and
OpenVINO), ``llama.cpp`` (llama-cpp-python on the GGUF), ``openvino`` (OpenVINO on the folder that
OpenVINO GenAI writes where it reads a GGUF with ``enable_save_ov_model=True``), ``genai``
(onnxruntime-genai on a folder made by its model builder, ``python -m
onnxruntime_genai.models.builder -p int4 -e cpu --extra_options int4_accuracy_level=4``) and
``ort-int4`` (the dense bundle with ONNX Runtime's MatMulNBits, accuracy_level 4, in tamiz'
runtime). Each runs in a process of its own, under the interpreter that has it; a peer that cannot
run is reported as skipped. Definitions: tamiz/evaluation/bench.py.
"""

from __future__ import annotations

import logging
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from benchmarks.common import record
from tamiz.cli.bench import lengths
from tamiz.evaluation import bench
from tamiz.files.bundle import Source, write_manifest
from tamiz.files.errors import TamizError

HERE = Path(__file__).resolve().parent
#: The distribution of each peer that has one.
PEERS = {"llama.cpp": "llama-cpp-python", "openvino": "openvino", "genai": "onnxruntime-genai"}


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--other", type=click.Path(exists=True, path_type=Path), help="Another bundle.")
@click.option("--inputs-8", type=click.Path(exists=True, path_type=Path), help="8-bit inputs.")
@click.option("--gguf", type=click.Path(exists=True, path_type=Path), help="For llama.cpp.")
@click.option("--openvino", type=click.Path(exists=True, path_type=Path), help="Its model folder.")
@click.option("--genai", type=click.Path(exists=True, path_type=Path), help="Its model folder.")
@click.option("--dense", type=click.Path(exists=True, path_type=Path), help="For ort-int4.")
@click.option("--python", "pythons", multiple=True, metavar="PEER=PATH", help="Interpreter of it.")
@click.option("--context", "contexts", type=lengths, default="128,2000,8000", show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundle: Path,
    other: Path | None,
    inputs_8: Path | None,
    gguf: Path | None,
    openvino: Path | None,
    genai: Path | None,
    dense: Path | None,
    pythons: tuple[str, ...],
    contexts: tuple[int, ...],
    threads: int,
    output: Path | None,
) -> None:
    """Measures BUNDLE and the peers that are given, turn by turn."""
    console = Console(stderr=True)
    interpreters = dict(entry.partition("=")[::2] for entry in pythons)
    if unknown := set(interpreters) - {*PEERS, "other"}:
        raise click.UsageError(
            f"--python {unknown.pop()}=…: expected one of {', '.join([*PEERS, 'other'])}"
        )
    read_gb_s = bench.read_bandwidth(threads)
    paths = {
        "other": other,
        "inputs-8": inputs_8,
        "llama.cpp": gguf,
        "openvino": openvino,
        "genai": genai,
        "ort-int4": dense,
    }
    names = ["tamiz"]
    children = [bench.bundle_child(bundle, threads)]
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for peer, path in paths.items():
            if path is None:
                skipped[peer] = "no model was given for it"
                continue
            console.print(f"loading {peer}")
            try:
                python = interpreters.get(peer, sys.executable)
                children.append(started(peer, path, threads, python, Path(scratch)))
                names.append(peer)
            except (TamizError, OSError) as error:
                skipped[peer] = str(error)
        try:
            results = bench.measure(children, contexts, console.print)
        finally:
            for child in children:
                child.close()
    report: dict[str, Any] = {"threads": threads, "read_gb_s": round(read_gb_s, 1)}
    for name, result in zip(names, results, strict=True):
        report[name] = result.summary()
        if name != "tamiz":
            report[name]["ratio"] = results[0].ratio(result)
    report["skipped"] = skipped
    show(report, names)
    for peer, reason in skipped.items():
        console.print(f"[bold red]SKIPPED {peer}:[/] {reason}")
    if output is not None:
        found = {
            peer: record.version_of(interpreters.get(peer, sys.executable), distribution)
            for peer, distribution in PEERS.items()
            if peer in names
        }
        settings = {"bundle": bundle.name, "gguf": gguf and gguf.name, "contexts": contexts}
        record.write(output, "peers", report, settings=settings, peers=found)


def started(peer: str, path: Path, threads: int, python: str, scratch: Path) -> bench.Child:
    """The process of a peer."""
    if peer == "other":
        return other_bundle(path, threads, python)
    if peer == "inputs-8":
        return bench.bundle_child(path, threads)
    if peer == "ort-int4":
        return bench.bundle_child(quantize(path, scratch / peer), threads)
    script = str(HERE / "peer_child.py")
    return bench.Child(peer, [python, script, peer, str(path), str(threads)])


def other_bundle(bundle: Path, threads: int, python: str) -> bench.Child:
    """A child that runs a bundle under an interpreter, with the tamiz that is installed there."""
    # Isolated: the folder of this checkout is not on its path.
    command = [python, "-I", "-m", "tamiz.evaluation.bench_child", str(bundle.absolute())]
    return bench.Child(f"{bundle} under {python}", [*command, str(threads), "off"])


def quantize(dense: Path, target: Path) -> Path:
    """Writes `dense` with every constant MatMul as MatMulNBits, 4 bits, accuracy_level 4.

    The tied head is a Transpose of the embedding, which the quantiser skips: it is folded first.
    """
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.disable(logging.INFO)  # a line a node
    target.mkdir()
    model = onnx.load(str(dense / "model.onnx"))
    fold_transposed_weights(model)
    quantizer = MatMulNBitsQuantizer(
        model, bits=4, block_size=32, is_symmetric=False, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(target / "model.onnx"), True)
    for settings in ("config.json", "generation_config.json"):
        shutil.copy(dense / settings, target)
    write_manifest(target, "dense", Source(f"{dense}, MatMulNBits"))
    return target


def fold_transposed_weights(model: Any) -> None:
    """Turns every ``Transpose(constant)`` that a MatMul reads into a constant of its own."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    read = {name for node in model.graph.node if node.op_type == "MatMul" for name in node.input}
    for node in list(model.graph.node):
        if node.op_type == "Transpose" and node.input[0] in constants and node.output[0] in read:
            weight = numpy_helper.to_array(constants[node.input[0]])
            folded = numpy_helper.from_array(weight.T.copy(), node.output[0])
            model.graph.initializer.append(folded)
            model.graph.node.remove(node)


def show(report: dict[str, Any], names: list[str]) -> None:
    """Prints the table: speeds, and in brackets how many times faster tamiz is."""
    lengths = {key: list(report["tamiz"][key]) for key in ("decode_tok_s", "prefill_tok_s")}
    table = Table(title=f"{report['threads']} threads, memory read {report['read_gb_s']} GB/s")
    table.add_column("tok/s")
    for name in names:
        table.add_column(name, justify="right")

    def cell(name: str, key: str, length: str) -> str:
        ratio = report[name].get("ratio", {}).get(key, {}).get(length)
        speed = f"{report[name][key][length]:.0f}"
        return speed if ratio is None else f"{speed} ({ratio:.2f}×)"

    for key, values in lengths.items():
        for length in values:
            title = f"{key.split('_')[0]} {length}"
            table.add_row(title, *(cell(name, key, length) for name in names))
    table.add_row("load s", *(f"{report[name]['load_s']:.2f}" for name in names))
    table.add_row("peak RSS MB", *(f"{report[name]['peak_rss_mb']:.0f}" for name in names))
    Console().print(table)
