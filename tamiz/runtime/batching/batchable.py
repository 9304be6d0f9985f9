"""Which models run with several sequences, each of which has the bits that it has alone."""

from __future__ import annotations

from tamiz.files.bundle import MANIFEST, MODEL
from tamiz.files.errors import TamizError
from tamiz.interface.states import KEY_VALUES, LAYERS, PAST, SEQUENCES, State, stacked
from tamiz.runtime.model import Model


def check_batchable(model: Model) -> None:
    """Raises `TamizError` for a model whose sequences would not have their own bits."""
    path = model.bundle.path
    manifest = model.bundle.manifest
    if not model.has_sequences:
        raise TamizError(
            f"{path / MODEL}: has no input {SEQUENCES}, so it reads one sequence at a time; try to"
            " build the bundle again"
        )
    if other := [s.past for s in model.states if s.axis is None and not s.recent]:
        kind = other[0].removeprefix(LAYERS).removeprefix(PAST).partition(".")[0]
        named = [name for name in manifest.techniques if name.startswith(kind)]
        owner = ", ".join(named)
        advice = f"a bundle without {owner}" if owner else "to build the bundle again"
        raise TamizError(
            f"{path / MODEL}: {owner or 'a layer'} keeps {other[0]}, a state of fixed size, of one"
            f" sequence at a time, which a batch has not; try {advice}"
        )
    if not (manifest.equal_runs and model.shared_cache):
        raise TamizError(
            f"{path / MANIFEST}: equal_runs is false, so a sequence would not have the bits that it"
            " has alone; try to build the bundle again, with block-quant"
        )


def acting_in_steps(model: Model) -> set[str]:
    """Techniques that act on decode steps only, without those that are switched off."""
    return set(model.bundle.manifest.step_techniques) - set(model.without)


def is_cache(state: State) -> bool:
    """Whether a state holds keys and values."""
    return state.past.startswith((KEY_VALUES, stacked(KEY_VALUES)))
