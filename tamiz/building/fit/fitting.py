"""Fits weights: tries configurations until one passes the gate, in this process or in several.

Every fit is kept in a folder under the hash of all that it depends on, so an interrupted build
goes on where it was, and what several processes did is the same as what one would have done.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz import __version__
from tamiz.api.linear import unpacked_rows
from tamiz.api.site import Site
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit, FitError
from tamiz.building.fit.fit_file import is_fit_of, read_fit, write_fit
from tamiz.building.fit.gate import Verdict, judge
from tamiz.building.fit.quality import PERFECT, measure
from tamiz.building.fit.workers import Workers
from tamiz.files.errors import TamizError, blaming
from tamiz.planning.choice import Choice
from tamiz.planning.policy import Rules

_LOGGER = logging.getLogger(__name__)
_FITTING = threading.Lock()
#: A weight of more elements is fitted while no other such weight is, to keep memory low.
_LARGE, _FITTING_LARGE = 1 << 26, threading.Lock()

#: Fits that one configuration may try; a technique's own schedule ends here at the latest.
_MAX_ATTEMPTS = 64


@dataclass(frozen=True)
class Job:
    """One weight to fit with one technique.

    Attributes:
        site: The site.
        choice: The technique with the configuration to start from.
        rules: The policy there.
        weight: The constant as it is stored, float32 or packed; None at a composite site.
        statistics: Of the site's input.
        calibration: Identifies the calibration.
        folder: Where fits are kept.
        skip: How many of the first configurations to leave out.
    """

    site: Site
    choice: Choice
    rules: Rules
    weight: NDArray[Any] | None
    statistics: Statistics | None
    calibration: str | None
    folder: Path
    skip: int = 0


@dataclass(frozen=True)
class Attempt:
    """One configuration that was tried.

    Attributes:
        choice: The technique with this configuration.
        file: Where the fit is kept; None if the technique refused.
        metrics: Quality of the fit.
        bits_per_weight: Of the fit; None if the technique refused.
        stored: Bytes of the fit's tensors.
        verdict: What the gate said.
        seconds: How long it took, when it was made.
    """

    choice: Choice
    file: Path | None
    metrics: Mapping[str, float]
    bits_per_weight: float | None
    stored: int
    verdict: Verdict
    seconds: float

    @property
    def exact(self) -> bool:
        """Whether nothing is lost."""
        return self.metrics.get("exact") == 1

    def fit(self) -> Fit:
        """Reads the fit."""
        assert self.file is not None
        return read_fit(self.file)[0]


@dataclass(frozen=True)
class Fitted:
    """What came of one job.

    Attributes:
        site: Id of the site.
        attempts: What was tried, in order.
        best: Index of the attempt that passed, else of the one that came closest.
        passed: Whether it passed.
        choice: The configuration that the job started from.
        tried: How many of its configurations have been tried by now.
        left: How many have not.
    """

    site: str
    attempts: tuple[Attempt, ...]
    best: int
    passed: bool
    choice: Choice
    tried: int
    left: int

    @property
    def attempt(self) -> Attempt:
        """The one that passed, else the one that came closest."""
        return self.attempts[self.best]


def fit_all(
    jobs: Sequence[Job], workers: Workers, progress: Callable[[str, int, int], None]
) -> list[Fitted]:
    """Fits weights.

    Args:
        jobs: What to fit.
        workers: Processes or cluster that fit; the result does not depend on them.
        progress: Told of every job that is done, how many are, and how many there are.

    Returns:
        One result a job, in their order.
    """
    from threadpoolctl import threadpool_limits

    results: dict[int, Fitted] = {}
    order = _order(jobs)
    fit, limited = (_fit, threadpool_limits(1)) if workers.here else (_fit_alone, nullcontext())
    with limited:
        for index, result in zip(order, workers.map(fit, [jobs[i] for i in order]), strict=True):
            results[index] = result
            progress(f"fit {jobs[index].site.id}", len(results), len(jobs))
    return [results[index] for index in range(len(jobs))]


def _order(jobs: Sequence[Job]) -> list[int]:
    """Large weights at even distances from the first job on, so that none is left to be last."""
    large = [index for index, job in enumerate(jobs) if _is_large(job)]
    order = [index for index, job in enumerate(jobs) if not _is_large(job)]
    for place, index in reversed(list(enumerate(large))):
        order.insert(place * len(order) // len(large), index)
    return order


def _is_large(job: Job) -> bool:
    return job.site.in_features * job.site.out_features > _LARGE


def _fit_alone(job: Job) -> Fitted:
    """Fits a weight in a process whose threads are not known."""
    from threadpoolctl import threadpool_limits

    # The limit is the process's, so workers that are threads of one take turns.
    with _FITTING, threadpool_limits(1):
        return _fit(job)


def _fit(job: Job) -> Fitted:
    """Tries configurations in order and stops at the first that passes the gate.

    NumPy works in one thread: sums must not depend on how many work.
    """
    attempts: list[Attempt] = []
    key = _weight_key(job)
    configurations = _configurations(job)[job.skip :]
    with _FITTING_LARGE if _is_large(job) else nullcontext():
        for choice in configurations:
            attempts.append(_attempt(job, choice, key))
            if attempts[-1].verdict.refusal is None:
                break
    tried = len(attempts)
    passed = attempts[-1].verdict.refusal is None
    closest = max(range(tried), key=lambda i: attempts[i].verdict.mean or -2.0)
    best = tried - 1 if passed else closest
    left = len(configurations) - tried
    return Fitted(job.site.id, tuple(attempts), best, passed, job.choice, job.skip + tried, left)


def _configurations(job: Job) -> list[Choice]:
    """The configurations to try: the chosen one, or a schedule."""
    technique, config, tuning = job.choice.technique, job.choice.config, job.rules.tuning
    if not tuning.enabled or technique.autotune is None:
        return [job.choice]
    autotune, steps = technique.autotune, tuning.schedule
    fields: Iterable[Mapping[str, Any]] = autotune.schedule(job.site, config)
    if steps and autotune.field:
        name = autotune.field
        fields = (step if isinstance(step, Mapping) else {name: step} for step in steps)
    tried = islice(fields, tuning.max_iters or _MAX_ATTEMPTS)
    try:
        return [job.choice.with_fields(changed) for changed in tried]
    except TamizError as error:
        raise TamizError(f"autotune's schedule at {job.site.id}: {error}") from error


def _attempt(job: Job, choice: Choice, key: str) -> Attempt:
    """Makes one fit and measures it, or finds it in the folder; a damaged one is made again."""
    name = _digest([key, choice.technique.name, choice.technique.version, _dump(choice)])
    file = job.folder / f"{name}.safetensors"
    if file.exists() and not is_fit_of(file, name):
        _LOGGER.warning("%s: the fit of %s is damaged and is made again", file, job.site.id)
        file.unlink()
    if not file.exists():
        _make(job, choice, file, name)
    fit, about = read_fit(file)
    if about["error"] is not None:
        verdict = Verdict(about["error"], None, None, None)
        return Attempt(choice, None, {}, None, 0, verdict, about["seconds"])
    stored = sum(int(tensor.nbytes) for tensor in fit.tensors.values())
    verdict = judge(fit.metrics, job.rules.gate(choice.technique, job.site.kind))
    return Attempt(
        choice, file, fit.metrics, fit.bits_per_weight, stored, verdict, about["seconds"]
    )


def _make(job: Job, choice: Choice, file: Path, name: str) -> None:
    """Makes one fit.

    Args:
        job: What is fitted.
        choice: By which technique, and how.
        file: Gets the fit.
        name: Of what it is: source, site and settings. A file under another name is not used.
    """
    start = time.perf_counter()
    technique, weight, error = choice.technique, _rows(job), None
    try:
        with blaming(f"technique {technique.name}", FitError):
            fit = technique.fit(job.site, weight, job.statistics, choice.config)  # type: ignore[arg-type]
            metrics = dict(fit.metrics)
            if metrics.get("exact") == 1:
                metrics |= PERFECT
            elif technique.dequantize is not None and weight is not None:
                metrics |= measure(weight, technique.dequantize(job.site, fit), job.statistics)
    except FitError as refused:
        fit, metrics, error = Fit({}, {}, {}, 0.0), {}, str(refused)
    seconds = round(time.perf_counter() - start, 3)
    write_fit(file, name, replace(fit, metrics=metrics), {"error": error, "seconds": seconds})


def _rows(job: Job) -> NDArray[np.float32] | None:
    """W as ``[N, K]``."""
    if job.weight is None:
        return None
    if job.site.format is not None:
        return unpacked_rows(job.weight, job.site)
    return job.weight if job.site.transposed else job.weight.T


def _weight_key(job: Job) -> str:
    """Hash of what every fit of a job depends on."""
    digest = hashlib.sha256()
    if job.weight is not None:
        digest.update(np.ascontiguousarray(job.weight).data)
    return _digest([__version__, asdict(job.site), digest.hexdigest(), job.calibration])


def _dump(choice: Choice) -> dict[str, Any]:
    return choice.config.model_dump(mode="json")


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
