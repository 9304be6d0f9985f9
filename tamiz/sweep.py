"""Speed against quality of one field of a technique's configuration.

For every value the dense bundle is built with the technique on and nothing held back, scored
against dense on a text, and timed in turn with the bundle without the technique. The result is
``sweep.json`` and a curve, ``sweep.svg``, beside the bundles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz import bundle as bundles
from tamiz.bench import bundle_child, measure, medians, ratios
from tamiz.errors import TamizError

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

#: Of the curve: size, and room for the axes.
_WIDTH, _HEIGHT, _MARGIN = 480, 300, 56


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
        return cls(technique, field, tuple(values.split(",")))


def run_sweep(
    dense: Path,
    target: Path,
    sweep: Sweep,
    plugins: Plugins,
    text: str,
    calibration: Path | None = None,
    *,
    windows: int = 8,
    context: int = 128,
    threads: int = 2,
    tell: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """Builds, scores and times one bundle a value.

    Args:
        dense: Folder of a dense bundle.
        target: New folder for the bundles and the result.
        sweep: What to vary.
        plugins: The loaded plugins.
        text: Text to score on.
        calibration: A calibration's file.
        windows: Windows of 1,024 tokens to score.
        context: Tokens of context to decode from.
        threads: Threads of each engine.
        tell: Called with what is done next.

    Raises:
        TamizError: No dense bundle, an unknown technique, field or value, or too short a text.
    """
    from tamiz.build import Options, build
    from tamiz.plan import choose

    techniques = plugins.techniques()
    wanted = [{}, *({sweep.technique: {sweep.field: value}} for value in sweep.values)]
    chosen = [choose(techniques, fields) for fields in wanted]
    bundles.check_target(target)
    target.mkdir(parents=True, exist_ok=True)
    names = ["base", *(f"{sweep.technique}-{sweep.field}-{value}" for value in sweep.values)]
    options = Options(calibration=calibration, max_dppl=None)
    for name, choices in zip(names, chosen, strict=True):
        tell(f"build {name}")
        build(dense, target / name, choices, plugins, options)
    tell("score")
    quality = [_score(target / name, dense, text, windows) for name in names]
    tell("time")
    points = _time([target / name for name in names], context, threads, tell)
    for point, value, scored in zip(points, (None, *sweep.values), quality, strict=True):
        point |= {"value": value, **scored}
    report = {
        "sweep": f"{sweep.technique}.{sweep.field}",
        "context": context,
        "threads": threads,
        "windows": windows,
        "points": points,
    }
    bundles.write_json(target / "sweep.json", report)
    (target / "sweep.svg").write_text(draw(report), "utf-8")
    return report


def _score(built: Path, dense: Path, text: str, windows: int) -> dict[str, float]:
    from tamiz.evaluate import evaluate
    from tamiz.machine import cores
    from tamiz.runtime import Model

    models = Model.load(built, threads=1), Model.load(dense, threads=1)
    result = evaluate(*models, text, windows, at_once=cores())
    return {name: float(f"{result[name]:.4g}") for name in ("dppl", "kl_mean")}


def _time(
    paths: Sequence[Path], context: int, threads: int, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    children = []
    try:
        for path in paths:
            children.append(bundle_child(path, threads))
        results = measure(children, [context], tell)
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


def draw(report: dict[str, Any]) -> str:
    """The curve as SVG: decode speed over that without the technique, against Δppl in percent."""
    points = [(100 * p["dppl"], p["speed"], p["value"]) for p in report["points"]]
    right = max(x for x, _, _ in points) * 1.1 or 1.0
    low = min(0.9, *(y for _, y, _ in points))
    high = max(1.1, *(y for _, y, _ in points))

    def place(x: float, y: float) -> tuple[float, float]:
        across = _MARGIN + (_WIDTH - 2 * _MARGIN) * max(x, 0.0) / right
        return across, _HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (y - low) / (high - low)

    places = [place(x, y) for x, y, _ in points]
    curve = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    labels = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
        f'<text x="{x + 6:.1f}" y="{y - 6:.1f}">{value or "without"}</text>'
        for (x, y), (_, _, value) in zip(places, points, strict=True)
    ]
    ticks = [
        f'<text x="{_MARGIN - 8}" y="{place(0, y)[1] + 4:.1f}" text-anchor="end">{y:.2f}</text>'
        for y in (low, 1.0, high)
    ]
    ticks += [
        f'<text x="{place(x, low)[0]:.1f}" y="{_HEIGHT - _MARGIN + 18}" '
        f'text-anchor="middle">{x:.1f} %</text>'
        for x in (0.0, right / 2, right)
    ]
    axes = f"M{_MARGIN},{_MARGIN}V{_HEIGHT - _MARGIN}H{_WIDTH - _MARGIN}"
    title = f"{report['sweep']}: decode speed, times that without, against Δppl"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
            f'<text x="{_WIDTH / 2}" y="24" text-anchor="middle">{title}</text>',
            f'<path d="{axes}" fill="none" stroke="black"/>',
            f'<polyline points="{curve}" fill="none" stroke="black"/>',
            *ticks,
            *labels,
            "</svg>",
            "",
        ]
    )
