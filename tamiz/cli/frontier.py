"""``tamiz frontier``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._domains import domains_option, domains_read, texts_option
from tamiz.cli._limits import allowed
from tamiz.cli._options import FILE, FOLDER
from tamiz.cli._output import bar, print_table
from tamiz.cli._progress import progress_bar
from tamiz.cli._sources import source, unbuilt
from tamiz.cli._techniques import plugins
from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.calibration.calibrate import Text
    from tamiz.reporting.gate import TrialReport

#: Predicted loss of the first point, in nats per token, and columns of the longest bar.
_FIRST, _BAR = 1e-3, 30
#: Title by which a plot is recognised, in the first bytes of its file.
_TITLE, _HEAD = "tamiz frontier", 4096


@click.command("frontier")
@source
@click.option("-o", "--output", required=True, type=FILE, help="JSON file to write.")
@click.option("--plot", type=FILE, help="SVG or PNG file to draw; needs matplotlib.")
@click.option(
    "--calibration",
    type=FILE,
    help="Calibration file of 'tamiz calibrate', instead of the text that ships with tamiz.",
)
@texts_option
@domains_option
@click.option(
    "--points",
    type=click.IntRange(2, 1000),
    default=16,
    show_default=True,
    help="Number of points to predict.",
)
@click.option(
    "--measure",
    type=click.IntRange(1, 1000),
    default=3,
    show_default=True,
    help="Number of points that are built in a temporary folder and measured. They correct the "
    "predictions of the others.",
)
@click.option(
    "--keep",
    type=FOLDER,
    help="New folder that keeps the bundles of the measured points, named by size.",
)
@click.option(
    "--prefer",
    type=click.Choice(["speed", "size"]),
    default="size",
    show_default=True,
    help="Quantity to optimise at each loss: speed or size.",
)
@click.option(
    "--allow",
    metavar="NAMES",
    default="bits",
    show_default=True,
    help="What a point chooses from, separated by commas: bits (weight formats), or names of "
    "techniques.",
)
@click.pass_context
def command(
    ctx: click.Context,
    path: Path,
    output: Path,
    plot: Path | None,
    calibration: Path | None,
    texts: tuple[Text, ...],
    domains: tuple[str, ...] | None,
    points: int,
    measure: int,
    keep: Path | None,
    prefer: Any,
    allow: str,
) -> None:
    """Show size and speed against loss, before a build.

    MODEL is a dense bundle, or a file or folder that 'tamiz export' reads. Each point is the best
    choice of formats, and of techniques that --allow names, at one loss. The measured points
    correct the predicted losses of the others.
    """
    from tamiz.building.build import build
    from tamiz.building.options import Options
    from tamiz.files.outputs import write_whole
    from tamiz.files.scratch import WRITTEN, held_folder
    from tamiz.files.text_file import json_text
    from tamiz.planning.goal import Goal
    from tamiz.planning.plan import choose

    used = [p for p in (path, calibration, keep, *(t.path for t in texts)) if p is not None]
    _check_outputs(output, plot, used)
    if keep is not None and keep.exists():
        raise TamizError(f"--keep: {keep} exists, expected a new folder")
    loaded = plugins(ctx)
    goal = Goal(
        max_kl=_FIRST,
        prefer=prefer,
        allow=allowed("allow", allow, loaded.techniques()),
        points=points,
        samples=measure,
    )
    options = Options(
        calibration=calibration,
        texts=texts,
        domains=domains_read(ctx, calibration, domains),
        goal=goal,
        keep=keep,
    )
    chosen = choose(loaded.techniques())
    with (
        unbuilt(path, loaded) as dense,
        progress_bar() as progress,
        held_folder(output.resolve()) as scratch,
    ):
        report = build(dense, scratch / WRITTEN, chosen, loaded, options, progress=progress)
    frontier = [_point(trial) for trial in report.gate.trials]
    stored = report.totals.bytes_before / 1e6
    write_whole(output, json_text({"source": report.source, "mb": stored, "points": frontier}))
    _print(frontier, stored, output)
    if plot is not None:
        _draw(frontier, stored, plot)


def _point(trial: TrialReport) -> dict[str, Any]:
    return {
        "mb": (trial.bytes or 0) / 1e6,
        "predicted_tok_s": trial.predicted_tok_s,
        "predicted_dppl": trial.predicted,
        "dppl": trial.dppl,
        "dppl_error": trial.dppl_error,
        "kl_mean": trial.kl_mean,
        "kl_error": trial.kl_error,
    }


def _check_outputs(output: Path, plot: Path | None, used: list[Path]) -> None:
    """Refuses files that cannot be written, or that would replace something else.

    Args:
        output: The JSON.
        plot: The plot; None for none.
        used: What the command reads, and the folder that it makes.

    Raises:
        TamizError: Such a file, a plot that is no SVG or PNG, or matplotlib is not installed.
    """
    from tamiz.files.outputs import check_output

    check_output(output, "a result of 'tamiz frontier'", _is_result, used)
    if plot is not None:
        _matplotlib()
        if (suffix := plot.suffix).lower() not in (".svg", ".png"):
            raise TamizError(f"--plot: {plot}: found the suffix {suffix!r}, expected .svg or .png")
        check_output(plot, "a plot of 'tamiz frontier'", _is_plot, [*used, output])


def _is_result(file: Path) -> bool:
    """Whether this command wrote the file's JSON."""
    from tamiz.files.text_file import read_json

    try:
        return {"source", "mb", "points"} <= set(read_json(file))
    except TamizError:
        return False


