"""The charts of the results, as SVG by matplotlib. Each names the digest of what it shows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Colours that colour-blind readers can tell apart (Okabe and Ito), by engine.
COLOURS = {
    "tamiz": "#0072b2",
    "inputs-8": "#56b4e9",
    "llama.cpp": "#e69f00",
    "openvino": "#d55e00",
    "genai": "#009e73",
    "ort-int4": "#cc79a7",
    "other": "#999999",
}
#: Engines of `python -m benchmarks peers` by their key, as tables and charts call them.
ENGINES = {
    "tamiz": "tamiz",
    "inputs-8": "tamiz, inputs of 8 bits",
    "llama.cpp": "llama.cpp",
    "openvino": "OpenVINO",
    "genai": "onnxruntime-genai",
    "ort-int4": "ONNX Runtime int4",
    "other": "other bundle",
}
BASE = "int4"
_SHOWN = "sha256 of the measurements: "


def digest(records: Mapping[str, Any]) -> str:
    """Identifies the measurements that a chart shows."""
    text = json.dumps(records, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def is_of(path: Path, digest: str) -> bool:
    """Whether a chart exists and shows the measurements of a digest."""
    return path.exists() and _SHOWN + digest in path.read_text("utf-8")


def draw(path: Path, records: Mapping[str, Any]) -> None:
    """Writes the chart of a file name: ``speed.svg`` or ``composition.svg``."""
    import matplotlib
    from matplotlib.figure import Figure

    makers = {"speed.svg": speed, "composition.svg": composition}
    settings: Any = {"svg.hashsalt": "tamiz", "svg.fonttype": "none", "font.size": 9}
    with matplotlib.rc_context(settings):
        figure = Figure(layout="constrained", facecolor="white")
        makers[path.name](figure, records)
        about = {"Date": None, "Description": _SHOWN + digest(records)}
        figure.savefig(path, metadata=about)
    # matplotlib ends lines with blanks.
    lines = [line.rstrip() for line in path.read_text("utf-8").splitlines()]
    path.write_text("\n".join(lines) + "\n", "utf-8")


def speed(figure: Any, records: Mapping[str, Any]) -> None:
    """Decode at the shortest context and prefill of 512, a group of bars for each model."""
    titles = list(records)
    found = [key for key in COLOURS if any(key in r["results"] for r in records.values())]
    figure.set_size_inches(8, 0.9 + 0.28 * len(titles) * (len(found) + 1))
    kinds = (("decode_tok_s", "decode"), ("prefill_tok_s", "prefill of 512"))
    for axes, (key, title) in zip(figure.subplots(1, 2, sharey=True), kinds, strict=True):
        for row, engine in enumerate(found):
            places, values = [], []
            for index, model in enumerate(titles):
                value = _speed(records[model]["results"].get(engine), key)
                if value is not None:
                    places.append(index * (len(found) + 1) + row)
                    values.append(value)
            name = ENGINES[engine]
            bars = axes.barh(places, values, height=0.85, color=COLOURS[engine], label=name)
            axes.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
        axes.set_title(f"{title}, tokens per second")
        axes.margins(x=0.15)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_yticks([i * (len(found) + 1) + (len(found) - 1) / 2 for i in range(len(titles))])
        axes.set_yticklabels(titles)
        axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(found))


def _speed(result: Mapping[str, Any] | None, key: str) -> float | None:
    """Speed of prompts of 512 tokens, or of decoding at the shortest context."""
    if result is None:
        return None
    speeds: dict[str, float] = result[key]
    length = "512" if key == "prefill_tok_s" else min(speeds, key=int)
    return speeds.get(length)


def measured(results: Mapping[str, Any]) -> dict[str, Any]:
    """The bundles of `benchmarks/techniques/composition.py` that have both speed and quality."""
    return {n: r for n, r in results.items() if {"quality", "speed"} <= set(r)}


def composition(figure: Any, records: Mapping[str, Any]) -> None:
    """Speed relative to int4 over the worse Δppl, a panel for each context."""
    rows = {title: measured(record["results"]) for title, record in records.items()}
    contexts = {
        title: sorted({int(c) for one in found.values() for c in one["speed"]["ratio"]})
        for title, found in rows.items()
    }
    columns = max(len(lengths) for lengths in contexts.values())
    figure.set_size_inches(3.4 * columns, 3 * len(rows))
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for line, (title, found) in zip(grid, rows.items(), strict=True):
        for axes, context in zip(line, contexts[title], strict=False):
            for name, one in found.items():
                if (ratio := one["speed"]["ratio"].get(str(context))) is not None:
                    quality = one["quality"]
                    loss = 100 * max(quality["dppl"], quality["dppl_2048"])
                    colour = COLOURS["llama.cpp" if "+" in name else "tamiz"]
                    axes.plot(loss, ratio, "o", color=colour)
                    axes.annotate(name, (loss, ratio), (4, 3), textcoords="offset points")
            axes.axhline(1, color="gray", linestyle=":")
            axes.set_title(f"{title}: decode at {context:,}")
            axes.set_xlabel("Δppl, %")
            axes.set_ylabel(f"speed : {BASE}")
            axes.margins(0.2)
