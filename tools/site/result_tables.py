"""The tables of the page of results: one function for each kind of measurement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import charts

#: Engines of `python -m benchmarks peers` by their key, as tables and charts call them.
ENGINES = {
    "tamiz": "tamiz",
    "llama.cpp": "llama.cpp",
    "genai": "onnxruntime-genai",
    "ort-int4": "ONNX Runtime int4",
    "other": "other bundle",
}
PROMPT = "512"
_FLOAT32 = """\
WikiText-2 test, 8 windows of 1,024 tokens (`python -m benchmarks perplexity`). llama.cpp rounds the
inputs of products with quantised weights to 8 bits. "llama.cpp, float32" reads the same weights
written out in float32, and rounds nothing."""
#: Names in results that are written otherwise now.
_RENAMED = {"as stored": "source format"}
_BUDGETS = """\
The first bundle is in the source format, the others were built within limits. Δppl, its standard
error and KL are measured on windows of a text that no choice was made on (`python -m benchmarks
budgets`). The loss that the build itself measured is in the column "Δppl of the build"."""
_ACCEPTANCE = """\
Made by `python -m benchmarks acceptance`; size and speed are relative to the baseline. Holds: at
most 50 % of float32's size, 1.10 × the speed, 2 % loss (event-driven 3 %): Δppl, or a layer's
error."""
_GREEDY = """\
An answer is equal when all of its tokens are. The margin is the logit of tamiz' own token minus the
logit of the other token, where the answers part."""
_SPECULATION = """\
Each case ran once with plain decoding and once with guesses (`python -m benchmarks speculation`).
Answers "edit" change a given text, "quote" repeat parts of it, "prose" is free. The ratio is the
median over the cases, and the range is theirs."""
_BATCH = """\
Sequences that decode together in one run of the model (`python -m benchmarks batch`), and one
alone. Every sequence has to have the tokens that it has alone."""
_PEERS = """\
tamiz runs a bundle that stores the weights of a GGUF bit for bit, with a KV cache of float32.
llama.cpp (llama-cpp-python, whose version is given) runs that GGUF with a KV cache of fp16;
onnxruntime-genai quantises to int4 itself. Speeds are medians over rounds in which the engines take
turns. At long contexts a KV cache comes on top of the peak memory. The line below a table names
date, commit, machine and versions."""
_QUANTISERS = """\
All are quantisations of one reference, the dequantised GGUF, and run in tamiz. llama.cpp's have the
imatrix of the calibration that tamiz reads. "tamiz choice" has a format for each site, from
`tamiz frontier` or `tamiz build`. A choice keeps many tensors of the GGUF as they are, and
llama.cpp quantises all of them a second time: this favours tamiz, most at large sizes.
Windows are of a text that nothing was chosen on (`python -m benchmarks quantisers`)."""

_ENCODERS = """\
Every model is compared with float32. The cosine is that of embeddings, its mean and its 5 %
quantile over texts. A text agrees where its nearest other text is the same. Speed is that of a
batch, times float32, with the quartiles over rounds. "tamiz chosen" has a format for each site,
within a limit of cosine on the calibration's text (`python -m benchmarks encoders`)."""


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
        measured = settings.get("gguf") or settings.get("model") or settings.get("bundle")
        return str(measured or self.name).removesuffix(".gguf")


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
    """Files by processor; the first one is that of the chart and of the README."""
    found: dict[str, list[Stored]] = {}
    for stored in all_stored:
        found.setdefault(stored.processor, []).append(stored)
    return found


def peers_section(all_stored: list[Stored]) -> list[str]:
    """Comparisons with other engines."""
    parts: list[str] = []
    for processor, group in by_processor(all_stored).items():
        chart = [] if parts else ["![Decode and prefill by engine](speed.svg)"]
        parts += [f"## Against other engines: {processor}", *chart, _PEERS]
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


def budgets_section(all_stored: list[Stored]) -> list[str]:
    """Builds within limits against the model in its source format."""
    head = ["bundle", "size, MB", "Δppl, %", "± error, %", "Δppl of the build, %"]
    head += ["KL, nats", "windows", "decode, tok/s", "decode, times source format"]
    keys = ["mb", "dppl", "dppl_error", "own_dppl", "kl_mean", "windows", "decode_tok_s", "speed"]
    parts = ["## Builds within limits", _BUDGETS]
    for stored in all_stored:
        rows = []
        for name, found in stored.record["results"]["bundles"].items():
            percent = {key: 100 * found[key] for key in keys[1:4] if key in found}
            values = [(found | percent).get(key) for key in keys]
            cells = ("" if value is None else number(value) for value in values)
            rows.append([_RENAMED.get(name, name), *cells])
        parts += [f"### {stored.title}: limits", table(head, rows), origin(stored)]
    return parts


