"""Speed, memory and load time of bundles, measured interleaved in child processes.

Definitions (all speeds in tokens per second of wall time, one sequence, unless they say otherwise):

- ``decode_tok_s[c]``: greedy decoding from a context of c tokens, one token a step unless
  ``speculate`` is on; median of `ROUNDS` rounds of `TOKENS` tokens.
- ``prefill_tok_s[c]``: reading a prompt of c tokens from nothing up to the logits of the next
  token; median of `ROUNDS` rounds, one round where c > 512. Length 512 is always measured.
- ``embed_texts_s[m x n]``, of an encoder: m texts of n tokens in one run, in texts per second;
  median of `ROUNDS` rounds, each after a run that is not counted.
- ``load_s``: from the directory's name to a model that can run; imports are not counted.
- ``peak_rss_mb``: peak resident set of the child, mapped weights included, after load, a prompt
  and decoding at the smallest context, or the smallest run of an encoder; 1 MB = 10^6 bytes, as
  for ``bundle_mb``.
- ``read_gb_s``: bytes that the same number of threads read per second from a buffer larger than
  the last-level cache: the bound of a decode step.
- ``step``: what a decode step at the last context read, mean of `TOKENS` and the steps before
  them: ``weights_mb`` of packed weights, ``disk_mb`` from the disk, ``faults``, how often a thread
  waited for a page from there, and ``in_memory``, the share of the weights that did not come from
  the disk. It is 1 unless weights are larger than memory.
- ``ratio``: median over rounds of this bundle's speed divided by the other's in the same round.
- ``spread``: of each speed, its largest minus its smallest round, divided by the median.
- ``busy_cores``: cores that other programs kept busy in the half second before the measurement.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tamiz.evaluation.bench_child import WARM_UP, DecoderSession, EncoderSession
from tamiz.evaluation.bench_process import Child
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.switches import AUTO

PREFILL = 512
#: Contexts of a decoder, and tokens of an encoder's texts, where the caller names none.
CONTEXTS, LENGTHS = (128, 2000, 8000), (16, 128, 512)
#: Texts of an encoder's larger runs.
TEXTS = 8
ROUNDS = 5
TOKENS = 32
#: Seconds between turns: the thread pool of the previous engine spins for a while.
PAUSE = 0.15
#: Seconds in which the load by other programs is measured.
LOAD_SECONDS = 0.5


#: Speeds of each round, by the length or the run that was measured.
Rounds = Mapping[int, Sequence[float]] | Mapping[str, Sequence[float]]


@dataclass
class Measurement:
    """What was measured of one engine.

    Attributes:
        load_s: Seconds to load.
        peak_rss: Bytes; see the module's definitions.
        decode: Tokens per second of each round, by context.
        prefill: Tokens per second of each round, by prompt length.
        embed: Texts per second of each round, by ``m x n``, m texts of n tokens.
    """

    load_s: float
    peak_rss: int = 0
    decode: dict[int, list[float]] = field(default_factory=dict)
    prefill: dict[int, list[float]] = field(default_factory=dict)
    embed: dict[str, list[float]] = field(default_factory=dict)

    @property
    def speeds(self) -> dict[str, Mapping[int, list[float]] | Mapping[str, list[float]]]:
        """The speeds of each round under the JSON keys of `tamiz bench`."""
        if self.embed:
            return {"embed_texts_s": self.embed}
        return {"decode_tok_s": self.decode, "prefill_tok_s": self.prefill}

    def ratio(self, other: Measurement) -> dict[str, dict[str, float]]:
        """How many times the other's speeds these are, under the JSON keys of `tamiz bench`."""
        pairs = zip(self.speeds.items(), other.speeds.values(), strict=True)
        return {key: ratios(ours, theirs) for (key, ours), theirs in pairs}

    def summary(self) -> dict[str, Any]:
        """Medians under the JSON keys of `tamiz bench`."""
        return {
            **{key: medians(rounds) for key, rounds in self.speeds.items()},
            "spread": {key: spreads(rounds) for key, rounds in self.speeds.items()},
            "load_s": round(self.load_s, 4),
            "peak_rss_mb": round(self.peak_rss / 1e6, 1),
        }


