"""The charts of the results, as SVG by matplotlib. Each names the digest of what it shows."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Colours that colour-blind readers can tell apart (Okabe and Ito), by engine.
COLOURS = {
    "tamiz": "#0072b2",
    "inputs-8": "#56b4e9",
    "llama.cpp": "#e69f00",
    "openvino": "#d55e00",
    "genai": "#009e73",
    "ort-int4": "#f0e442",
    "ort-int8": "#cc79a7",
    "other": "#999999",
}
#: Engines of `python -m benchmarks` `peers` and `encoders`, by the keys of results.
ENGINES = {
    "tamiz": "tamiz, inputs of 16 bits",
    "inputs-8": "tamiz, inputs of 8 bits",
    "llama.cpp": "llama.cpp",
    "openvino": "OpenVINO",
    "genai": "onnxruntime-genai",
    "ort-int4": "ONNX Runtime int4",
    "ort-int8": "ONNX Runtime int8",
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


def speed(figure: Any, tasks: Mapping[str, Any]) -> None:
    """A panel for each task, with a group of bars for each of its rows."""
    shown = {title: rows for title, rows in tasks.items() if rows}
    lines = [list(shown)[start : start + 2] for start in range(0, len(shown), 2)]
    heights = [max(_places(shown[title])[-1] for title in line) for line in lines]
    figure.set_size_inches(8.5, 0.7 + sum(0.5 + 0.2 * height for height in heights))
    figure.suptitle("Tokens per second: longer is faster")
    grid = figure.subplots(len(lines), 2, squeeze=False, height_ratios=heights)
    by_name: dict[str, Any] = {}
    for axes, title in zip(grid.flat, shown, strict=False):
        _panel(axes, shown[title])
        axes.set_title(title)
        handles, names = axes.get_legend_handles_labels()
        by_name |= dict(zip(names, handles, strict=True))
    for axes in list(grid.flat)[len(shown) :]:
        axes.set_visible(False)
    names = [ENGINES[key] for key in COLOURS if ENGINES[key] in by_name]
    handles = [by_name[name] for name in names]
    figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)


def _panel(axes: Any, rows: Sequence[Mapping[str, Any]]) -> None:
    """The bars of a task, from above; what an engine did not run takes no place."""
    starts = _places(rows)
    bars: dict[str, list[tuple[float, float]]] = {}
    for row, start in zip(rows, starts, strict=False):
        for place, key in enumerate(key for key in COLOURS if key in row["speeds"]):
            bars.setdefault(key, []).append((start + place, row["speeds"][key]))
    for key, found in bars.items():
        places, values = zip(*found, strict=True)
        drawn = axes.barh(places, values, 0.85, color=COLOURS[key], label=ENGINES[key])
        axes.bar_label(drawn, fmt="{:,.0f}", padding=2, fontsize=8)
    axes.margins(x=0.2)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.set_xticks([])
    middles = [(here + after - 2) / 2 for here, after in itertools.pairwise(starts)]
    axes.set_yticks(middles, [row["name"] for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()


def _places(rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the bars of each row start, and where another row would."""
    return [0, *itertools.accumulate(len(row["speeds"]) + 1 for row in rows)]


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
