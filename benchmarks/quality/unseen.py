"""Whether limits hold on text that nobody chose: six domains that do not ship with tamiz.

    tamiz export model.gguf -o model.ref
    tamiz build model.ref -o model.1 --max-dppl 0.01
    tamiz build model.ref -o model.2 --max-dppl 0.02
    python -m benchmarks unseen model.ref model.1 model.2 --wikitext wikitext2-test.txt \
        --json unseen.json

The domains are an encyclopedia (WikiText-2 test), Python's reference, sources of Python's standard
library, headers and scripts of installed packages, READMEs of installed packages, and manual pages
in languages other than English. A cell is a bundle on a domain. Δppl holds where it is within the
limit and two standard errors, KL where its mean is within ln(1 + limit).
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tamiz.evaluation.comparison import DomainLoss

#: Characters of a file, and of a domain.
FILE, DOMAIN = 6000, 160_000
_SOURCES = [
    "argparse",
    "difflib",
    "heapq",
    "ipaddress",
    "statistics",
    "tarfile",
    "textwrap",
    "zipfile",
]
_PACKAGES = ("numpy/_core/include/**/*.h", "matplotlib/**/*.js", "sphinx/**/*.js")
_MANUALS = Path("/usr/share/man")
_LANGUAGES = ("de", "fr", "es", "pl", "ru", "ja", "zh_CN", "it", "pt_BR", "tr")


def texts(wikitext: Path) -> dict[str, str]:
    """The text of each domain; the same on machines with the same packages."""
    from pydoc_data import topics

    standard, packages = (Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib"))
    folders = [packages, *(Path(entry) for entry in sys.path if entry.endswith("site-packages"))]
    files = [file for each in _PACKAGES for folder in folders for file in sorted(folder.glob(each))]
    found = {
        "encyclopedia": wikitext.read_text("utf-8"),
        "python reference": "\n\n".join(text for _, text in sorted(topics.topics.items())),
        "python sources": joined(standard / f"{name}.py" for name in _SOURCES),
        "other sources": joined(file for file in files if ".min." not in file.name),
        "package readmes": "\n\n".join(readmes()),
        "foreign manuals": "\n\n".join(manuals()),
    }
    return {name: text[:DOMAIN] for name, text in found.items()}


def joined(files: Iterable[Path]) -> str:
    """The middles of some files, one after the other."""
    parts = []
    for file in files:
        text = file.read_text("utf-8", errors="ignore")
        start = max(0, (len(text) - FILE) // 2)
        parts.append(text[start : start + FILE])
    return "\n\n".join(parts)


def readmes() -> list[str]:
    """Descriptions of the installed distributions, by name."""
    bodies = {}
    for distribution in distributions():
        text = distribution.metadata.json.get("description")
        if isinstance(text, str) and len(text) > 500:
            bodies[distribution.metadata["Name"].lower()] = text[:FILE]
    return [bodies[name] for name in sorted(bodies)]


def manuals() -> list[str]:
    """Manual pages, the languages by turns, without marks of troff."""
    pages = []
    for language in _LANGUAGES:
        files = sorted((_MANUALS / language).glob("man[158]/*.gz"))
        pages.append([plain(gzip.decompress(file.read_bytes())) for file in files[:12]])
    return [page[:1500] for turn in zip(*pages, strict=False) for page in turn]


def plain(page: bytes) -> str:
    """The text of a manual page."""
    lines = page.decode("utf-8", errors="ignore").splitlines()
    kept = [line for line in lines if not line.startswith((".", "'"))]
    return re.sub(r"\\f.|\\&|\\(?=-)", "", "\n".join(kept))


def losses(
    reference: Path, bundles: Sequence[Path], wikitext: Path, windows: int, length: int
) -> dict[str, tuple[DomainLoss, ...]]:
    """What each bundle loses on each domain."""
    from tamiz.evaluation.evaluate import compare
    from tamiz.evaluation.scores import DenseReference
    from tamiz.evaluation.windows import spread
    from tamiz.runtime.model import Model
    from tamiz.runtime.text.tokenizer import Tokenizer
    from tamiz.system.cores import cores

    dense = Model.load(reference, 1)
    tokenizer = Tokenizer(dense.bundle)
    cuts, names = [], []
    for name, text in texts(wikitext).items():
        pieces = spread(tokenizer.encode(text, bos=False), windows, length)
        cuts += pieces
        names += [name] * len(pieces)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        scores = DenseReference(dense, Path(folder))
        for path in bundles:
            compared = compare(Model.load(path, 1), scores, cuts, None, cores(), domains=names)
            found[path.name] = compared.domains
            print(path.name, compared.domains, file=sys.stderr, flush=True)
    return found


def cell(loss: DomainLoss, limit: float | None) -> dict[str, Any]:
    """What is stored of a bundle on a domain."""
    error = loss.dppl_error or 0.0
    figures = {"dppl": loss.dppl, "dppl_error": error, "kl": loss.kl}
    stored: dict[str, Any] = {name: float(f"{value:.4g}") for name, value in figures.items()}
    if limit is not None:
        most = math.log1p(limit)
        stored["dppl_holds"] = math.log1p(loss.dppl) <= most + 2 * error
        stored["kl_holds"] = loss.kl <= most
    return stored


def gate(bundle: Path) -> tuple[float | None, dict[str, Any]]:
    """The limit of a bundle's build, its size, and what the build itself measured."""
    report = json.loads((bundle / "report.json").read_text("utf-8"))
    found, size = report["gate"], round(report["totals"]["bytes_after"] / 1e6, 1)
    built: dict[str, Any] = {
        "mb": size,
        "mb_before": round(report["totals"]["bytes_before"] / 1e6, 1),
    }
    if found.get("built") is not None:
        trial = found["trials"][found["built"]]
        kept = ("dppl", "dppl_error", "kl_mean", "kl_error", "used", "predicted_tok_s")
        built |= {f"own_{name}": trial.get(name) for name in kept} | {
            "trials": len(found["trials"])
        }
        built["own_domains"] = trial.get("domains")
    return found.get("max_dppl"), built


def main() -> None:
    import click

    from benchmarks.common import record

    @click.command()
    @click.argument("reference", type=click.Path(exists=True, path_type=Path))
    @click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
    @click.option("--wikitext", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--windows", default=8, show_default=True, help="Windows of each domain.")
    @click.option("--window", default=512, show_default=True, help="Tokens of a window.")
    @click.option("--json", "output", type=click.Path(path_type=Path), required=True)
    def command(
        reference: Path,
        bundles: tuple[Path, ...],
        wikitext: Path,
        windows: int,
        window: int,
        output: Path,
    ) -> None:
        """Measures BUNDLES against REFERENCE on domains that do not ship with tamiz."""
        results: dict[str, Any] = record.earlier(output).get("bundles", {})
        for name, found in losses(reference, bundles, wikitext, windows, window).items():
            path = next(bundle for bundle in bundles if bundle.name == name)
            limit, built = gate(path)
            domains = {loss.name: cell(loss, limit) for loss in found}
            results[name] = {"max_dppl": limit, **built, "domains": domains}
        cells = [c for b in results.values() if b["max_dppl"] for c in b["domains"].values()]
        held = {k: sum(c[k] for c in cells) for k in ("dppl_holds", "kl_holds")}
        settings = {"model": reference, "windows": windows, "window": window}
        stored = {"bundles": results, "cells": len(cells), **held}
        record.write(output, "unseen", stored, settings=settings)
        print(f"{held['dppl_holds']} (Δppl) and {held['kl_holds']} (KL) of {len(cells)} cells hold")

    command()
