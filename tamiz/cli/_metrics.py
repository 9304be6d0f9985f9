"""What the techniques of a bundle did in the runs of a command, for ``--metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import print_table
from tamiz.cli._techniques import techniques

if TYPE_CHECKING:
    from tamiz.api.technique import Technique
    from tamiz.files.bundle import Bundle
    from tamiz_ops.summaries import Counts

#: Metrics by technique: name → value, None where nothing was counted.
Values = Mapping[str, float | str | None]


class RunMetrics:
    """The metrics of a bundle's techniques.

    Attributes:
        total: By technique.
        layers: By technique and layer; a part of the model outside of the layers has its own name.
        by_layer: Whether layers are shown.
    """

    def __init__(self, ctx: click.Context, bundle: Bundle, counts: Counts, by_layer: bool) -> None:
        """Summarises what the ops counted; a technique that is not installed is left out."""
        from tamiz_ops.summaries import total

        self.by_layer = by_layer
        used = bundle.manifest.techniques
        installed = techniques(ctx) if used else {}
        self._installed = [installed[name] for name in sorted(used) if name in installed]
        self.total: dict[str, Values] = {}
        self.layers: dict[str, dict[str, Values]] = {}
        for technique in self._installed:
            shown = _settings(technique, used[technique.name])
            values = _summary(total(counts, technique.ops)) | shown
            if values:
                self.total[technique.name] = dict(sorted(values.items()))
            parts = {part: total({part: ops}, technique.ops) for part, ops in counts.items()}
            counted = sorted(((part, sums) for part, sums in parts.items() if sums), key=_rank)
            if counted:
                self.layers[technique.name] = {part: _summary(sums) for part, sums in counted}

    def json(self) -> dict[str, Any]:
        """The keys that ``--json`` adds."""
        layers = {"metrics_by_layer": self.layers} if self.by_layer else {}
        return {"metrics": self.total, **layers}

    def print(self) -> None:
        """Prints a table, and one of the layers if `by_layer`."""
        if not self.total:
            click.echo("no technique of the bundle counts anything")
            return
        units = {m.name: m.unit for technique in self._installed for m in technique.metrics}
        rows = [row for name, values in self.total.items() for row in _rows([name], values, units)]
        print_table(("technique", "metric", ">value", "unit"), rows)
        if self.by_layer:
            rows = [
                row
                for name, layers in self.layers.items()
                for layer, values in layers.items()
                for row in _rows([name, layer], values, units)
            ]
            print_table(("technique", "layer", "metric", ">value", "unit"), rows)


def _settings(technique: Technique, used: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that are settings of the build."""
    config = used.get("config", {})
    return {name: config[field] for name, field in technique.shown.items() if field in config}


def _summary(sums: Mapping[str, float]) -> dict[str, Any]:
    from tamiz_ops.summaries import summarise

    return dict(summarise(sums))


def _rank(item: tuple[str, Any]) -> tuple[bool, int, str]:
    """Orders ``layers.2`` before ``layers.10``, and both before other parts."""
    head, _, number = item[0].rpartition(".")
    layer = head == "layers" and number.isdecimal()
    return not layer, int(number) if layer else 0, item[0]


def _rows(start: list[str], values: Values, units: Mapping[str, str]) -> list[list[str]]:
    from tamiz_ops.summaries import unit_of

    return [
        [*start, name, "–" if value is None else _text(value), unit_of(name, units)]
        for name, value in values.items()
    ]


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
