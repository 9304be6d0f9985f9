"""Runs what the page of results is made of, one benchmark after the other, on one commit.

    python -m benchmarks all --models FOLDER --work FOLDER [--text FILE] [--python PEER=PATH …]

FOLDER of models has the files and folders of `SOURCES` by these names, or links to them. Bundles
that benchmarks read are built once, in the folder of work. A result whose file has this commit and
processor is not measured again, so that an interrupted run goes on. What lacks a model, a text or
an interpreter is not stored, but named in the end; so is what is measured by hand. Nothing else
should run on the machine, unless `--only` chooses benchmarks of `QUALITY`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.common import record
from benchmarks.serving.own_server import own_server
from tamiz.files.errors import TamizError

ROOT = Path(__file__).resolve().parents[1]
#: What the models are called, by their names in `RUNS`.
SOURCES = {
    "smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "gemma": "gemma-3-270m-q4_k_m.gguf",
    "qwen05": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    "qwen15": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    "minilm": "all-MiniLM-L6-v2",
    "mpnet": "all-mpnet-base-v2",
}
#: How each kind of file or folder is made of the dense bundle, by its name in `RUNS`.
MADE = {
    "stored": "build {dense} -o {target}",
    "bytes": "build {dense} -o {target} --activation-bits=8 --max-dppl=off --min-cosine=off",
    "q8_0": "build {dense} -o {target} --block-quant-format=q8_0 --activation-bits=16",
    "q8_0-bytes": "build {dense} -o {target} --block-quant-format=q8_0 --activation-bits=8",
    "1": "build {dense} -o {target} --max-dppl=0.01",
    "2": "build {dense} -o {target} --max-dppl=0.02",
    "calibration": "calibrate {dense} -o {target} --samples=1024",
    "frontier": "frontier {dense} -o {target}.json --keep={target} --measure=5",
}
#: Benchmarks that measure no speed: any processor has their results but for rounding.
QUALITY = {"greedy", "perplexity", "prompt-channels", "quantisers", "retrieval", "unseen"}
#: Benchmarks of the page of results that no run of `RUNS` makes, and why.
BY_HAND = {
    "composition": "12 builds and decode at 8,000 tokens take a machine for hours",
    "genai-folder": "onnxruntime-genai's builder makes the folder, and needs PyTorch",
    "mca": "needs QEMU, llvm-mca and a cross-compiler for ARM",
}
#: Writes the folder that OpenVINO reads, of a GGUF.
_TO_OPENVINO = """
import sys, openvino_genai
openvino_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
"""


@dataclass(frozen=True)
class Run:
    """A benchmark, and where its result is stored.

    Attributes:
        result: Name of the file, without the processor.
        benchmark: Its name.
        arguments: Its arguments. ``{smollm2}`` is a source, ``{smollm2.KIND}`` what `MADE` makes
            of it, ``dense`` or ``openvino``, ``{text}`` the text, ``{work}`` the folder of work,
            ``{python:PEER}`` an interpreter, ``{module:NAME}`` nothing, if this interpreter has the
            module, and ``{url}`` the server. One that begins with ``?`` is left out where a part of
            it is missing.
        title: What tables call what was measured; empty for what the benchmark calls it.
        server: The source that a server answers from meanwhile; empty for none.
    """

    result: str
    benchmark: str
    arguments: str
    title: str = ""
    server: str = ""

    @property
    def has_speeds(self) -> bool:
        """Whether the result depends on the processor, so that its file is named after it."""
        return self.benchmark not in QUALITY


def _peers(number: int, name: str, title: str, label: str) -> Run:
    return Run(
        f"peers-{number}-{title}",
        "peers",
        f"{{{name}.stored}} --inputs-8={{{name}.bytes}} --gguf={{{name}}} --context=128,2000 "
        f"--python=llama.cpp={{python:llama.cpp}} ?--openvino={{{name}.openvino}} "
        "?--python=openvino={python:openvino}",
        label,
    )


def _encoders(number: int, name: str, title: str, label: str) -> tuple[Run, ...]:
    built = f"{{{name}.dense}} {{{name}.q8_0}} {{{name}.q8_0-bytes}}"
    return (
        Run(
            f"encoders-{number}-{title}",
            "encoders",
            f"{{{name}.dense}} --text={{text}} --work={{work}}/encoders-{name} "
            "--formats=q4_0,q8_0,q8_0:128 --fits=nearest --cosines=0.99 "
            "?--openvino{module:openvino}",
            label,
        ),
        Run(f"neighbour-{number}-{title}", "neighbour", built, label),
        Run(
            f"retrieval-{title}",
            "retrieval",
            f"{built} --text={{text}} --work={{work}}/encoders-{name} "
            "?--openvino{module:openvino}",
            label,
        ),
    )


def _losses(number: int, name: str, title: str, label: str) -> tuple[Run, ...]:
    same = f"{{{name}.stored}} {{{name}}} --float32={{work}}/{name}.float32.gguf"
    same += " --python={python:llama.cpp}"
    dense, limited = f"{{{name}.dense}}", f"{{{name}.1}} {{{name}.2}}"
    unseen = f"{dense} {limited} --wikitext={{text}}"
    budgets = f"{dense} {{{name}.stored}} {limited} --text={{text}}"
    return (
        Run(f"greedy-{title}", "greedy", same),
        Run(f"perplexity-{title}", "perplexity", f"{same} --text={{text}}"),
        Run(f"unseen-{number}-{title}", "unseen", unseen, label),
        Run(f"budgets-{title}", "budgets", budgets, label),
    )


def _quantisers(name: str, title: str) -> Run:
    read = f"{{{name}.dense}} {{{name}}} --calibration={{{name}.calibration}} --text={{text}}"
    made = f"--work={{work}}/quantisers-{name} --frontier={{{name}.frontier}} --formats= --no-plain"
    types = "--types=Q3_K_M,IQ4_XS,Q4_0,Q4_K_S,Q4_K_M,Q5_K_M --python={python:llama.cpp}"
    return Run(f"quantisers-{title}", "quantisers", f"{read} {made} {types} --windows=8")


def _channels(number: int, kind: str, prompts: int) -> Run:
    return Run(
        f"prompt-channels-{number}-qwen-1.5b-{kind}",
        "prompt-channels",
        f"{{qwen15.dense}} --kinds={kind} --prompts={prompts} --tokens=60",
        _QWEN15,
    )


_SERVED = "--url={url}/v1 --server=tamiz"
_SMOLLM2 = "SmolLM2-135M Q4_1"
_GEMMA = "Gemma-3-270M Q4_K_M"
_QWEN05 = "Qwen2.5-Coder-0.5B Q4_K_M"
_QWEN15 = "Qwen2.5-Coder-1.5B Q4_K_M"
#: All of them, the shortest of a kind first.
RUNS = (
    _peers(1, "smollm2", "smollm2-135m", _SMOLLM2),
    _peers(2, "gemma", "gemma-3-270m", _GEMMA),
    _peers(3, "qwen05", "qwen-0.5b", _QWEN05),
    _peers(4, "qwen15", "qwen-1.5b", _QWEN15),
    Run("many-rows-mpnet", "many-rows", "--shapes=mpnet --threads=1"),
    Run("many-rows-qwen-1.5b", "many-rows", "--shapes=qwen-1.5b --threads=1"),
    Run("batch-qwen-1.5b-16-bits", "batch", "{qwen15.stored} --part=speed", f"{_QWEN15}, 16 bits"),
    Run("batch-qwen-1.5b-8-bits", "batch", "{qwen15.bytes} --part=speed", f"{_QWEN15}, 8 bits"),
    *_encoders(1, "mpnet", "mpnet", "all-mpnet-base-v2"),
    *_encoders(2, "minilm", "minilm", "all-MiniLM-L6-v2"),
    Run("levels-smollm2-135m", "levels", "{smollm2.stored} --name=SmolLM2-135M-Instruct.Q4_1"),
    Run("levels-qwen-0.5b", "levels", "{qwen05.stored} --name=qwen2.5-coder-0.5b-instruct-q4_k_m"),
    Run("quota-smollm2-135m", "quota", "{smollm2.stored} --name=SmolLM2-135M"),
    Run("quota-qwen-0.5b", "quota", "{qwen05.stored} --name=Qwen2.5-Coder-0.5B"),
    Run("zeros-made-1b", "zeros", ""),
    Run("quantized-onnx-smollm2-135m", "quantized-onnx", "{smollm2}"),
    Run("serving-speed-qwen-1.5b", "serving-speed", f"{_SERVED} --rounds=3", _QWEN15, "qwen15"),
    Run("serving-exactness-qwen-1.5b", "exactness", f"{_SERVED} --tokens=24", _QWEN15, "qwen15"),
    Run("speculation-qwen-0.5b", "speculation", "{qwen05.stored} --gguf={qwen05}"),
    *_losses(1, "smollm2", "smollm2-135m", _SMOLLM2),
    *_losses(2, "gemma", "gemma-3-270m", _GEMMA),
    *_losses(3, "qwen05", "qwen-0.5b", _QWEN05),
    *_losses(4, "qwen15", "qwen-1.5b", _QWEN15),
    _quantisers("qwen05", "qwen-0.5b"),
    _quantisers("qwen15", "qwen-1.5b"),
    _channels(1, "requests", 3),
    _channels(2, "passages", 2),
    Run("acceptance-1-layers", "acceptance", "layers"),
    Run(
        "acceptance-2-smollm2-135m",
        "acceptance",
        "bundles {smollm2} {work}/acceptance-smollm2 --text={text}",
    ),
    Run("experts-1-made-8b", "experts", "{work} --shape=8b --llama-cpp={python:llama.cpp}"),
    Run("serving-load-smollm2-135m", "serving-load", "{smollm2}"),
)


class MissingError(TamizError):
    """A model, a text or an interpreter that a benchmark needs was not given."""


@dataclass(frozen=True)
class Places:
    """What benchmarks read, made when one needs it.

    Attributes:
        models: Folder of the sources.
        work: Folder of bundles.
        text: A text; None for none.
        pythons: Interpreters by the peer that they have.
    """

    models: Path
    work: Path
    text: Path | None
    pythons: dict[str, str]

    def arguments(self, given: str, url: str = "") -> list[str]:
        """The arguments of a run, with paths; see `Run`.

        Raises:
            MissingError: A part that is needed was not given.
        """
        found = []
        for argument in given.split():
            optional = argument.startswith("?")
            try:
                filled = re.sub(r"\{(.+?)\}", lambda part: self._place(part[1], url), argument)
            except MissingError:
                if not optional:
                    raise
                continue
            found.append(filled.removeprefix("?"))
        return found

    def _place(self, part: str, url: str) -> str:
        if part == "url":
            return url
        if part == "work":
            return str(self.work)
        if part == "text":
            return str(self._known("--text", self.text))
        if part.startswith("python:"):
            peer = part.removeprefix("python:")
            return str(self._known(f"--python {peer}=PATH", self.pythons.get(peer)))
        if part.startswith("module:"):
            self._known(f"the package {part[7:]}", importlib.util.find_spec(part[7:]))
            return ""
        name, _, kind = part.partition(".")
        return str(self._bundle(name, kind) if kind else self._source(name))

    def _known(self, option: str, value: object) -> object:
        if value is None:
            raise MissingError(f"needs {option}")
        return value

    def _source(self, name: str) -> Path:
        path = self.models / SOURCES[name]
        if not path.exists():
            raise MissingError(f"needs {path}")
        return path

    def _bundle(self, name: str, kind: str) -> Path:
        target = self.work / f"{name}.{kind}"
        if target.exists():
            return target
        source = self._source(name)
        if kind == "openvino":
            return self._openvino(source, target)
        if kind == "dense":
            _run("-m", "tamiz", "export", source, "-o", target)
        else:
            paths = {"dense": self._bundle(name, "dense"), "target": target}
            _run("-m", "tamiz", *(each.format(**paths) for each in MADE[kind].split()))
        return target

    def _openvino(self, source: Path, target: Path) -> Path:
        """OpenVINO GenAI writes beside the GGUF, so it reads a link in a folder of its own."""
        python = str(self._known("--python openvino=PATH", self.pythons.get("openvino")))
        scratch = target.with_name(f"{target.name}.new")
        scratch.mkdir(exist_ok=True)
        link = scratch / source.name
        if not link.exists():
            link.symlink_to(source.resolve())
        made = subprocess.run([python, "-c", _TO_OPENVINO, link], check=False).returncode == 0
        if not made or not (scratch / "openvino_model.xml").exists():
            raise MissingError(f"OpenVINO GenAI did not read {source.name}")
        return scratch.rename(target)


def _run(*arguments: str | Path) -> None:
    """Runs this interpreter in the root of the repository.

    Raises:
        TamizError: It failed.
    """
    command = [sys.executable, *map(str, arguments)]
    print("+", *command[1:], flush=True)
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise TamizError(f"failed: {' '.join(command[1:])}")


def file_of(run: Run, folder: Path) -> Path:
    """Where a run's result is stored: its name, and the processor's if it has speeds."""
    if not run.has_speeds:
        return folder / f"{run.result}.json"
    processor = re.sub(r"[^a-z0-9]+", "-", str(record.machine()["processor"]).lower())
    return folder / f"{run.result}-{processor.strip('-')}.json"


def is_stored(path: Path) -> bool:
    """Whether a result is of this commit."""
    return path.exists() and json.loads(path.read_text("utf-8"))["commit"] == record.commit()


@contextlib.contextmanager
def _server(run: Run, places: Places) -> Iterator[str]:
    """The address of the run's server; empty where it needs none."""
    if not run.server:
        yield ""
        return
    (source,) = places.arguments(f"{{{run.server}.bytes}}")
    with own_server(source) as server:
        yield server.url