def measure(
    children: Sequence[Child], contexts: Sequence[int] | None, progress: Callable[[str], None]
) -> list[Measurement]:
    """Measures the children against each other, turn by turn.

    Args:
        children: Loaded engines.
        contexts: Tokens of context to decode from; None for those of `CONTEXTS` after which all
            models can decode.
        progress: Takes the name of the measurement that begins.

    Returns:
        One measurement a child, in their order.

    Raises:
        TamizError: A context beyond a model's limit, or an engine fails.
    """
    shortest = min(children, key=lambda child: child.limit)
    most = shortest.limit - _decoded()
    if contexts is None:
        contexts = [n for n in CONTEXTS if n <= most] or [max(1, most)]
    contexts = sorted(set(contexts))
    check_context(shortest.name, contexts[-1], shortest.limit)
    results = [Measurement(child.load_s) for child in children]
    for child, result in zip(children, results, strict=True):
        child.prefill(contexts[0])
        child.decode(1)
        result.peak_rss = child.peak_rss()
    for length in sorted({*contexts, *([PREFILL] if most >= PREFILL else [])}):
        progress(f"prefill of {length}")
        rounds = ROUNDS if length <= PREFILL else 1
        speeds = _turns(children, partial(Child.prefill, tokens=length), rounds)
        for result, found in zip(results, speeds, strict=True):
            result.prefill[length] = found
        if length not in contexts:
            continue
        progress(f"decode at {length}")
        speeds = _turns(children, partial(Child.decode, tokens=TOKENS), ROUNDS)
        for result, found in zip(results, speeds, strict=True):
            result.decode[length] = found
    return results


def _turns(
    children: Sequence[Child], run: Callable[[Child], float], rounds: int
) -> list[list[float]]:
    """Speeds of each child, measured in turn."""
    speeds: list[list[float]] = [[] for _ in children]
    for _ in range(rounds):
        for child, found in zip(children, speeds, strict=True):
            time.sleep(PAUSE)
            found.append(run(child))
    return speeds


def measure_texts(
    children: Sequence[Child], lengths: Sequence[int] | None, progress: Callable[[str], None]
) -> list[Measurement]:
    """Measures encoders against each other, turn by turn.

    Args:
        children: Loaded encoders.
        lengths: Tokens of a text; None for those of `LENGTHS` that all encoders can read.
        progress: Takes the name of the measurement that begins.

    Returns:
        One measurement a child, in their order.

    Raises:
        TamizError: A length beyond a model's limit, or an engine fails.
    """
    shortest = min(children, key=lambda child: child.limit)
    if lengths is None:
        lengths = [n for n in LENGTHS if n <= shortest.limit] or [shortest.limit]
    lengths = sorted(set(lengths))
    if lengths[-1] > shortest.limit:
        raise TamizError(
            f"{shortest.name}: a text has at most {shortest.limit} tokens (max_position_embeddings "
            f"of config.json), found --context {lengths[-1]}"
        )
    results = [Measurement(child.load_s) for child in children]
    for child, result in zip(children, results, strict=True):
        child.embed(1, lengths[0])
        result.peak_rss = child.peak_rss()
    for texts in (1, TEXTS):
        for length in lengths:
            progress(f"{texts} x {length} tokens")
            speeds = _turns(children, partial(Child.embed, texts=texts, tokens=length), ROUNDS)
            for result, found in zip(results, speeds, strict=True):
                result.embed[f"{texts} x {length}"] = found
    return results


def check_context(name: str, context: int, limit: int) -> None:
    """Refuses a context after which a model of that limit cannot decode what is measured."""
    if context + _decoded() > limit:
        raise TamizError(
            f"{name}: --context {context} leaves no room for {_decoded()} tokens; the model's limit"
            f" is {limit} tokens (max_position_embeddings of config.json), expected --context"
            f" {limit - _decoded()} or less"
        )


def _decoded() -> int:
    """Tokens that a round decodes after its context."""
    return WARM_UP + TOKENS


def medians(rounds: Rounds) -> dict[str, float]:
    """Median of each list, keyed by the length as a string."""
    return {str(length): round(statistics.median(values), 2) for length, values in rounds.items()}


def spreads(rounds: Rounds) -> dict[str, float]:
    """(largest − smallest) / median of each list, keyed by the length as a string."""
    return {
        str(length): round((max(values) - min(values)) / statistics.median(values), 3)
        for length, values in rounds.items()
    }


def busy_cores() -> float:
    """Cores that are busy while this process waits for `LOAD_SECONDS`."""
    import psutil

    return float(psutil.cpu_percent(LOAD_SECONDS)) / 100 * (psutil.cpu_count() or 1)


def ratios(ours: Rounds, theirs: Rounds) -> dict[str, float]:
    """Median over rounds of ours divided by theirs, keyed by the length as a string."""
    return {
        str(length): round(statistics.median(a / b for a, b in zip(*pair, strict=True)), 3)
        for length, pair in zip(ours, zip(ours.values(), theirs.values(), strict=True), strict=True)
    }


