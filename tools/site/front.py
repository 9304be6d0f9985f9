"""The README's table and chart: all kinds of speed on the processor that was measured last.

Numbers are in tokens per second, so one table holds decode, prefill, several sequences at once and
encoders; paragraphs of different lengths are counted themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from charts import ENGINES
from result_tables import PROMPT, Stored, by_processor, number, ratios, table

#: Tokens before those that are decoded.
CONTEXT = "128"
#: Sequences that decode at once in the table; the chart has fewer, too.
USERS = "8"
_SEQUENCES = ("1", "2", "4", USERS)
#: Rows of `python -m benchmarks encoders`, by the engine's key.
_ENCODERS = {
    "tamiz": "tamiz q8_0 nearest, inputs of 16 bits",
    "inputs-8": "tamiz, as by default",
    "openvino": "OpenVINO int8 by NNCF",
    "ort-int8": "ONNX Runtime quantize_dynamic int8, one scale an output",
}
#: Engines of `python -m benchmarks batch`, by the end of the bundle's name.
_BUNDLES = {"stored": "tamiz", "bytes": "inputs-8"}
_TASKS = {
    "decode": f"decode after {CONTEXT} tokens",
    "prefill": f"prefill of {PROMPT} tokens",
    "users": f"decode of {USERS} sequences at once",
    "embed": "embed texts",
    "paragraphs": "embed paragraphs, per second",
}
#: Tasks that the chart shows in panels of another kind, or that have another unit.
_NOT_DRAWN = ("users", "paragraphs")


@dataclass(frozen=True)
class Row:
    """Speeds of one model in one task.

    Attributes:
        task: Key of `_TASKS`.
        model: Title of the model.
        speeds: Tokens, or paragraphs, per second by the engine's key; what was not measured is left
            out.
    """

    task: str
    model: str
    speeds: dict[str, float]


def _newest(found: dict[str, list[Stored]]) -> dict[str, list[Stored]]:
    """What was measured on the processor of the newest comparison with other engines."""
    processor = next(iter(by_processor(found["peers"])))
    kinds = ("peers", "batch", "encoders")
    return {kind: [s for s in found.get(kind, []) if s.processor == processor] for kind in kinds}


def rows(found: dict[str, list[Stored]]) -> list[Row]:
    """All rows of the newest processor, task by task."""
    newest = _newest(found)
    return [
        *_decoders(newest["peers"], "decode", "decode_tok_s", CONTEXT),
        *_decoders(newest["peers"], "prefill", "prefill_tok_s", PROMPT),
        *_users(newest["batch"], USERS),
        *_encoders(newest["encoders"], "embed", "ms", lambda s: s["batch"] * s["length"]),
        *_encoders(newest["encoders"], "paragraphs", "mixed_ms", lambda s: s.get("mixed", 0)),
    ]


def _decoders(peers: list[Stored], task: str, measure: str, length: str) -> list[Row]:
    made = []
    for stored in peers:
        results = stored.record["results"]
        measured = {key: results[key][measure] for key in ENGINES if key in results}
        speeds = {key: one[length] for key, one in measured.items() if length in one}
        made.append(Row(task, stored.title, speeds))
    return made


def _users(batches: list[Stored], sequences: str) -> list[Row]:
    by_model: dict[str, dict[str, float]] = {}
    for stored in batches:
        engine = _BUNDLES.get(str(stored.record["settings"]["bundle"]).rpartition(".")[2])
        if engine is not None:
            speeds = by_model.setdefault(stored.title.partition(",")[0], {})
            speeds[engine] = stored.record["results"]["speed"][sequences]["tok_s"]
    return [Row("users", model, speeds) for model, speeds in by_model.items()]


def _encoders(
    encoders: list[Stored], task: str, spent: str, count: Callable[[Mapping[str, int]], int]
) -> list[Row]:
    """Rows of a task that takes `spent` milliseconds for so many tokens or texts."""
    made = []
    for stored in encoders:
        many, results = 1000 * count(stored.record["settings"]), stored.record["results"]
        times = {key: results[n].get(spent) for key, n in _ENCODERS.items() if n in results}
        speeds = {key: many / ms for key, ms in times.items() if ms}
        made += [Row(task, stored.title, speeds)] if speeds else []
    return made


def chart(found: dict[str, list[Stored]]) -> dict[str, Any]:
    """What the chart of speeds shows: a group of bars for each row, a panel for each task."""
    panels = {}
    for task in (each for each in _TASKS if each not in _NOT_DRAWN):
        of_task = [row for row in rows(found) if row.task == task]
        panels[_TASKS[task]] = [{"name": row.model, "speeds": row.speeds} for row in of_task]
    batches = _newest(found)["batch"]
    for model in (row.model for row in _users(batches, USERS)):
        panels[f"decode of {model.partition(' ')[0]}"] = [
            {"name": f"{sequences} at once", "speeds": row.speeds}
            for sequences in _SEQUENCES
            for row in _users(batches, sequences)
            if row.model == model
        ]
    return panels


def parts(found: dict[str, list[Stored]]) -> list[str]:
    """The README's chart, table and notes."""
    shown = [row for task in _TASKS for row in _widest(found, task)]
    keys = [key for key in ENGINES if any(key in row.speeds for row in shown)]
    lines = []
    for row in shown:
        best = max(row.speeds.values())
        cells = (_cell(row.speeds.get(key), best) for key in keys)
        lines.append([_TASKS[row.task], row.model, *cells])
    newest = _newest(found)
    notes = [_machine(newest["peers"][-1]), _cosines(newest["encoders"])]
    return [
        "![Speed by task, model and engine](docs/results/speed.svg)",
        table(["task", "model", *(ENGINES[key] for key in keys)], lines),
        " ".join(filter(None, notes)),
        *_elsewhere(found["peers"]),
    ]


