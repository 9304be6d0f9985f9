"""``tamiz build``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._domain_scores import print_trial_domains
from tamiz.cli._domains import domains_option, domains_read, texts_option
from tamiz.cli._limits import goal, limits
from tamiz.cli._options import FILE, PATH, Workers, is_given, new_bundle, refuse_given
from tamiz.cli._output import alike, print_json, print_table, size
from tamiz.cli._progress import progress_bar
from tamiz.cli._sources import unbuilt
from tamiz.cli._techniques import (
    TechniqueCommand,
    choices,
    find_recipe,
    on_conflict,
    plugins,
    policy,
    recipe,
    switched_off,
)
from tamiz.files.errors import TamizError, UnwritableError

if TYPE_CHECKING:
    from tamiz.building.options import Options
    from tamiz.planning.choice import Choice
    from tamiz.reporting.gate import TrialReport, WholeModelGate
    from tamiz.reporting.report import Report as BuildReport


#: What would measure better, by what a gate read.
_HINTS = {
    "the model's own": "people's text may lose more: --domains all judges on it",
    "made-up inputs": "real inputs may lose more or less: give some with --sample",
}


@click.command("build", cls=TechniqueCommand)
@click.argument("source", metavar="SRC")
@new_bundle
@click.option("--report-json", type=FILE, help="File to which the report is written as well.")
@recipe
@policy
@click.option(
    "--calibration",
    type=FILE,
    help="Calibration file of 'tamiz calibrate', used to fit weights and to measure quality "
    "instead of the text that ships with tamiz.",
)
@texts_option
@domains_option
@click.option(
    "--imatrix",
    type=FILE,
    help="Imatrix file of llama.cpp (GGUF or .dat). Its mean squared inputs replace those of the "
    "calibration; samples, and the text that measures quality, still come from a calibration.",
)
@click.option(
    "--max-dppl",
    default="0.02",
    show_default=True,
    metavar="FRACTION|off",
    help="Quality budget of the whole model: largest accepted relative increase in perplexity on "
    "held-out text, mean over its domains plus two standard errors. The KL divergence is held to "
    "ln(1 + FRACTION) as well. Given alone, the build chooses a weight format for each site within "
    "it. 'off' skips the check.",
)
@click.option(
    "--min-cosine",
    default="0.99",
    show_default=True,
    metavar="FRACTION|off",
    help="Quality budget of an encoder: smallest accepted mean cosine between its embeddings and "
    "those of SRC, on held-out text. Given alone, the build chooses a weight format for "
    "each site within it. Of another model, such as a classifier or one of images: between its "
    "outputs and those of SRC, on text or the inputs of --sample. 'off' skips the check.",
)
@limits
@click.option(
    "--autotune",
    type=click.Choice(["on", "off"]),
    default="off",
    help="Try several configurations per site and keep the first that passes the gate. A policy "
    "overrides this option.  [default: on with the recipe embed, which an encoder gets where "
    "nothing is requested; else off]",
)
@click.option(
    "--strip-dense",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Drop dense weights that a technique replaced. 'off' keeps them where the technique can "
    "fall back to them. A policy overrides this option.",
)
@click.option(
    "--from-report", type=FILE, help="Repeat the decisions of this report of an earlier build."
)
@click.option(
    "samples",
    "--sample",
    type=PATH,
    multiple=True,
    help="NumPy .npz file with one valid input of SRC: an array for each input, by its name; or a "
    "folder of such files. May be given several times. The outputs of the built model on the first "
    "must be those of SRC within rounding where nothing lossy was applied. All of them measure the "
    "quality of a model that reads no text. By default the build makes up inputs.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Compare all outputs with those of SRC after every graph pass, too, before techniques "
    "change them. Saves and runs the model once for each pass. By default only the finished model "
    "is compared.",
)
@click.option("--jobs", type=Workers(), help="Number of processes that fit weights.  [default: 1]")
@click.option(
    "--backend",
    type=click.Choice(["loky", "dask"]),
    default="loky",
    show_default=True,
    help="Where weights are fitted. loky: processes of this machine; dask: the cluster at "
    "DASK_SCHEDULER_ADDRESS.",
)
@click.option("--resume", is_flag=True, help="Continue an interrupted build of OUTPUT.")
@on_conflict
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(
    ctx: click.Context, /, source: str, output: Path, report_json: Path | None, **given: Any
) -> None:
    """Make a model smaller and faster.

    SRC is a dense bundle, or a source that 'tamiz export' reads; the build then exports SRC to a
    temporary folder beside OUTPUT first.

    An interrupted build keeps its finished fits in .OUTPUT.work; --resume continues from there.
    """
    from tamiz.building.build import build
    from tamiz.files.outputs import check_output
    from tamiz.reporting.reader import is_report

    if report_json is not None:
        inputs = (given[name] for name in ("policy", "calibration", "imatrix", "from_report"))
        read = [path for path in inputs if path is not None]
        check_output(report_json, "a report", is_report, [Path(source), output, *read])
    flags = {name: value for name, value in given.items() if name.startswith("technique_")}
    chosen = choices(ctx, flags, given["recipe"])
    options = _options(ctx, given, flags, chosen)
    loaded = plugins(ctx)
    with unbuilt(source, loaded, output) as dense, progress_bar() as progress:
        report = build(dense, output, chosen, loaded, options, progress=progress)
    if report_json is not None:
        _write(report_json, report, output)
    if given["as_json"]:
        print_json(report.as_json())
    else:
        _print(output, report)


def _options(
    ctx: click.Context,
    given: Mapping[str, Any],
    flags: Mapping[str, str | None],
    chosen: Sequence[Choice],
) -> Options:
    """The options of a build, checked against each other.

    Args:
        ctx: The running command.
        given: Values of its options.
        flags: Those of techniques.
        chosen: The techniques that they choose.

    Raises:
        TamizError: Options that leave others without effect, or a value outside of its range.
    """
    from tamiz.building.options import Options
    from tamiz.survey.sample_inputs import sample_files

    report, recipe = given["from_report"], given["recipe"]
    if report is not None and (given["policy"] or recipe or any(flags.values())):
        raise TamizError(
            "--from-report decides everything, so it takes no --policy, --recipe or technique"
        )
    _refuse_idle(ctx, report, given["backend"])
    budget = _budget(ctx, given["max_dppl"], recipe)
    least = _least_cosine(ctx, given["min_cosine"], recipe)
    same = ("on_conflict", "policy", "calibration", "imatrix", "backend", "resume")
    return Options(
        **{name: given[name] for name in same},
        samples=sample_files(given["samples"]),
        check=given["check"],
        texts=given["texts"],
        domains=domains_read(ctx, given["calibration"], given["domains"]),
        autotune=_autotune(ctx, given["autotune"], recipe),
        strip_dense=given["strip_dense"] == "on",
        max_dppl=budget,
        min_cosine=least,
        jobs=given["jobs"] or 1,
        report=report,
        goal=goal(ctx, budget, least, chosen),
        off=switched_off(ctx, flags),
    )


def _refuse_idle(ctx: click.Context, from_report: Path | None, backend: str) -> None:
    """Refuses options that a report or a cluster would leave without effect."""
    if from_report is not None:
        decided = ("max_dppl", "min_cosine", "autotune", "strip_dense", "on_conflict")
        where = "with --from-report, which repeats all decisions of the report"
        refuse_given(ctx, *decided, where=where, other="--from-report")
    if backend != "loky":
        where = f"with --backend={backend}, as the cluster has its own"
        refuse_given(ctx, "jobs", where=where, other="--backend")


def _write(file: Path, report: BuildReport, bundle: Path) -> None:
    from tamiz.files.outputs import write_whole
    from tamiz.files.text_file import json_text

    try:
        write_whole(file, json_text(report.as_json()))
    except UnwritableError as error:
        raise TamizError(f"{error}; the bundle {bundle} is complete") from error


def _budget(ctx: click.Context, text: str, recipe: str | None) -> float | None:
    """The value of --max-dppl; where it is not given, that of the recipe."""
    given = is_given(ctx, "max_dppl")
    if recipe is not None and not given:
        budget = find_recipe(recipe).max_dppl
        if budget is not None:
            return budget
    return _fraction("--max-dppl", text, lambda value: 0 <= value <= 100, "to 100")


def _least_cosine(ctx: click.Context, text: str, recipe: str | None) -> float | None:
    """The value of --min-cosine; where it is not given, that of the recipe."""
    if recipe is not None and not is_given(ctx, "min_cosine"):
        least = find_recipe(recipe).min_cosine
        if least is not None:
            return least
    return _fraction("--min-cosine", text, lambda value: 0 <= value < 1, "to below 1")


def _autotune(ctx: click.Context, text: str, recipe: str | None) -> bool | None:
    """The value of --autotune; where it is not given, that of the recipe, None without one."""
    if is_given(ctx, "autotune"):
        return text == "on"
    return None if recipe is None else find_recipe(recipe).autotune


def _fraction(option: str, text: str, accepts: Callable[[float], bool], to: str) -> float | None:
    """The value of a budget; None where it is off.

    Args:
        option: Its name.
        text: What was given.
        accepts: Whether a number is in its range.
        to: The end of the range in words; it begins at 0.

    Raises:
        TamizError: No such number.
    """
    if text == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not accepts(value):
        raise TamizError(f"{option}={text}: expected a fraction from 0 {to}, or off")
    return value


def _quality(gate: WholeModelGate, trial: TrialReport) -> str:
    """What the built model loses, with standard errors and the limits."""
    from tamiz.evaluation.judges import judge_of_gate

    judge = judge_of_gate(gate)
    shown = judge.loss_words(gate, trial)
    if trial.refused:
        shown.append(f"{len(trial.refused)} sites backed off")
    trials = f"{len(gate.trials)} trials"
    return f"whole model on {judge.read_words(gate)}: {', '.join(shown)}; {trials}"


def _checked(report: BuildReport) -> str:
    """What the comparison with the dense model says."""
    from tamiz.evaluation.judges.judge import INPUTS

    if not report.check:
        return "not checked: no valid input is known; try --sample"
    passes = report.check.get("passes")
    after = f"; {passes:.0f} graph passes change no output" if passes else ""
    if report.gate.text in INPUTS:
        return f"runs{after}"
    if report.lossy:
        return f"runs; 'tamiz eval --against' measures the quality{after}"
    return f"runs; all outputs are those of dense, within rounding{after}"


def _print(output: Path, report: BuildReport) -> None:
    from tamiz.reporting.page import weights_text

    totals = report.totals
    sizes = f"{size(totals.bytes_before)} → {size(totals.bytes_after)}"
    click.echo(f"{output}: {weights_text(totals)}; {sizes}")
    _print_decisions(report)
    _print_quality(report)
    for name in report.idle:
        click.echo(f"{name} is applied nowhere; to see why: tamiz explain {output}")
    click.echo(_checked(report))
    seconds = sum((report.seconds or {}).values())
    use = "run it with: tamiz chat" if report.of_decoder else "see what is in it: tamiz inspect"
    click.echo(f"{seconds:.1f} s; {use} {output}")


def _print_decisions(report: BuildReport) -> None:
    """What was refused or dropped, and why."""
    refused = [
        (fitted.name, fitted.decision.reason.removeprefix("refused: "))
        for entry in report.sites.values()
        for fitted in entry.techniques
        if not fitted.decision.applied
    ]
    if refused:
        print_table(["refused", ">sites", "because"], alike(refused))
    for dropped in report.dropped:
        click.echo(
            f"{dropped.site}: {dropped.technique} dropped, it conflicts with another technique"
        )


def _print_quality(report: BuildReport) -> None:
    """What the whole model loses, and which techniques pay."""
    from tamiz.reporting.gate import NOTHING_LOSSY, SWITCHED_OFF

    if (trial := report.gate.result) is not None:
        click.echo(_quality(report.gate, trial))
        print_trial_domains(trial)
        if (hint := _HINTS.get(report.gate.text or "")) is not None:
            click.echo(hint)
    skipped = report.gate.skipped or SWITCHED_OFF
    if skipped.startswith(NOTHING_LOSSY):
        click.echo(skipped)
    elif report.lossy and skipped != SWITCHED_OFF:
        click.echo(f"the whole model was not measured: {skipped}")
    for entry in report.gate.paying:
        click.echo(
            f"{entry.technique} {'applied' if entry.applied else 'left out'}: {entry.reason}"
        )
