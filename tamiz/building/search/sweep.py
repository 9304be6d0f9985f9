"""Speed against quality of one field of a technique's configuration.

For every value the dense bundle is built with the technique on and nothing held back, scored
against dense on a text, and timed in turn with the bundle without the technique. The result is
``sweep.json`` and a curve, ``sweep.svg``, beside the bundles. A loss that is not finite is null,
and has no place on the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.building.search.candidates import rounded
from tamiz.calibration.calibrate import calibrate_on_domains
from tamiz.evaluation.bench import bundle_child, check_context, measure, medians, ratios
from tamiz.evaluation.evaluate import evaluate, steps_of
from tamiz.evaluation.windows import read_windows
from tamiz.files import bundle as bundles
from tamiz.files.errors import TamizError
from tamiz.files.text_file import write_json
from tamiz.planning.choice import step_rows
from tamiz.planning.plan import choose, parse_value
from tamiz.reporting.sweep_curve import draw
from tamiz.runtime.model import Model
from tamiz.survey.survey import Survey, survey
from tamiz.system.cores import cores

if TYPE_CHECKING:
    from tamiz.planning.choice import Choice
    from tamiz.plugins import Plugins


@dataclass(frozen=True)
class Sweep:
    """What to vary.

    Attributes:
        technique: Name of the technique.
        field: Field of its configuration.
        values: Values of the field, as on the command line.
    """

    technique: str
    field: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Reads ``kwta.k=0.9,0.8,0.7``.

        Raises:
            TamizError: It has another form.
        """
        name, _, values = text.partition("=")
        technique, _, field = name.partition(".")
        if not (technique and field and all(values.split(","))):
            raise TamizError(f"--sweep {text!r}: expected a form such as kwta.k=0.9,0.8,0.7")
        return cls(technique, field, tuple(dict.fromkeys(values.split(","))))


def run_sweep(
    dense: Path,
    target: Path,
    sweep: Sweep,
    plugins: Plugins,
    text: Path,
    calibration: Path | None = None,
    *,
    windows: int = 8,
    context: int = 128,
    threads: int = 2,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Builds, scores and times one bundle a value.

    Args:
        dense: Folder of a dense bundle.
        target: New folder for the bundles and the result; it appears when everything went well.
        sweep: What to vary.
        plugins: The loaded plugins.
        text: UTF-8 text to score on.
        calibration: A calibration's file.
        windows: Windows of 1,024 tokens to score.
        context: Tokens of context to decode from.
        threads: Threads of each engine.
        progress: Takes the name of the step that begins.

    Raises:
        TamizError: No dense bundle, an unknown technique, field or value, too short a text, a
            context beyond the model's limit, or `target` must not be written.
    """
    bundles.check_target(target, dense)
    chosen = _choices(sweep, plugins)
    model = Model.load(dense, threads=1)
    check_context(str(dense), context, model.limit)
    cuts = read_windows(text, model.bundle, windows)
    surveyed = survey(model.bundle, plugins)
    with bundles.writing(target) as folder:
        paths = [folder / name for name in chosen]
        _build(surveyed, folder, chosen, calibration, plugins, progress)
        progress("score")
        pairs = zip(paths, chosen.values(), strict=True)
        quality = [_score(path, choices, model, cuts) for path, choices in pairs]
        progress("time")
        points = _time(paths, context, threads, progress)
        for point, value, scored in zip(points, (None, *sweep.values), quality, strict=True):
            point |= {"value": value, **scored}
        report = {
            "sweep": f"{sweep.technique}.{sweep.field}",
            "context": context,
            "threads": threads,
            "windows": windows,
            "points": points,
        }
        write_json(folder / "sweep.json", report)
        drawn = [point for point in points if point["dppl"] is not None]
        if drawn:
            curve = draw({**report, "points": drawn})
            (folder / "sweep.svg").write_text(curve, "utf-8")
    return report


def _choices(sweep: Sweep, plugins: Plugins) -> dict[str, list[Choice]]:
    """What each bundle is built with, by its name; the one without the technique first."""
    techniques = plugins.techniques()
    chosen = {"base": choose(techniques)}
    for value in sweep.values:
        requested = {sweep.technique: {sweep.field: parse_value(value)}}
        chosen[f"{sweep.technique}-{sweep.field}-{value}"] = choose(techniques, requested)
    return chosen


def _build(
    surveyed: Survey,
    folder: Path,
    chosen: Mapping[str, Sequence[Choice]],
    calibration: Path | None,
    plugins: Plugins,
    progress: Callable[[str], None],
) -> None:
    """Builds all bundles from one survey and, where fits need one and none is given, from one
    calibration on the shipped text."""
    own = folder / "calibration.safetensors"
    for name, choices in chosen.items():
        file = calibration
        if file is None and any(choice.technique.calibrated for choice in choices):
            progress("calibrate")
            calibrate_on_domains(surveyed, file := own)
        progress(f"build {name}")
        options = Options(calibration=file, max_dppl=None)
        build(surveyed, folder / name, choices, plugins, options)
    own.unlink(missing_ok=True)


def _score(
    built: Path, choices: Sequence[Choice], dense: Model, windows: Sequence[Sequence[int]]
) -> dict[str, float | None]:
    """Losses of a bundle, also in steps where a technique acts on steps only; None where a loss is
    not finite."""
    steps = steps_of(step_rows(choices))
    result = evaluate(Model.load(built, threads=1), dense, windows, steps, cores())
    names = ("dppl", "kl_mean", "kl_decode")
    return {name: rounded(result[name]) for name in names if name in result}


def _time(
    paths: Sequence[Path], context: int, threads: int, progress: Callable[[str], None]
) -> list[dict[str, Any]]:
    children = []
    try:
        for path in paths:
            children.append(bundle_child(path, threads))
        results = measure(children, [context], progress)
    finally:
        for child in children:
            child.close()
    base = results[0].decode
    return [
        {
            "decode_tok_s": medians(result.decode)[str(context)],
            "speed": ratios(result.decode, base)[str(context)],
        }
        for result in results
    ]
