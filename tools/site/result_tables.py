"""The tables of the page of results: one function for each kind of measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import charts
from charts import ENGINES

PROMPT = "512"
#: How tables call a bundle, by its name in a result or by the end that `benchmarks all` gives it.
_BUNDLES = {
    "as stored": "source format",
    "stored": "source format",
    "1": "--max-dppl 0.01",
    "2": "--max-dppl 0.02",
    "dense": "float32",
    "q8_0": "tamiz q8_0, inputs of 16 bits",
    "q8_0-bytes": "tamiz q8_0, inputs of 8 bits",
}
_ACCEPTANCE = """\
Made by `python -m benchmarks acceptance`; size and speed are relative to the baseline. Holds: at
most 50 % of float32's size, 1.10 × the speed, 2 % loss (event-driven 3 %): Δppl, or a layer's
error."""
_SPECULATION = """\
Each case ran once with plain decoding and once with guesses (`python -m benchmarks speculation`).
Answers "edit" change a given text, "quote" repeat parts of it, "prose" is free. The ratio is the
median over the cases, and the range is theirs."""
_BATCH = """\
Sequences that decode together in one run of the model (`python -m benchmarks batch`), and one
alone. Every sequence has to have the tokens that it has alone."""
_PEERS = """\
tamiz runs a bundle that stores the weights of a GGUF bit for bit, with a KV cache of float32.
Its products round inputs to 16 bits, or to 8 where the table says so. llama.cpp (llama-cpp-python,
whose version is given) runs that GGUF with 8-bit inputs and a KV cache of fp16, OpenVINO with 8-bit
inputs and an 8-bit KV cache; onnxruntime-genai quantises to int4 itself. Speeds are medians over
rounds in which the engines take turns. At long contexts a KV cache comes on top of the peak memory.
The line below a table names date, commit, machine and versions."""
_FOREIGN = """\
The default build of an ONNX file that another tool quantised, decoding after 128 tokens, beside
onnxruntime-genai on the same folder (`python -m benchmarks genai-folder`) or ONNX Runtime on the
same file (`python -m benchmarks quantized-onnx`). Logits are compared with plain ONNX Runtime that
rounds no inputs, relative to the largest logit."""
_FOREIGN_TITLES = {
    "genai-folder": "## Folders of onnxruntime-genai",
    "quantized-onnx": "## Files of ONNX Runtime's quantisers",
}
_NEIGHBOUR = """\
One text in a run, alone and beside a program that spins on the last core (`python -m benchmarks
neighbour`). Times are medians over rounds; the range is the quartiles of the ratios within rounds.
Of two cores, a fair share of one and a half would explain a slowdown of 1.33."""


@dataclass(frozen=True)
class Stored:
    """One file of results: its name without suffix, and what it holds."""

    name: str
    record: dict[str, Any]

    @property
    def processor(self) -> str:
        """The machine's processor."""
        return str(self.record["machine"]["processor"])

    @property
    def title(self) -> str:
        """The model that was measured."""
        settings = self.record["settings"]
        measured = settings.get("model") or settings.get("gguf") or settings.get("bundle")
        return str(measured or self.name).removesuffix(".gguf")

    @property
    def measured(self) -> str:
        """The model and the processor."""
        return f"{self.title}, {self.processor}"


