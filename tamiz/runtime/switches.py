"""Which techniques a session can switch off; see `tamiz.interface.switches`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, did_you_mean
from tamiz.interface.switches import SWITCH, is_switch

if TYPE_CHECKING:
    import onnxruntime as ort

#: What stands for the techniques that a measurement finds slower, see `tamiz.runtime.gains`.
AUTO = "auto"


def switchable(session: ort.InferenceSession) -> tuple[str, ...]:
    """The techniques that a run of the session can do without."""
    names = (value.name for value in session.get_overridable_initializers())
    return tuple(name.removeprefix(SWITCH) for name in names if is_switch(name))


def check_switches(
    bundle: Bundle, switches: Collection[str], without: Iterable[str]
) -> frozenset[str]:
    """The techniques that are to be switched off.

    Args:
        bundle: What they are switched off in.
        switches: Those that can be switched off.
        without: Those that are requested.

    Raises:
        TamizError: The bundle does not use one of them, or does not store what it replaces.
    """
    names = frozenset(without)
    used = bundle.manifest.techniques
    for name in sorted(names - set(switches)):
        if name in used:
            raise TamizError(
                f"{bundle.path}: {name} cannot be switched off: the bundle stores nothing else to"
                f" compute with; techniques that can be: {', '.join(switches) or 'none'}"
            )
        raise TamizError(
            f"{bundle.path}: {name} cannot be switched off: the bundle does not use it"
            f"{did_you_mean(name, switches)}; it uses: {', '.join(used) or 'none'}"
        )
    return names
