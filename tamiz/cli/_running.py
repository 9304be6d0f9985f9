"""What the commands that run a bundle share: --without and --metrics."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._metrics import RunMetrics
from tamiz.cli._switches import Techniques

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz_ops.summaries import Counts

_OPTIONS = (
    click.option(
        "--without",
        type=Techniques(),
        default=(),
        envvar="TAMIZ_WITHOUT",
        show_envvar=True,
        metavar="NAME,…",
        help="Techniques of DIR to switch off: the command computes what a bundle without them "
        "computes. 'auto' measures steps and switches off what makes them slower, so that answers "
        "depend on the machine; 'eval' refuses it.",
    ),
    click.option(
        "--metrics", is_flag=True, help="Also print what each technique of DIR did in the runs."
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