def bundle_child(
    directory: Path,
    threads: int,
    speculate: str = "off",
    without: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Child:
    """A child that runs a bundle.

    Args:
        directory: The bundle.
        threads: Threads of its pool.
        speculate: Mode of `tamiz.runtime.speculation.settings.Speculation`.
        without: Techniques to switch off.
        environment: Variables of its process beside those of this one.
    """
    module = [sys.executable, "-m", "tamiz.evaluation.bench_child"]
    command = [*module, str(directory), str(threads), speculate, *without]
    return Child(str(directory), command, environment)


def bench(
    directory: Path,
    against: Path | None,
    contexts: Sequence[int] | None,
    threads: int,
    progress: Callable[[str], None] = lambda _: None,
    speculate: str = "off",
    without: Sequence[str] = (),
    needs_decoder: str | None = None,
) -> dict[str, Any]:
    """Measures a bundle, optionally against another; the JSON of `tamiz bench`.

    Args:
        directory: The bundle.
        against: Another bundle, measured in turn with the first.
        contexts: Tokens of context to decode from, or tokens of an encoder's texts; None for those
            of `CONTEXTS` or `LENGTHS` that fit in the models' limits.
        threads: Threads of each engine.
        progress: Takes the name of the measurement that begins.
        speculate: Mode of speculation of the first bundle; the other one decodes by steps.
        without: Techniques of the first bundle to switch off; `auto` measures them at each context.
        needs_decoder: An option that makes no sense for an encoder.

    Raises:
        TamizError: A bundle that does not load, a context beyond a model's limit, or an encoder
            where a decoder is expected.
    """
    directories = [directory] if against is None else [directory, against]
    bundles = [Bundle.open(path) for path in directories]
    busy, read_gb_s = busy_cores(), read_bandwidth(threads)
    children: list[Child] = []
    try:
        for path, mode, off in zip(directories, (speculate, "off"), (without, ()), strict=False):
            children.append(bundle_child(path, threads, mode, off))
        _check_kinds(children, needs_decoder)
        results, more = _MEASURES[children[0].kind](children, contexts, progress)
        if AUTO in without:
            switched_off = children[0].request(do="switched_off")["switched_off"]
    finally:
        for child in children:
            child.close()
    summaries = [
        {**result.summary(), "bundle_mb": round(bundle.size / 1e6, 1)}
        for result, bundle in zip(results, bundles, strict=True)
    ]
    report: dict[str, Any] = {
        **summaries[0],
        "threads": threads,
        "read_gb_s": round(read_gb_s, 1),
        "busy_cores": round(busy, 2),
        "speculate": speculate,
        **more,
    }
    if AUTO in without:
        report["switched_off"] = switched_off
    if against is not None:
        report["against"] = summaries[1]
        report["ratio"] = results[0].ratio(results[1])
    return report


def _check_kinds(children: Sequence[Child], needs_decoder: str | None) -> None:
    """Refuses two kinds of model, and an option that makes no sense for an encoder.

    Raises:
        TamizError: Such models, or such an option.
    """
    first = children[0]
    for child in children[1:]:
        if child.kind != first.kind:
            raise TamizError(
                f"{child.name}: is {child.kind}, expected {first.kind} as {first.name} is"
            )
    if needs_decoder is not None and first.kind != DecoderSession.kind:
        raise TamizError(f"{first.name}: {needs_decoder} needs a decoder, found {first.kind}")


def _measure_decoders(
    children: Sequence[Child], contexts: Sequence[int] | None, progress: Callable[[str], None]
) -> tuple[list[Measurement], dict[str, Any]]:
    """The speeds of decoders; what the first one reads in a step, and what its ops counted."""
    results = measure(children, contexts, progress)
    counts = children[0].request(do="counts")["counts"]
    return results, {"counts": counts, "step": _read_of_a_step(children[0])}


def _read_of_a_step(child: Child) -> dict[str, float]:
    """``step`` of the module's definitions, of a decoder that has read a prompt."""
    before = child.request(do="reads")
    child.decode(TOKENS)
    after = child.request(do="reads")
    step = {name: (after[name] - before[name]) / _decoded() for name in before}
    missed = min(1.0, step["disk"] / step["weights"]) if step["weights"] else 0.0
    return {
        "weights_mb": round(step["weights"] / 1e6, 3),
        "disk_mb": round(step["disk"] / 1e6, 2),
        "faults": round(step["faults"], 1),
        "in_memory": round(1 - missed, 4),
    }


def _measure_encoders(
    children: Sequence[Child], lengths: Sequence[int] | None, progress: Callable[[str], None]
) -> tuple[list[Measurement], dict[str, Any]]:
    """The speeds of encoders, whose ops count nothing."""
    return measure_texts(children, lengths, progress), {"counts": None}


#: How each kind of model is measured.
_MEASURES = {DecoderSession.kind: _measure_decoders, EncoderSession.kind: _measure_encoders}


def read_bandwidth(threads: int) -> float:
    """Reads a buffer larger than the last-level cache with that many threads.

    Returns:
        10^9 bytes per second, the best of five passes.
    """
    size = max(512 << 20, 2 * last_level_cache())
    buffer = np.ones(size // 8, np.int64)
    parts = np.array_split(buffer, threads)
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            start = time.perf_counter()
            for _ in pool.map(np.maximum.reduce, parts):
                pass
            best = max(best, buffer.nbytes / (time.perf_counter() - start) / 1e9)
    return best


def last_level_cache() -> int:
    """Bytes of the last-level cache; 0 where the system does not report it."""
    caches = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(cache.read_text().rstrip("K\n")) << 10 for cache in caches), default=0)
