"""Makes the pages of results from stored measurements: `python tools/site/results.py [--check]`.

Reads `benchmarks/results/*.json`, which the scripts of `benchmarks/` write with ``--json``
(`benchmarks/common/record.py`). Writes `docs/results/index.md`, the charts of comparisons and of
compositions, and the README's results between its markers. Where no measurement of a kind is
stored, its chart and the README stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import charts
import front
from kernel_tables import many_rows_section
from loss_tables import (
    budgets_section,
    encoders_section,
    greedy_section,
    perplexity_section,
    quantisers_section,
    retrieval_section,
    unseen_section,
)
from processor_tables import levels_section, mca_section, quota_section
from result_tables import (
    Stored,
    acceptance_section,
    batch_section,
    by_processor,
    composition_section,
    foreign_section,
    neighbour_section,
    other_section,
    peers_section,
    speculation_section,
)
from serving_tables import exactness_section, load_section, speed_section
from zeros_tables import channels_section, zeros_section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARKERS = ("<!-- results: made by tools/site/results.py -->", "<!-- end of results -->")
_INTRO = """\
This page is made by `tools/site/results.py` from the files in `benchmarks/results`. Each file has
its machine, versions, date and commit. Speeds are medians of interleaved rounds, in tokens per
second: higher is better. [The notebook](../../lab/README.md) has everything that was measured
before, dated, also what lost.

To measure your machine: `tamiz bench small --against dense`, or `python -m benchmarks peers` with
other engines."""
_NONE = "No measurement is stored yet. [The notebook](../../lab/README.md) has dated measurements."


def load(folder: Path) -> dict[str, list[Stored]]:
    """The files of a folder by the benchmark that wrote them, in the order of their names."""
    found: dict[str, list[Stored]] = {}
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        found.setdefault(record["benchmark"], []).append(Stored(path.stem, record))
    return found


def page(found: dict[str, list[Stored]]) -> str:
    """docs/results/index.md."""
    parts = ["# Results", _INTRO, *([] if found else [_NONE])]
    sections = {
        "peers": peers_section,
        "composition": composition_section,
        "levels": levels_section,
        "many-rows": many_rows_section,
        "mca": mca_section,
        "quota": quota_section,
        "genai-folder": foreign_section,
        "quantized-onnx": foreign_section,
        "budgets": budgets_section,
        "unseen": unseen_section,
        "quantisers": quantisers_section,
        "encoders": encoders_section,
        "retrieval": retrieval_section,
        "neighbour": neighbour_section,
        "acceptance": acceptance_section,
        "zeros": zeros_section,
        "prompt-channels": channels_section,
        "speculation": speculation_section,
        "perplexity": perplexity_section,
        "greedy": greedy_section,
        "batch": batch_section,
        "serving-speed": speed_section,
        "exactness": exactness_section,
        "serving-load": load_section,
    }
    places = [*sections, *sorted(set(found) - set(sections))]
    for benchmark, all_stored in sorted(found.items(), key=lambda item: places.index(item[0])):
        make = sections.get(benchmark)
        parts += make(all_stored) if make else other_section(benchmark, all_stored)
    return "\n\n".join(parts) + "\n"


def readme(text: str, found: dict[str, list[Stored]]) -> str:
    """The README with its results; as it is where no comparison is stored."""
    if "peers" not in found:
        return text
    before, _, rest = text.partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    return "\n\n".join([before + MARKERS[0], *front.parts(found), MARKERS[1] + after])


def main() -> None:
    """Writes what is not current, or with --check names it."""
    found = load(RESULTS)
    texts = {
        ROOT / "docs" / "results" / "index.md": page(found),
        ROOT / "README.md": readme((ROOT / "README.md").read_text("utf-8"), found),
    }
    stale = [p for p, text in texts.items() if not p.exists() or p.read_text("utf-8") != text]
    drawn = {name: charts.digest(records) for name, records in _charts(found).items()}
    folder = ROOT / "docs" / "results"
    stale += [folder / n for n, digest in drawn.items() if not charts.is_of(folder / n, digest)]
    if "--check" in sys.argv:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        sys.exit(f"not current, run python tools/site/results.py: {names}" if stale else 0)
    for path in stale:
        if path in texts:
            path.write_text(texts[path], "utf-8")
        else:
            charts.draw(path, _charts(found)[path.name])


def _charts(found: dict[str, list[Stored]]) -> dict[str, dict[str, Any]]:
    """What every chart shows, of the processor that was measured last."""
    made = {}
    if "peers" in found:
        made["speed.svg"] = front.chart(found)
    if "composition" in found:
        newest = next(iter(by_processor(found["composition"]).values()))
        made["composition.svg"] = {stored.title: stored.record for stored in newest}
    return made


if __name__ == "__main__":
    main()
