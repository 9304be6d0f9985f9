"""Switches: a run can do without a technique.

The graph has an input ``without.TECHNIQUE`` (int64 ``[1]``) for each technique that can be switched
off, with the default 0. At 1 a run computes what a graph without the technique computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, did_you_mean

if TYPE_CHECKING:
    import onnxruntime as ort

#: What stands for the techniques that a measurement finds slower, see `tamiz.runtime.gains`.
AUTO = "auto"
_PREFIX = "without."


def switch_input(technique: str) -> str:
    """Name of the graph input that switches a technique off."""
    return _PREFIX + technique


def is_switch(name: str) -> bool:
    """Whether a graph input of this name switches a technique off."""
    return name.startswith(_PREFIX)


def switchable(session: ort.InferenceSession) -> tuple[str, ...]:
    """The techniques that a run of the session can do without."""
    names = (value.name for value in session.get_overridable_initializers())
    return tuple(name.removeprefix(_PREFIX) for name in names if is_switch(name))


def check_switches(bundle: Bundle, known: Collection[str], wanted: Iterable[str]) -> frozenset[str]:
    """The techniques that are to be switched off.

    Args:
        bundle: What they are switched off in.
        known: Those that can be.
        wanted: Those that are to be.

    Raises:
        TamizError: The bundle does not use one of them, or does not store what it replaces.
    """
    names = frozenset(wanted)
    used = bundle.manifest.techniques
    for name in sorted(names - set(known)):
        if name in used:
            raise TamizError(
                f"{bundle.path}: {name} cannot be switched off: the bundle stores nothing else to"
                f" compute with; techniques that can be: {', '.join(known) or 'none'}"
            )
        raise TamizError(
            f"{bundle.path}: {name} cannot be switched off: the bundle does not use it"
            f"{did_you_mean(name, known)}; it uses: {', '.join(used) or 'none'}"
        )
    return names