def shown(bundle: str) -> str:
    """What tables call a bundle of a result."""
    return _BUNDLES.get(bundle.rpartition(".")[2], bundle)


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; columns but the first hold numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float) -> str:
    """Three significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}".removesuffix(".")


def engines(stored: Stored) -> dict[str, Any]:
    """What each engine of a comparison did, by the name that is shown."""
    results = stored.record["results"]
    return {name: results[key] for key, name in ENGINES.items() if key in results}


def peers_table(stored: Stored) -> str:
    """Speeds, load time and memory of every engine; one quantity a column."""
    found = engines(stored)
    contexts = sorted({int(c) for one in found.values() for c in one["decode_tok_s"]})
    head = ["engine", *(f"decode at {c:,}, tok/s" for c in contexts)]
    head += [f"prefill of {PROMPT}, tok/s", "load, s", "peak memory at 128, MB"]
    rows = []
    for name, one in found.items():
        speeds = [one["decode_tok_s"].get(str(c)) for c in contexts]
        cells = [*speeds, one["prefill_tok_s"].get(PROMPT), one["load_s"], one["peak_rss_mb"]]
        rows.append([name, *("" if cell is None else number(cell) for cell in cells)])
    return table(head, rows)


def spread_note(stored: Stored) -> str:
    """The largest spread over the rounds of any speed, as `tamiz bench` prints it."""
    spreads = [
        value
        for one in engines(stored).values()
        for speeds in one.get("spread", {}).values()
        for value in speeds.values()
    ]
    return f" Largest half range over rounds: {50 * max(spreads):.0f} %." if spreads else ""


def origin(stored: Stored) -> str:
    """Machine, versions, date and commit in one line."""
    record, machine = stored.record, stored.record["machine"]
    threads = record["results"].get("threads") if isinstance(record["results"], dict) else None
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    parts = [
        f"{record['date']}, commit `{record['commit']}`",
        f"{machine['processor']}, {machine['cores']} cores, {machine['isa']}, "
        f"{machine['memory_gb']} GB, load average {machine['load']}",
        versions,
    ]
    return "; ".join([*parts, f"{threads} threads"] if threads else parts) + "."


def by_processor(all_stored: list[Stored]) -> dict[str, list[Stored]]:
    """Files by processor, the last measured one first: that of the chart and of the README."""
    found: dict[str, list[Stored]] = {}
    for stored in all_stored:
        found.setdefault(stored.processor, []).append(stored)
    dates = {name: max(s.record["date"] for s in group) for name, group in found.items()}
    return dict(sorted(found.items(), key=lambda item: dates[item[0]], reverse=True))


def peers_section(all_stored: list[Stored]) -> list[str]:
    """Comparisons with other engines."""
    parts: list[str] = []
    for processor, group in by_processor(all_stored).items():
        about = [] if parts else ["![Speed by task, model and engine](speed.svg)", _PEERS]
        parts += [f"## Against other engines: {processor}", *about]
        for stored in group:
            skipped = stored.record["results"].get("skipped", {})
            note = origin(stored) + spread_note(stored)
            note += "".join(f" Not measured: {ENGINES.get(k, k)}, {w}." for k, w in skipped.items())
            parts += [f"### {stored.title}, {processor}", peers_table(stored), note]
    return parts


def ratios(all_stored: list[Stored], measure: str, length: str) -> str:
    """The smallest and the largest median ratio to llama.cpp's speed."""
    peers = [stored.record["results"].get("llama.cpp", {}) for stored in all_stored]
    found = [peer["ratio"][measure][length] for peer in peers if "ratio" in peer]
    return f"{min(found):.2f} to {max(found):.2f}"


def composition_section(all_stored: list[Stored]) -> list[str]:
    """Techniques alone and together."""
    parts = ["## Techniques together", "![Speed against loss of quality](composition.svg)"]
    for stored in all_stored:
        parts += [f"### {stored.title}: techniques", composition_table(stored), origin(stored)]
    return parts


def composition_table(stored: Stored) -> str:
    """Speed, ratio to int4 and loss of every bundle."""
    measured = charts.measured(stored.record["results"])
    contexts = sorted({int(c) for one in measured.values() for c in one["speed"]["ratio"]})
    head = ["bundle", *(f"decode at {c:,}, tok/s" for c in contexts)]
    head += [f"at {c:,} : int4" for c in contexts]
    head += ["Δppl, %", "Δppl at 2,048, %", "KL, nats", "size, MB"]
    rows = []
    for name, one in measured.items():
        speed, quality = one["speed"], one["quality"]
        cells = [speed["decode_tok_s"].get(str(c)) for c in contexts]
        cells += [speed["ratio"].get(str(c)) for c in contexts]
        cells += [100 * quality["dppl"], 100 * quality["dppl_2048"], quality["kl"]]
        cells += [one["bytes"] / 1e6 if "bytes" in one else None]
        rows.append([name, *("" if cell is None else number(cell) for cell in cells)])
    return table(head, rows)


def acceptance_section(all_stored: list[Stored]) -> list[str]:
    """Techniques in the situations that they are for."""
    head = ["technique", "situation", "baseline", "size, %", "speed", "range", "loss, %", "holds"]
    parts = ["## Where techniques hold", _ACCEPTANCE]
    for stored in all_stored:
        rows = [
            [
                found["technique"],
                found["situation"],
                shown(found["against"]),
                number(100 * found["size"]) if "size" in found else "",
                number(found["speed"]),
                " to ".join(map(number, found["speed_range"])),
                number(100 * found["loss"]),
                "yes" if found["holds"] else "no",
            ]
            for found in stored.record["results"]["rows"]
        ]
        parts += [f"### {stored.title}", table(head, rows), origin(stored)]
    return parts


