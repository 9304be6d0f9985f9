"""What the commands that run a bundle share: --without and --metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._metrics import RunMetrics

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz.runtime.gains import Gains
    from tamiz_ops.summaries import Counts


def _names(text: str) -> tuple[str, ...]:
    """Names of techniques, ``kwta,window-attention``."""
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names):
        raise click.BadParameter(
            f"{text!r} has an empty name, expected a list such as kwta,window-attention"
        )
    return names


_OPTIONS = (
    click.option(
        "--without",
        type=_names,
        default="",
        envvar="TAMIZ_WITHOUT",
        show_envvar=True,
        metavar="NAME,…",
        help="Techniques of the bundle to switch off: the command computes what a bundle without "
        "them computes. 'auto' measures steps and switches off what makes them slower, so that "
        "answers depend on the machine; 'eval' refuses it.",
    ),
    click.option(
        "--metrics",
        is_flag=True,
        help="Also print what each technique did in the runs.",
    ),
    click.option(
        "--metrics-by-layer", is_flag=True, help="As --metrics, with the values of each layer."
    ),
)


@dataclass(frozen=True)
class Running:
    """How a command runs a bundle.

    Attributes:
        without: Names of techniques that are switched off.
        metrics: Whether the metrics of techniques are shown.
        by_layer: Whether they are shown for each layer as well.
    """

    without: tuple[str, ...]
    metrics: bool
    by_layer: bool

    def counted(self, ctx: click.Context, bundle: Bundle, counts: Counts) -> RunMetrics | None:
        """The metrics of the runs of a command; None where they are not requested."""
        return RunMetrics(ctx, bundle, counts, self.by_layer) if self.metrics else None


def running_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds --without and the options of metrics, which the command gets as `running`."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        by_layer = options.pop("metrics_by_layer")
        metrics = options.pop("metrics") or by_layer
        running = Running(options.pop("without"), metrics, by_layer)
        command(running=running, **options)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


class GainsOutput:
    """What ``--without auto`` switched off, on stderr and as JSON."""

    def __init__(self, gains: Gains | None) -> None:
        """Prints nothing where `auto` was not requested."""
        self._gains = gains
        self._printed: object = None

    def print(self) -> None:
        """Prints one line for a measurement that was not printed yet."""
        if self._gains is None or self._printed is self._gains.measured:
            return
        self._printed = self._gains.measured
        if not self._gains.measured:
            click.echo("auto: no technique was measured", err=True)
            return
        context = next(iter(self._gains.measured.values())).context
        click.echo(switched_off_line(self.json()["switched_off"], context), err=True)

    def json(self) -> dict[str, Any]:
        """The key that ``--json`` adds."""
        if self._gains is None:
            return {}
        return {"switched_off": {n: asdict(g) for n, g in self._gains.switched_off.items()}}


def switched_off_line(switched_off: Mapping[str, Mapping[str, float]], context: int) -> str:
    """Says what was switched off, and why.

    Args:
        switched_off: Fields of `tamiz.runtime.gains.Gain` by technique.
        context: Tokens of the sequence that was measured.
    """
    place = f"measured at {context:,} tokens"
    if not switched_off:
        return f"auto: switched nothing off, as no technique makes a step slower, {place}"
    parts = [
        f"{name} (a step takes {gain['ratio']:.2f} ± {gain['spread']:.2f} times as long with it)"
        for name, gain in switched_off.items()
    ]
    return f"auto: switched off {', '.join(parts)}, {place}"
