"""A folder of onnxruntime-genai's model builder: a build against genai and ONNX Runtime on it.

    python -m benchmarks genai-folder qwen-int4 --python venv/bin/python --json genai-folder.json

The default build of the folder is made here. genai runs the folder as it is, under the interpreter
that has it; rounds of both alternate (definitions: tamiz/evaluation/bench.py). Logits of a prompt
and greedy tokens are compared with plain ONNX Runtime on the same file at accuracy_level 0, where
MatMulNBits does not round its inputs to 8 bits. ``--activation-bits 32`` and ``--keep-embedding``
make a build that only rounds as float32 does.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from benchmarks.common import record
from benchmarks.engines.peers import HERE
from tamiz.building.build import Options, build
from tamiz.cli.bench import lengths
from tamiz.evaluation import bench
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.runtime.model import Model
from tamiz.survey.export import export

#: What is read and continued.
_PROMPTS = ("def quicksort(numbers):\n", "The capital of France is", "Once upon a time,")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--python", default="python", help="Interpreter that has onnxruntime-genai.")
@click.option("--context", "contexts", type=lengths, default="128,512", show_default=True)
@click.option("--tokens", default=64, show_default=True, help="Greedy tokens that are compared.")
@click.option("--threads", default=2, show_default=True)
@click.option("--activation-bits", type=click.IntRange(8, 32), help="Of the build; default: 16.")
@click.option("--keep-embedding", is_flag=True, help="Replace no float weight.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    folder: Path,
    python: str,
    contexts: tuple[int, ...],
    tokens: int,
    threads: int,
    activation_bits: int | None,
    keep_embedding: bool,
    output: Path | None,
) -> None:
    """Measures a build of FOLDER beside genai."""
    console, plugins = Console(stderr=True), load()
    wanted: dict[str, Any] = {"block-quant": None} if keep_embedding else {}
    if activation_bits is not None:
        wanted["activation-bits"] = {"bits": activation_bits}
    with tempfile.TemporaryDirectory() as scratch:
        console.print(f"building {folder}")
        dense = export(str(folder), Path(scratch) / "dense", plugins)
        built, options = Path(scratch) / "built", Options(max_dppl=None, min_cosine=None)
        build(dense.path, built, choose(plugins.techniques(), wanted), plugins, options)
        report = {"threads": threads, "agreement": compared(folder, built, tokens, Path(scratch))}
        console.print_json(data=report)
        report |= measured(folder, built, python, contexts, threads, console)
    console.print_json(data=report)
    if output is not None:
        settings: dict[str, Any] = {"model": folder, "contexts": list(contexts)}
        settings["activation_bits"] = activation_bits
        settings["keep_embedding"] = keep_embedding
        peers = {"genai": record.version_of(python, "onnxruntime-genai")}
        record.write(output, "genai-folder", report, settings=settings, peers=peers)


def compared(folder: Path, built: Path, tokens: int, scratch: Path) -> list[dict[str, Any]]:
    """Logits of each prompt, and greedy tokens after it, beside plain ONNX Runtime."""
    plain, model = _Plain(folder, scratch / "level0"), Model.load(built, threads=2)
    found = []
    for text in _PROMPTS:
        ids = plain.tokenizer.encode(text).ids
        a, b = plain.restart(ids), model.logits(np.array([ids]))[0]
        row = {
            "largest_logit": float(np.abs(a).max()),
            "relative_difference": float(np.abs(a - b).max() / np.abs(a).max()),
            "same_top1": float((a.argmax(-1) == b.argmax(-1)).mean()),
        }
        theirs = [int(a[-1].argmax())]
        sequence = model.sequence(len(ids) + tokens)
        ours = [int(sequence.read(ids).argmax())]
        for _ in range(tokens - 1):
            theirs.append(int(plain.run(theirs[-1:])[-1].argmax()))
            ours.append(int(sequence.step(ours[-1]).argmax()))
        equal = [x == y for x, y in zip(theirs, ours, strict=True)]
        row["equal_greedy_tokens"] = equal.index(False) if False in equal else tokens
        found.append(row)
    return found


class _Plain:
    """ONNX Runtime alone on the folder's decoder, whose products round no inputs."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        import onnx
        import onnxruntime as ort
        from tokenizers import Tokenizer

        from tamiz_exporters.genai import model_file

        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        model = onnx.load(folder / (model_file(folder) or "model.onnx"), load_external_data=False)
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "accuracy_level":
                    attribute.i = 0
        scratch.mkdir()
        for data in {entry.value for t in model.graph.initializer for entry in t.external_data
                     if entry.key == "location"}:  # fmt: skip
            try:
                os.link(folder / data, scratch / data)
            except OSError:  # another file system
                shutil.copyfile(folder / data, scratch / data)
        onnx.save(model, scratch / "model.onnx")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        self.session = ort.InferenceSession(scratch / "model.onnx", options)
        self.names = {value.name for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.size = int(_field(folder, "head_size"))

    def restart(self, ids: list[int]) -> np.ndarray:
        """Logits of a prompt ``[tokens, vocabulary]``."""
        self.read = 0
        self.caches = {
            value.name: np.zeros((1, value.shape[1], 0, self.size), np.float32)
            for value in self.session.get_inputs()
            if value.name.startswith("past")
        }
        return self.run(ids)

    def run(self, ids: list[int]) -> np.ndarray:
        """Logits of tokens that follow those before."""
        begin, self.read = self.read, self.read + len(ids)
        feeds = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self.read), np.int64),
            "position_ids": np.arange(begin, self.read, dtype=np.int64)[None],
        }
        given = {name: array for name, array in feeds.items() if name in self.names}
        found = dict(
            zip(self.outputs, self.session.run(None, {**given, **self.caches}), strict=True)
        )
        self.caches = {
            name: found[name.replace("past_key_values", "present")] for name in self.caches
        }
        return np.asarray(found["logits"][0], np.float32)


def _field(folder: Path, name: str) -> Any:
    import json

    settings = json.loads((folder / "genai_config.json").read_text("utf-8"))
    return settings["model"]["decoder"][name]


def measured(
    folder: Path,
    built: Path,
    python: str,
    contexts: tuple[int, ...],
    threads: int,
    console: Console,
) -> dict[str, Any]:
    """Speeds of both, and of every round ours by genai's."""
    command = [python, str(HERE / "peer_child.py"), "genai", str(folder), str(threads)]
    children = [bench.bundle_child(built, threads), bench.Child("genai", command)]
    try:
        ours, theirs = bench.measure(children, contexts, console.print)
    finally:
        for child in children:
            child.close()
    return {"tamiz": ours.summary(), "genai": theirs.summary(), "ratio": ours.ratio(theirs)}