def _is_plot(file: Path) -> bool:
    """Whether this command drew the file."""
    with file.open("rb") as opened:
        return _TITLE.encode() in opened.read(_HEAD)


def _print(points: list[dict[str, Any]], stored: float, output: Path) -> None:
    rows = [[f"{stored:.1f}", "0", "source format", bar(_BAR)]]
    for point in points:
        measured = point["dppl"] is not None
        loss = point["dppl"] if measured else point["predicted_dppl"] or 0.0
        filled = bar(max(1, round(_BAR * point["mb"] / stored)))
        rows.append(
            [f"{point['mb']:.1f}", f"{100 * loss:.2g}", "measured" if measured else "", filled]
        )
    print_table([">MB", ">Δppl, %", "", "size"], rows, str(output))


def _matplotlib() -> Any:
    """The package, with its figures.

    Raises:
        TamizError: It is not installed.
    """
    try:
        import matplotlib.figure
    except ImportError as error:
        raise TamizError(
            "--plot: matplotlib is not installed, expected what pip install 'tamiz[plot]' brings"
        ) from error
    return matplotlib


def _draw(points: list[dict[str, Any]], stored: float, plot: Path) -> None:
    """Draws the points into a file that appears when it is complete; equal points, equal bytes."""
    from tamiz.files.errors import naming
    from tamiz.files.scratch import WRITTEN, held_folder

    matplotlib = _matplotlib()
    figure = matplotlib.figure.Figure(figsize=(6, 4))
    axes = figure.subplots()
    sizes = [stored, *(point["mb"] for point in points)]
    axes.plot(sizes, [0, *(100 * (p["predicted_dppl"] or 0.0) for p in points)], label="predicted")
    measured = [point for point in points if point["dppl"] is not None]
    axes.errorbar(
        [point["mb"] for point in measured],
        [100 * point["dppl"] for point in measured],
        [100 * (point["dppl_error"] or 0.0) for point in measured],
        fmt="o",
        label="measured, with standard error",
    )
    axes.set(xlabel="megabytes of constants", ylabel="Δppl, %")
    axes.legend()
    kind, place = plot.suffix.lower().removeprefix("."), plot.resolve()
    about = {"Title": _TITLE, **({"Date": None} if kind == "svg" else {})}
    with naming(plot), held_folder(place) as scratch:
        with matplotlib.rc_context({"svg.hashsalt": _TITLE}):
            figure.savefig(scratch / WRITTEN, format=kind, metadata=about)
        (scratch / WRITTEN).replace(place)
