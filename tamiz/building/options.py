"""How a build decides and works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tamiz.calibration.calibrate import Text
from tamiz.calibration.domains import DOMAINS
from tamiz.planning.goal import Goal


@dataclass(frozen=True)
class Options:
    """How a build decides and works.

    Attributes:
        on_conflict: ``error`` or ``drop``; see `tamiz.planning.plan.make_plan`.
        policy: A policy's file.
        calibration: A calibration's file; replaces the shipped text.
        texts: Texts to read beside the shipped ones, or instead of them.
        domains: Shipped domains of text to read where no calibration is given, see
            `tamiz.calibration.domains`.
        imatrix: A file whose mean squared inputs replace those of the calibration.
        autotune: Whether to try several configurations where the policy does not say; None for
            what a recipe says.
        strip_dense: Whether dense weights go where the policy does not say.
        max_dppl: Largest accepted Δppl of the whole model; None for no such gate.
        min_cosine: Smallest accepted mean cosine between embeddings of an encoder and of the built
            one, or between outputs of a model of another kind; None for no such gate.
        backend: What runs the processes that fit; see `tamiz.building.fit.workers`.
        jobs: Processes that fit, where the backend does not decide.
        resume: Whether to go on with what an interrupted build of the same target has left.
        report: A report whose decisions to follow instead of making them.
        goal: Limits within which formats and techniques are chosen; replaces `max_dppl` and
            `min_cosine`. None for no choice.
        keep: Folder that gets the bundles of a frontier's measured points; None for none.
        off: Names of techniques that a build within limits must not choose.
        samples: ``.npz`` files with an input each. The built model is compared with the dense one
            on the first, and what a model that reads no text loses is measured on all. None: inputs
            are made up.
        check: Whether the outputs are compared with those of the dense model after every graph
            pass, too.
    """

    on_conflict: str = "error"
    policy: Path | None = None
    calibration: Path | None = None
    texts: tuple[Text, ...] = ()
    domains: tuple[str, ...] = DOMAINS
    imatrix: Path | None = None
    autotune: bool | None = None
    strip_dense: bool = True
    max_dppl: float | None = 0.02
    min_cosine: float | None = 0.99
    backend: str = "loky"
    jobs: int = 1
    resume: bool = False
    report: Path | None = None
    goal: Goal | None = None
    keep: Path | None = None
    off: frozenset[str] = frozenset()
    samples: tuple[Path, ...] = ()
    check: bool = False
