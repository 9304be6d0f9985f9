"""The value of ``--without``, and what ``--without auto`` switched off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from tamiz.runtime.gains import Gains


class Techniques(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """Names of techniques, ``kwta,window-attention``."""

    name = "techniques"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Parses the list."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(",")) if value else ()
        if not all(names):
            self.fail(f"{value!r} has an empty name, expected a list such as kwta,window-attention")
        return names


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