def speculation_section(all_stored: list[Stored]) -> list[str]:
    """Decoding with guesses against plain decoding, by kind of answer and of guesses."""
    head = ["model", "answers", "cases", "guesses", "plain, tok/s", "with guesses, tok/s", "ratio"]
    head += ["range", "equal texts", "llama.cpp plain, tok/s", "llama.cpp look-up, tok/s"]
    rows = []
    for stored in all_stored:
        for kind, found in stored.record["results"]["summary"].items():
            if not found["cases"]:
                continue
            low, high = (number(ratio) for ratio in found["ratio_range"])
            mode = "self" if "self_tok_s" in found else "ngram"
            speeds = [found["off_tok_s"], found[f"{mode}_tok_s"], found["ratio"]]
            peer = [found.get(f"llama.cpp_{key}") for key in ("off_tok_s", "lookup_tok_s")]
            rows.append(
                [
                    stored.measured,
                    kind,
                    str(found["cases"]),
                    f"`{mode}`",
                    *map(number, speeds),
                ]
                + [f"{low} to {high}", str(found["equal"])]
                + ["" if speed is None else number(speed) for speed in peer]
            )
    return ["## Exact speculation", _SPECULATION, table(head, rows), *origins(all_stored)]


def batch_section(all_stored: list[Stored]) -> list[str]:
    """Speed of several sequences at once."""
    rows = []
    for stored in all_stored:
        found = stored.record["results"]
        bits = found.get("bits")
        equal = f"{bits['equal']} of {bits['answers']}" if bits else ""
        for sequences, speed in found["speed"].items():
            cells = [number(speed["tok_s"]), number(speed["times_alone"]), equal]
            rows.append([stored.measured, sequences, *cells])
    head = ["model", "sequences", "all together, tok/s", "times one alone", "equal answers"]
    return ["## Several sequences at once", _BATCH, table(head, rows), *origins(all_stored)]


def foreign_section(all_stored: list[Stored]) -> list[str]:
    """Builds of files that other tools quantised, against what else runs the file."""
    rows = []
    for stored in all_stored:
        results = stored.record["results"]
        bits = stored.record["settings"]["activation_bits"] or 16
        forms = {"genai, int4": results} if "genai" in results else results
        for form, found in forms.items():
            if not isinstance(found, dict):
                continue
            peer = "genai" if "genai" in found else "onnxruntime"
            differences = [row["relative_difference"] for row in found.get("agreement", [found])]
            ratio = found["ratio"]
            speeds = [
                found["tamiz"]["decode_tok_s"]["128"],
                found[peer]["decode_tok_s"]["128"],
                ratio["decode_tok_s"]["128"],
                ratio["prefill_tok_s"][PROMPT],
            ]
            told = [form, str(bits), ENGINES.get(peer, "ONNX Runtime"), *map(number, speeds)]
            rows.append([stored.measured, *told, f"{max(differences):.1e}"])
    head = ["model", "file", "bits of inputs", "other engine", "decode, tok/s", "its decode"]
    head += ["times", f"prefill of {PROMPT}, times", "largest difference of logits"]
    title = _FOREIGN_TITLES[all_stored[0].record["benchmark"]]
    return [title, _FOREIGN, table(head, rows), *origins(all_stored)]


def origins(all_stored: list[Stored]) -> list[str]:
    """Where the rows of a table of several files come from."""
    return ["\n".join(f"- {stored.title}: {origin(stored)}" for stored in all_stored)]


def neighbour_section(all_stored: list[Stored]) -> list[str]:
    """One text of an encoder alone, and beside a program that spins on one core."""
    head = ["model", "alone, ms", "beside it, ms", "slowdown", "range"]
    parts = ["## Encoders beside another program", _NEIGHBOUR]
    for stored in all_stored:
        rows = []
        for name, row in stored.record["results"].items():
            numbers = [number(row[key]) for key in ("alone_ms", "beside_ms", "slowdown")]
            rows.append([shown(name), *numbers, " to ".join(map(number, row["slowdown_range"]))])
        settings = stored.record["settings"]
        note = f"A text of {settings['length']} tokens, {settings['threads']} threads."
        parts += [f"### {stored.title}: neighbour", table(head, rows), f"{note} {origin(stored)}"]
    return parts


def other_section(benchmark: str, all_stored: list[Stored]) -> list[str]:
    """The numbers of a benchmark that has no table of its own, with their keys."""
    parts = [f"## {benchmark.replace('_', ' ').capitalize()}"]
    for stored in all_stored:
        rows = [[key, number(value)] for key, value in leaves(stored.record["results"])]
        parts += [f"### {stored.name}", table(["quantity", "value"], rows), origin(stored)]
    return parts


def leaves(value: Any, place: str = "") -> list[tuple[str, float]]:
    """All numbers inside of a value, with the keys that lead to them."""
    if isinstance(value, dict):
        inner = [(f"{place} {key}".strip(), item) for key, item in value.items()]
    elif isinstance(value, list):
        inner = [(f"{place} {index}".strip(), item) for index, item in enumerate(value, 1)]
    else:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return [(place, value)] if is_number else []
    return [leaf for key, item in inner for leaf in leaves(item, key)]
