"""Measures the machine profile (`tamiz.system.machine`) with tamiz's own operators."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence

import psutil

from tamiz.evaluation import probes
from tamiz.evaluation.probes import Bytes, Probe
from tamiz.files.errors import TamizError
from tamiz.system.cores import cores
from tamiz.system.machine import MachineSpeed, Profile, identity
from tamiz_ops.formats import GROUP, int_format

#: Working sets to read, in MB.
WORKING_SETS = (16, 64, 256)
#: In- and outputs of a product; one has 1.1 MB as int8 and 0.7 MB as int4.
_SIZE = 1024
#: Keys of an attention, 6.3 MB of keys and values, and attentions in a row.
_KEYS, _ATTENTIONS = 4096, 8
#: How many of the keys are chosen in the two attentions that are compared.
_CHOSEN = (256, 768)
#: Attentions of a single key.
_LAYERS = 30
#: Products of one weight, which stays in the cache.
_NODES = 256
#: The part of int4 weights that is scales and minima, which a mask does not save.
_SCALES = 1 - int_format(4).bits * GROUP / 8 / int_format(4).block_bytes
#: Seconds that a graph runs before and while it is measured each time, and how often it does so at
#: least.
_WARM_UP, _MEASURE, _LEAST_RUNS = 0.02, 0.04, 3
#: How often all graphs are measured in turn: as often as it takes for the spread to be steady.
_ROUNDS, _MOST_ROUNDS, _STEADY = 3, 12, 0.15
#: Measurements to try before the machine is too busy.
_TRIES = 3


def measure() -> Profile:
    """Measures this machine; takes three seconds a number of threads where nothing else runs, and
    up to twelve where the speed of its memory changes.

    Raises:
        TamizError: The numbers are impossible, again and again: other programs use the cores.
    """
    weights = probes.weights(max(WORKING_SETS) * 1_000_000)
    for _ in range(_TRIES):
        load = psutil.getloadavg()[0]
        measured = [_speed(threads, weights) for threads in sorted({1, cores()})]
        speeds = tuple(speed for speed, _ in measured)
        spread = max(spread for _, spread in measured)
        profile = Profile(identity(), speeds, round(load, 2), round(spread, 3))
        reason = profile.impossible()
        if reason is None:
            return profile
    raise TamizError(
        f"this machine cannot be measured now: {reason}; the load is {load:.1f} on {cores()} cores,"
        " try again while nothing else runs"
    )


def _speed(threads: int, weights: Bytes) -> tuple[MachineSpeed, float]:
    """The speed with a number of threads, and its spread; see `Profile`."""
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
    rounds = _seconds(graphs, dict.fromkeys(cold, graphs[f"read {middle}"]))
    spent = {name: statistics.median(seconds) for name, seconds in rounds.items()}
    sizes = [probes.weight_bytes(8, size) for size in (half, _SIZE)]
    # t = node + bytes / rate, for two sizes
    large, small = spent[f"read {middle}"], spent["half"]
    product = max(0.0, (small * sizes[1] - large * sizes[0]) / (sizes[1] - sizes[0]))
    weight = _slope(spent["cached half"], spent["cached"]) / (_SIZE**2 - half**2)
    multiplied = weight * _SIZE**2
    reads, records = {}, {}
    int4 = probes.weight_bytes(4, _SIZE)
    for mb in WORKING_SETS:
        reads[str(mb)] = _giga(sizes[1], _reading(spent[f"read {mb}"] - product, multiplied))
        scales = _SCALES * int4 / (reads[str(mb)] * 1e9)
        kept = (1 - _SCALES) / 2 * int4
        skip = spent[f"skip {mb}"] - spent["norm"] - product
        records[str(mb)] = _giga(kept, _reading(skip, multiplied / 2) - scales)
    few, many = (spent[f"chosen {n}"] for n in _CHOSEN)
    key = probes.KEY_BYTES
    speed = MachineSpeed(
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
    return speed, _spread(rounds)


def _slope(less: float, more: float) -> float:
    """More seconds minus less; of a disturbed measurement at least half of the former."""
    return max(more - less, more / 2)


def _reading(product: float, multiplied: float) -> float:
    """Seconds of a product that are reading; at least half of them, see `tamiz.planning.speed`."""
    return math.sqrt(max(product**2 - multiplied**2, product**2 / 4))


def _giga(count: float, seconds: float) -> float:
    return round(count / max(seconds, 1e-9) / 1e9, 2)


def _seconds(graphs: Mapping[str, Probe], cold: Mapping[str, Probe]) -> dict[str, list[float]]:
    """Seconds a step of each graph: the median of each round.

    Args:
        graphs: By name. All are measured in turn, so that a moment in which the machine does
            something else disturbs none of them much.
        cold: What runs before each run of a graph, uncounted, so that no cache has its data.
    """
    spent: dict[str, list[float]] = {name: [] for name in graphs}
    for done in range(1, _MOST_ROUNDS + 1):
        for name, graph in graphs.items():
            spent[name].append(statistics.median(_runs(graph, cold.get(name))) / graph.steps)
        if done >= _ROUNDS and _spread(spent) <= _STEADY:
            break
    return spent


def _spread(rounds: Mapping[str, Sequence[float]]) -> float:
    """See `Profile`; without a quarter of the rounds at either end."""
    spreads = []
    for mb in WORKING_SETS:
        seconds = sorted(rounds[f"read {mb}"])
        middle = seconds[len(seconds) // 4 : len(seconds) - len(seconds) // 4]
        spreads.append(middle[-1] / middle[0] - 1)
    return max(spreads)


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
