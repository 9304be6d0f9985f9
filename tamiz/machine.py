"""How fast this machine reads weights, multiplies and attends: what a predicted speed rests on.

The profile is measured with tamiz's own operators in onnxruntime (`tamiz.probes`), once for each
machine. Rates, in 10^9 a second:

- ``read_gb_s``: bytes of weights read, by working set in MB: int8 products, which wait for memory.
- ``records_gb_s``: the same of single cache lines with gaps between them: products that skip a
  random half of their inputs.
- ``products_g_s``: weights multiplied from the cache: one int4 product again and again.
- ``attention_gb_s``: bytes of keys and values attended by a decode step.
- ``chosen_gb_s``: the same of keys that a filter chose here and there, and that a run of products
  left in no cache.

What a node costs beside that, in microseconds:

- ``product_us``: a product: what is left of small ones where large ones tell how long a byte takes.
- ``attention_us``: an attention of a single key, and what a run does for its keys and values, after
  a run of products that left nothing of either in the caches.
- ``node_us``: a norm.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.errors import TamizError
from tamiz.text_file import read_json, write_json

if TYPE_CHECKING:
    from tamiz.probes import Bytes, Probe

#: Working sets to read, in MB.
WORKING_SETS = (16, 64, 256)
#: In- and outputs of a product; one has 1.1 MB as int8 and 0.7 MB as int4.
_SIZE = 1024
#: The part of int4 weights that is scales and minima, which are read whatever is skipped.
INT4_FACTORS = 0.2
#: Keys of an attention, 6.3 MB of keys and values, and attentions in a row.
_KEYS, _ATTENTIONS = 4096, 8
#: How many of the keys are chosen in the two attentions that are compared.
_CHOSEN = (256, 768)
#: Attentions of a single key.
_LAYERS = 30
#: Products of one weight, which stays in the cache.
_NODES = 256
#: Seconds that a graph runs before and while it is measured each time, how often it does so at
#: least, and how often all graphs are measured in turn.
_WARM_UP, _MEASURE, _LEAST_RUNS, _ROUNDS = 0.02, 0.04, 3, 3


@dataclass(frozen=True)
class Speed:
    """What so many threads do; see the top of this file."""

    threads: int
    read_gb_s: dict[str, float]
    records_gb_s: dict[str, float]
    products_g_s: float
    attention_gb_s: float
    chosen_gb_s: float
    product_us: float
    attention_us: float
    node_us: float

    def read_rate(self, working_set: int) -> float:
        """Bytes per second, linear in the logarithm of the working set (bytes)."""
        return _rate(self.read_gb_s, working_set)

    def record_rate(self, working_set: int) -> float:
        """The same of single cache lines."""
        return _rate(self.records_gb_s, working_set)


@dataclass(frozen=True)
class Profile:
    """The measured machine.

    Attributes:
        machine: What it was measured on; a profile of anything else is stale.
        speeds: With one thread, and with one a core.
    """

    machine: dict[str, str]
    speeds: tuple[Speed, ...]


def _rate(measured: Mapping[str, float], working_set: int) -> float:
    points = sorted((math.log(float(mb) * 1e6), gb) for mb, gb in measured.items())
    at = math.log(max(1, working_set))
    for (x0, y0), (x1, y1) in pairwise(points):
        if at <= x1:
            part = max(0.0, (at - x0) / (x1 - x0))
            return (y0 + part * (y1 - y0)) * 1e9
    return points[-1][1] * 1e9


def path() -> Path:
    """Where the profile lies: in the user's cache directory."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "tamiz" / "machine.json"


def load() -> Profile | None:
    """The profile of this machine; None if there is none, or one of another machine or version."""
    file = path()
    try:
        value = read_json(file)
        speeds = tuple(Speed(**speed) for speed in value["speeds"])
        profile = Profile(value["machine"], speeds)
    except (OSError, TamizError, KeyError, TypeError):
        return None
    return profile if profile.machine == identity() else None


def save(profile: Profile) -> Path:
    """Writes the profile where `load` finds it."""
    file = path()
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    write_json(scratch, json.loads(json.dumps(asdict(profile))))
    os.replace(scratch, file)
    return file