def _widest(found: dict[str, list[Stored]], task: str) -> list[Row]:
    """The models of a task that most engines ran; the chart has the others."""
    of_task = [row for row in rows(found) if row.task == task]
    most = max((len(row.speeds) for row in of_task), default=0)
    return [row for row in of_task if len(row.speeds) == most]


def _cell(speed: float | None, best: float) -> str:
    if speed is None:
        return ""
    return f"**{number(speed)}**" if speed == best else number(speed)


def _machine(last: Stored) -> str:
    """Where the table was measured, and the memory of its last model."""
    results = last.record["results"]
    others = ", ".join(
        f"{ENGINES[key]} {number(results[key]['peak_rss_mb'])}"
        for key in ENGINES
        if key in results and key not in _BUNDLES.values()
    )
    return (
        f"Tokens per second, the fastest in bold: {last.processor}, {results['threads']} threads, "
        f"{last.record['date']}, medians of interleaved rounds. llama.cpp and OpenVINO round "
        f"inputs to 8 bits. Peak memory with {last.title}, in MB: tamiz "
        f"{number(results['tamiz']['peak_rss_mb'])}, {others}."
    )


def _cosines(encoders: list[Stored]) -> str:
    """The quality of the encoders' rows."""
    if not encoders:
        return ""
    told = []
    for key, name in _ENCODERS.items():
        results = (stored.record["results"] for stored in encoders)
        cosines = [found[name]["cos_mean"] for found in results if name in found]
        if cosines:
            told.append(f"{ENGINES[key]} {min(cosines):.4f} to {max(cosines):.4f}")
    settings = encoders[0].record["settings"]
    return (
        f"Encoders read {settings['batch']} texts of {settings['length']} tokens at once, or "
        "paragraphs of different lengths, which other engines pad in runs of like lengths. Their "
        f"mean cosine with float32: {'; '.join(told)}."
    )


def _elsewhere(peers: list[Stored]) -> list[str]:
    """Ratios to llama.cpp on all processors but the newest, in one paragraph."""
    _, *others = by_processor(peers).items()
    told = "; ".join(
        f"{name} {ratios(group, 'decode_tok_s', CONTEXT)} and "
        f"{ratios(group, 'prefill_tok_s', PROMPT)}"
        for name, group in others
    )
    if not told:
        return []
    return [
        f"Times llama.cpp elsewhere, decode at {CONTEXT} and prefill of {PROMPT}: {told}. "
        "They are medians over rounds of the ratio in a round."
    ]
