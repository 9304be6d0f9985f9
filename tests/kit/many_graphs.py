"""Checks random graphs by number, with a log from which a run that was ended goes on."""

from __future__ import annotations

import json
import random
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kit.beside_onnxruntime import Refused
from kit.built_in_memory import Build, Checked, check
from kit.random_graphs import Example, example
from tamiz.plugins import Plugins

#: Ways to store weights; each graph is built in one of them, or stays dense.
BUILDS: tuple[Build | None, ...] = (
    *(None, None),
    *(("block-quant", {"format": name, "fit": "nearest"}) for name in ("q8_0", "q4_0", "q5_1")),
    ("block-quant", {}),
    ("block-quant", {"bits": 8}),
    ("block-quant", {"scale_bits": 8}),
    ("block-quant", {"mask_block": 1}),
    ("ternary", {"max_error": 1.0}),
)
#: Graphs between two lines of the log.
_LINE = 500


@dataclass
class Counts:
    """What a run has seen.

    Attributes:
        next: Number of the next graph.
        refused: Graphs that plain ONNX Runtime does not run.
        with_sites: Graphs with a product that a technique can store in another way.
        sharing: Graphs of which several such products share a weight.
        looked_closer: Comparisons that needed the noise of rounding.
        blind: Those of them in which a wrong output would not have been seen.
        wrong: Numbers of graphs that were wrong or ended with a traceback, and their errors.
        seconds: Time.
    """

    next: int
    refused: int = 0
    with_sites: int = 0
    sharing: int = 0
    looked_closer: int = 0
    blind: int = 0
    wrong: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0


def numbered(number: int) -> tuple[Example, Build | None]:
    """The graph of a number, and how it is built."""
    choices = random.Random(number)
    return example(choices), choices.choice(BUILDS)


def check_number(number: int, plugins: Plugins) -> Checked:
    """Compares the graph of a number with its build; see `check`."""
    graph, build = numbered(number)
    return check(graph.model, graph.inputs, plugins, [build] if build else [])


def check_numbers(first: int, count: int, plugins: Plugins, log: Path | None = None) -> Counts:
    """Checks graphs one after the other, and goes on behind one that is wrong.

    Args:
        first: Number of the first.
        count: How many.
        plugins: The loaded plugins.
        log: A file to which a line of JSON is added now and then; a run goes on from the last line.
    """
    counts = Counts(first)
    if log is not None and log.is_file():
        counts = Counts(**json.loads(log.read_text("utf-8").splitlines()[-1]))
    start, before = time.monotonic(), counts.seconds
    while counts.next < first + count:
        _check(counts, plugins)
        counts.next += 1
        counts.seconds = round(before + time.monotonic() - start, 1)
        done = counts.next - first
        if log is not None and (done % _LINE == 0 or done == count):
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(counts)) + "\n")
    return counts


def _check(counts: Counts, plugins: Plugins) -> None:
    try:
        checked = check_number(counts.next, plugins)
    except Refused:
        counts.refused += 1
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        place = f"{Path(where.filename).name}:{where.lineno}"
        counts.wrong[str(counts.next)] = f"{type(error).__name__}: {said} ({place})"
    else:
        counts.with_sites += bool(checked.sites)
        counts.sharing += checked.shares
        counts.looked_closer += checked.looked_closer
        counts.blind += checked.blind
