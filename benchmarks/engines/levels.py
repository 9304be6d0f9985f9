"""Each level of instructions that this machine has, beside llama.cpp compiled for the same level.

    python -m benchmarks levels BUNDLE --gguf MODEL.gguf --python venv/bin/python \\
        --llama-cpp avx2=FOLDER --llama-cpp avxvnni=FOLDER --json levels.json

A level is forced by ``TAMIZ_ISA``. A folder has the shared libraries of llama.cpp, compiled with
``GGML_NATIVE=OFF`` and the level's switches, such as ``GGML_AVX2=ON`` and ``GGML_AVX_VNNI=ON``; the
interpreter has llama-cpp-python, which loads them. All levels and engines take turns in one run.
Definitions: tamiz/evaluation/bench.py.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import tamiz_ops
from benchmarks.common import record
from benchmarks.engines.peers import HERE, PEERS
from tamiz.cli.bench import lengths
from tamiz.evaluation import bench

#: The reference of the others: what processors of the last ten years have.
BASE = "avx2"


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--level", "levels", multiple=True, help="Levels; default: all but scalar.")
@click.option("--gguf", type=click.Path(exists=True, path_type=Path), help="For llama.cpp.")
@click.option("--llama-cpp", "libraries", multiple=True, metavar="LEVEL=FOLDER")
@click.option("--python", default=sys.executable, help="Interpreter with llama-cpp-python.")
@click.option("--context", "contexts", type=lengths, default="128", show_default=True)
@click.option("--name", help="What tables call the model.  [default: the GGUF's or bundle's]")
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundle: Path,
    levels: tuple[str, ...],
    gguf: Path | None,
    libraries: tuple[str, ...],
    python: str,
    contexts: tuple[int, ...],
    name: str | None,
    threads: int,
    output: Path | None,
) -> None:
    """Measures BUNDLE on each level."""
    console = Console(stderr=True)
    folders = dict(entry.partition("=")[::2] for entry in libraries)
    known = tamiz_ops.cpu()["isas"]
    wanted = levels or [level for level in known if level != "scalar"]
    if unknown := {*wanted, *folders} - set(known):
        raise click.UsageError(f"level {unknown.pop()!r}: this machine runs {', '.join(known)}")
    children: dict[tuple[str, str], bench.Child] = {}
    read_gb_s = bench.read_bandwidth(threads)
    try:
        for level in wanted:
            console.print(f"loading {level}")
            forced = {"TAMIZ_ISA": level}
            children[level, "tamiz"] = bench.bundle_child(bundle, threads, environment=forced)
            if gguf is not None and level in folders:
                command = [python, str(HERE / "peer_child.py"), "llama.cpp", str(gguf)]
                path = {"LLAMA_CPP_LIB_PATH": str(Path(folders[level]).absolute())}
                children[level, "llama.cpp"] = bench.Child(
                    f"llama.cpp for {level}", [*command, str(threads)], path
                )
        found = bench.measure(list(children.values()), contexts, console.print)
    finally:
        for child in children.values():
            child.close()
    measured = dict(zip(children, found, strict=True))
    rows = {level: row(level, measured) for level in wanted}
    for level, values in rows.items():
        console.print(level, values)
    if output is not None:
        settings = {"model": name or (gguf or bundle).name, "contexts": contexts}
        peers = {"llama.cpp": record.version_of(python, PEERS["llama.cpp"])} if folders else {}
        report = {"threads": threads, "read_gb_s": round(read_gb_s, 1), "levels": rows}
        record.write(output, "levels", report, settings=settings, peers=peers)


def row(level: str, measured: dict[tuple[str, str], bench.Measurement]) -> dict[str, Any]:
    """The speeds of a level, and how many times those of AVX2 and of llama.cpp they are."""
    ours = measured[level, "tamiz"]
    values: dict[str, Any] = {"tamiz": ours.summary()}
    others = {f"times {BASE}": (BASE, "tamiz"), "times llama.cpp": (level, "llama.cpp")}
    for title, key in others.items():
        if key in measured:
            values[title] = ours.ratio(measured[key])
    if (level, "llama.cpp") in measured:
        values["llama.cpp"] = measured[level, "llama.cpp"].summary()
    return values


if __name__ == "__main__":
    main()