def measure(run: Run, places: Places, path: Path) -> None:
    """Runs a benchmark, and stores its result.

    Raises:
        MissingError: What it needs was not given.
        TamizError: It failed.
    """
    with _server(run, places) as url:
        arguments = places.arguments(run.arguments, url)
        _run("-m", "benchmarks", run.benchmark, *arguments, f"--json={path}")
    if run.title:
        stored = json.loads(path.read_text("utf-8"))
        stored["settings"]["model"] = run.title
        path.write_text(json.dumps(stored, indent=1) + "\n", "utf-8")


def _pythons(given: tuple[str, ...]) -> dict[str, str]:
    return dict(each.split("=", 1) for each in given)


@click.command()
@click.option("--models", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--work", type=click.Path(path_type=Path), required=True)
@click.option("--text", type=click.Path(exists=True, path_type=Path), help="WikiText-2 test.")
@click.option("--python", "pythons", multiple=True, metavar="PEER=PATH", help="Interpreter of it.")
@click.option("--only", multiple=True, metavar="NAME", help="Benchmarks, or names of results.")
@click.option("--results", type=click.Path(path_type=Path), default=ROOT / "benchmarks" / "results")
def main(
    models: Path,
    work: Path,
    text: Path | None,
    pythons: tuple[str, ...],
    only: tuple[str, ...],
    results: Path,
) -> None:
    """Runs the benchmarks of the page of results."""
    work.mkdir(parents=True, exist_ok=True)
    places = Places(models, work, text, _pythons(pythons))
    chosen = [run for run in RUNS if not only or {run.benchmark, run.result} & {*only}]
    lacking = []
    for run in chosen:
        path = file_of(run, results)
        if is_stored(path):
            click.echo(f"{run.result}: stored")
            continue
        try:
            measure(run, places, path)
        except TamizError as error:
            lacking.append(f"{run.result}: {error}")
    for line in lacking:
        click.echo(f"NOT MEASURED: {line}")
    for benchmark, reason in BY_HAND.items() if not only else ():
        click.echo(f"BY HAND: {benchmark}: {reason}")
    sys.exit(1 if lacking else 0)
