"""``tamiz pass``."""

from __future__ import annotations

import inspect
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._output import print_json, print_table, size
from tamiz.cli._progress import status
from tamiz.cli._techniques import plugins

if TYPE_CHECKING:
    from tamiz.building.write.rewritten_file import Rewritten
    from tamiz.plugins import Plugins


@click.command("pass")
@click.argument("model", required=False, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The new .onnx file; must not exist."
)
@click.option(
    "--only",
    metavar="NAME,…",
    help="Passes to apply, such as `rms-norm,swiglu`; `clean-up` runs before them. Default: all"
    " that recognise structure.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare all outputs with those of MODEL after every pass; nothing is written where one"
    " differs by more than rounding.",
)
@click.option(
    "--sample",
    type=click.Path(path_type=Path),
    help="NumPy .npz file with one array per input, for --check. Default: made up from the declared"
    " types and shapes.",
)
@click.option("--list", "as_list", is_flag=True, help="List the passes in their order, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    model: Path | None,
    output: Path | None,
    only: str | None,
    check: bool,
    sample: Path | None,
    as_list: bool,
    as_json: bool,
) -> None:
    """Apply graph passes to an ONNX file.

    MODEL is any .onnx file. Passes replace parts of its graph by operators with equal results,
    some of them of the domain `tamiz`, which the library of the package tamiz-ops holds.
    """
    if as_list:
        _print_passes(plugins(ctx), as_json)
        return
    if model is None or output is None:
        raise click.UsageError("expected MODEL and -o OUTPUT, or --list")
    from tamiz.building.write.rewritten_file import rewrite_file

    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    with status(f"rewrite {model}"):
        done = rewrite_file(model, output, plugins(ctx), names, check=check, sample=sample)
    if as_json:
        files = [str(path) for path in done.files]
        print_json(asdict(done) | {"files": files})
    else:
        _print(done, output)


def _print_passes(loaded: Plugins, as_json: bool) -> None:
    from tamiz.api.passes import Phase

    rows = [
        (graph_pass.name, phase.value, (inspect.getdoc(graph_pass) or "").split("\n\n")[0])
        for phase in Phase
        for graph_pass in loaded.passes(phase)
    ]
    rows = [(name, phase, " ".join(text.split())) for name, phase, text in rows]
    if as_json:
        listed = [dict(zip(("name", "phase", "does"), row, strict=True)) for row in rows]
        print_json({"passes": listed})
    else:
        print_table(["pass", "phase", "what it does"], rows)


def _print(done: Rewritten, output: Path) -> None:
    total = sum(path.stat().st_size for path in done.files)
    checked = ", outputs equal within rounding after each" if done.checked else ""
    click.echo(f"{output}: {size(total)}, {done.before} nodes became {done.after}")
    click.echo(f"passes: {', '.join(done.passes)}{checked}")
    if done.ops:
        ops = ", ".join(f"{count} {op}" for op, count in done.ops.items())
        click.echo(f"operators of tamiz: {ops}; register the library of tamiz-ops to run them")
    reasons = Counter((note.pass_name, note.reason) for note in done.notes)
    if reasons:
        rows = [(name, str(count), reason) for (name, reason), count in reasons.items()]
        print_table(["pass", ">nodes", "unchanged because"], rows)
