"""A quota of processor time: the default number of threads beside fixed ones, in cgroups.

    python -m benchmarks quota BUNDLE --quota 1 --json quota.json

Makes a cgroup with the quota for each number of threads, which takes root and a Linux whose cgroups
can be written, and measures one thread without a quota beside them. All take turns in one run, so
that no two groups use the cores at a time. A group that uses up its quota is stopped until the next
100 ms begin. Definitions: tamiz/evaluation/bench.py.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from benchmarks.common import record
from tamiz.cli.bench import lengths
from tamiz.evaluation import bench
from tamiz.files.errors import TamizError

#: Where Linux shows cgroups.
CGROUPS = Path("/sys/fs/cgroup")
#: Microseconds in which a group may use up its quota.
PERIOD = 100_000
#: The engine that the others are divided by.
BASE = "1 thread without a quota"


@contextmanager
def limited_group(name: str, quota: float) -> Iterator[Path]:
    """A cgroup that may use `quota` processors' time, removed in the end; its processes have ended.

    Yields:
        Its folder.

    Raises:
        TamizError: This process cannot make it.
    """
    first = (CGROUPS / "cpu").is_dir()
    folder = CGROUPS / ("cpu" if first else "") / f"tamiz-{os.getpid()}-{name}"
    microseconds = round(quota * PERIOD)
    try:
        folder.mkdir()
        if first:
            (folder / "cpu.cfs_period_us").write_text(f"{PERIOD}")
            (folder / "cpu.cfs_quota_us").write_text(f"{microseconds}")
        else:
            (folder / "cpu.max").write_text(f"{microseconds} {PERIOD}")
    except OSError as error:
        with contextlib.suppress(OSError):
            folder.rmdir()
        raise TamizError(
            f"{folder}: no cgroup with a quota of processor time can be made: {error.strerror};"
            " try as root, on a Linux whose cgroups have the controller cpu"
        ) from error
    try:
        yield folder
    finally:
        folder.rmdir()


def in_group(folder: Path, *command: str) -> list[str]:
    """A command that runs in a group."""
    return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(folder / "cgroup.procs"), *command]


def threads_chosen(folder: Path) -> int:
    """The threads of a session that nobody gave a number, in a group."""
    code = (
        "from tamiz.runtime.session import session_options;"
        "print(session_options(None).intra_op_num_threads)"
    )
    command = in_group(folder, sys.executable, "-c", code)
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def stopped(folder: Path) -> dict[str, int]:
    """Of the periods in which a group ran, how many there were and in how many it was stopped."""
    lines = (folder / "cpu.stat").read_text("ascii").splitlines()
    counts = {name: int(count) for name, count in (line.split() for line in lines)}
    return {"periods": counts["nr_periods"], "stopped": counts["nr_throttled"]}


def child(bundle: Path, name: str, threads: int, folder: Path | None) -> bench.Child:
    """A bundle in a group; 0 threads for the default."""
    module = (
        sys.executable,
        "-m",
        "tamiz.evaluation.bench_child",
        str(bundle),
        str(threads),
        "off",
    )
    return bench.Child(name, list(module) if folder is None else in_group(folder, *module))


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--quota", type=click.FloatRange(0.1), default=1.0, show_default=True)
@click.option("--threads", "fixed", type=click.IntRange(1), default=2, show_default=True)
@click.option("--context", "contexts", type=lengths, default="128", show_default=True)
@click.option("--name", help="What tables call the model.  [default: the bundle's]")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundle: Path,
    quota: float,
    fixed: int,
    contexts: tuple[int, ...],
    name: str | None,
    output: Path | None,
) -> None:
    """Measures BUNDLE in cgroups that may use QUOTA processors' time."""
    console = Console(stderr=True)
    with contextlib.ExitStack() as stack:
        default = stack.enter_context(limited_group("default", quota))
        many = stack.enter_context(limited_group("fixed", quota))
        chosen = threads_chosen(default)
        engines = {
            BASE: (1, None),
            "default threads in the quota": (0, default),
            f"{fixed} threads in the quota": (fixed, many),
        }
        children = []
        for title, (threads, folder) in engines.items():
            children.append(child(bundle, title, threads, folder))
            stack.callback(children[-1].close)
        found = dict(zip(engines, bench.measure(children, contexts, console.print), strict=True))
        rows = {title: row(found[title], found[BASE], engines[title][1]) for title in engines}
    for title, values in rows.items():
        console.print(title, values)
    if output is not None:
        report = {"quota": quota, "threads_chosen": chosen, "engines": rows}
        settings = {"model": name or bundle.name, "contexts": contexts}
        record.write(output, "quota", report, settings=settings)


def row(
    measured: bench.Measurement, base: bench.Measurement, folder: Path | None
) -> dict[str, Any]:
    """The speeds of an engine, and how many times those without a quota they are."""
    values = {"speeds": measured.summary(), f"times {BASE}": measured.ratio(base)}
    return values if folder is None else {**values, **stopped(folder)}


if __name__ == "__main__":
    main()