def acceptance_section(all_stored: list[Stored]) -> list[str]:
    """Techniques in the situations that they are for."""
    head = ["technique", "situation", "baseline", "size, %", "speed", "range", "loss, %", "holds"]
    parts = ["## Where techniques hold", _ACCEPTANCE]
    for stored in all_stored:
        rows = [
            [
                found["technique"],
                found["situation"],
                _RENAMED.get(found["against"], found["against"]),
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


def quantisers_section(all_stored: list[Stored]) -> list[str]:
    """Quantisers at their bytes, the smallest first."""
    parts = ["## Quantisers at their bytes", _QUANTISERS]
    for stored in all_stored:
        found = sorted(stored.record["results"].items(), key=lambda item: item[1]["mb"])
        rows = []
        for name, row in found:
            percent = [f"{100 * row['dppl']:.2f}", f"{100 * row['top1']:.1f}"]
            rows.append([name, number(row["mb"]), f"{row['kl']:.4f}", *percent])
        head = ["weights", "size, MB", "KL, nats", "Δppl, %", "same likeliest token, %"]
        parts += [f"### {stored.title}: quantisers", table(head, rows), origin(stored)]
    return parts


def encoders_section(all_stored: list[Stored]) -> list[str]:
    """Encoders in fewer bits, the smallest first."""
    head = ["model", "size, MB", "cosine", "5 %", "texts that agree, %", "ms", "speed", "range"]
    parts = ["## Encoders in fewer bits", _ENCODERS]
    for stored in all_stored:
        settings = stored.record["settings"]
        rows = []
        for name, row in sorted(stored.record["results"].items(), key=lambda item: item[1]["mb"]):
            cosines = [f"{row['cos_mean']:.5f}", f"{row['cos_p05']:.5f}"]
            agree = f"{100 * row['same_nearest']:.1f}"
            speeds = [number(row["ms"]), number(row["speed"])]
            spread = " to ".join(map(number, row["speed_range"]))
            rows.append([name, number(row["mb"]), *cosines, agree, *speeds, spread])
        size = f"{settings['batch']} × {settings['length']} tokens"
        note = f"{settings['texts']} texts; a batch has {size}. {origin(stored)}"
        parts += [f"### {stored.title}: encoder", table(head, rows), note]
    return parts


def perplexity_section(all_stored: list[Stored]) -> list[str]:
    """The same tokens scored by tamiz and by llama.cpp; a model a row."""
    peers = sorted({peer for stored in all_stored for peer in stored.record["results"]["ppl"]})
    peers.remove("tamiz")
    rows = []
    for stored in all_stored:
        ppl, against = (stored.record["results"][key] for key in ("ppl", "tamiz_against"))
        cells = [f"{ppl['tamiz']:.3f}"]
        for peer in peers:
            if peer in ppl:
                cells += [f"{ppl[peer]:.3f}", f"{100 * against[peer]['relative']:+.4f}"]
            else:
                cells += ["", ""]
        rows.append([stored.title, *cells])
    head = ["model", "tamiz", *(cell for peer in peers for cell in (peer, f"tamiz : {peer}, %"))]
    return ["## Perplexity on the same tokens", _FLOAT32, table(head, rows), *origins(all_stored)]


def greedy_section(all_stored: list[Stored]) -> list[str]:
    """Greedy answers of tamiz and llama.cpp to the same prompts."""
    rows = []
    for stored in all_stored:
        for peer, found in stored.record["results"].items():
            margins = [found["median_margin"], found["largest_margin"]]
            told = ["" if margin is None else number(margin) for margin in margins]
            rows.append([stored.title, peer, str(found["prompts"]), str(found["equal"]), *told])
    head = ["model", "engine", "prompts", "equal answers", "median margin", "largest margin"]
    title = "## Greedy answers to the same prompts"
    return [title, _GREEDY, table(head, rows), *origins(all_stored)]


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
                    f"{stored.title}, {stored.processor}",
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
            rows.append([f"{stored.title}, {stored.processor}", sequences, *cells])
    head = ["model", "sequences", "all together, tok/s", "times one alone", "equal answers"]
    return ["## Several sequences at once", _BATCH, table(head, rows), *origins(all_stored)]


def origins(all_stored: list[Stored]) -> list[str]:
    """Where the rows of a table of several files come from."""
    return ["\n".join(f"- {stored.title}: {origin(stored)}" for stored in all_stored)]


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