def identity() -> dict[str, str]:
    """What a profile depends on."""
    return {
        "cpu": _cpu_name(),
        "cores": str(cores()),
        "isa": os.environ.get("TAMIZ_ISA", ""),
        "tamiz_ops": version("tamiz-ops"),
        "onnxruntime": version("onnxruntime"),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def cores() -> int:
    """Cores that this process may use."""
    import psutil

    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    return min(psutil.cpu_count(logical=False) or 1, allowed or 1 << 30)


def measure() -> Profile:
    """Measures this machine; takes three seconds a number of threads where nothing else runs."""
    from tamiz import probes

    weights = probes.weights(max(WORKING_SETS) * 1_000_000)
    speeds = [_speed(threads, weights) for threads in sorted({1, cores()})]
    return Profile(identity(), tuple(speeds))


def _speed(threads: int, weights: Bytes) -> Speed:
    from tamiz import probes

    half, middle = _SIZE // 2, sorted(WORKING_SETS)[len(WORKING_SETS) // 2]
    sets = {mb: weights[: mb * 1_000_000] for mb in WORKING_SETS}
    graphs = {
        "cached half": probes.products(4, half, weights, threads, _NODES, stored=1),
        "cached": probes.products(4, _SIZE, weights, threads, _NODES, stored=1),
        "half": probes.products(8, half, sets[middle], threads),
        **{f"read {mb}": probes.products(8, _SIZE, part, threads) for mb, part in sets.items()},
        **{f"skip {mb}": probes.skipping(_SIZE, part, threads) for mb, part in sets.items()},
        "attention": probes.attention(_KEYS, _ATTENTIONS, threads),
        "one key": probes.attention(1, _LAYERS, threads),
        **{f"chosen {n}": probes.attention(_KEYS, _ATTENTIONS, threads, n) for n in _CHOSEN},
        "norm": probes.norms(_SIZE, _NODES, threads),
    }
    cold = ["one key", *(f"chosen {n}" for n in _CHOSEN)]
    spent = _seconds(graphs, dict.fromkeys(cold, graphs[f"read {middle}"]))
    sizes = [probes.weight_bytes(8, size) for size in (half, _SIZE)]
    # t = node + bytes / rate, for two sizes
    large, small = spent[f"read {middle}"], spent["half"]
    product = max(0.0, (small * sizes[1] - large * sizes[0]) / (sizes[1] - sizes[0]))
    weight = _slope(spent["cached half"], spent["cached"]) / (_SIZE**2 - half**2)
    reads, records = {}, {}
    int4 = probes.weight_bytes(4, _SIZE)
    for mb in WORKING_SETS:
        reads[str(mb)] = _giga(sizes[1], spent[f"read {mb}"] - product)
        scales = INT4_FACTORS * int4 / (reads[str(mb)] * 1e9)
        kept = (1 - INT4_FACTORS) / 2 * int4
        skip = spent[f"skip {mb}"] - spent["norm"]
        records[str(mb)] = _giga(kept, skip - product - scales)
    few, many = (spent[f"chosen {n}"] for n in _CHOSEN)
    key = probes.KEY_BYTES
    return Speed(
        threads=threads,
        read_gb_s=reads,
        records_gb_s=records,
        products_g_s=round(1e-9 / weight, 2),
        attention_gb_s=_giga(key * _KEYS, spent["attention"] - spent["one key"]),
        chosen_gb_s=_giga(key * (_CHOSEN[1] - _CHOSEN[0]), _slope(few, many)),
        product_us=round(1e6 * product, 3),
        attention_us=round(1e6 * spent["one key"], 3),
        node_us=round(1e6 * spent["norm"], 3),
    )


def _slope(less: float, more: float) -> float:
    """More seconds minus less; of a disturbed measurement at least half of the former."""
    return max(more - less, more / 2)


def _giga(count: float, seconds: float) -> float:
    return round(count / max(seconds, 1e-9) / 1e9, 2)


def _seconds(graphs: Mapping[str, Probe], cold: Mapping[str, Probe]) -> dict[str, float]:
    """Seconds a step of each, medians.

    Args:
        graphs: By name. All are measured in turn, so that a moment in which the machine does
            something else disturbs none of them much.
        cold: What runs before each run of a graph, uncounted, so that no cache has its data.
    """
    spent: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(_ROUNDS):
        for name, graph in graphs.items():
            spent[name] += _runs(graph, cold.get(name))
    return {name: statistics.median(runs) / graphs[name].steps for name, runs in spent.items()}


def _runs(graph: Probe, before: Probe | None) -> list[float]:
    """Seconds of runs; the first ones wake the threads and fill the caches, and do not count."""
    start = time.perf_counter()
    spent: list[float] = []
    while len(spent) < _LEAST_RUNS or time.perf_counter() < start + _WARM_UP + _MEASURE:
        if before is not None:
            before.run()
        begin = time.perf_counter()
        graph.run()
        if begin > start + _WARM_UP:
            spent.append(time.perf_counter() - begin)
    return spent
