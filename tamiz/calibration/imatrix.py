"""The mean squares of an imatrix in the place of those that a calibration has measured."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.statistics import ExpertInputs, Imatrix
from tamiz.calibration.calibration import Calibration, fingerprint
from tamiz.calibration.rows import Rows
from tamiz.files.errors import TamizError
from tamiz.files.text_file import check_regular
from tamiz.survey.experts import ExpertSums
from tamiz.survey.survey import Survey

if TYPE_CHECKING:
    from tamiz.plugins import Plugins


def read_imatrix(path: Path, surveyed: Survey, plugins: Plugins) -> Imatrix:
    """Reads a file that an installed plugin knows, and keeps what it says of a model's sites.

    Args:
        path: The file.
        surveyed: The dense bundle's graph.
        plugins: The loaded plugins.

    Raises:
        TamizError: The file cannot be read, or is of another model.
    """
    check_regular(path)
    found = plugins.read_imatrix(path)
    if found is None:
        raise TamizError(f"{path}: no installed plugin reads this file, expected an imatrix")
    model, means, experts = surveyed.bundle.path, {}, {}
    for site in surveyed.sites:
        if site.weight is None or site.id not in (found.means.keys() | found.experts.keys()):
            continue
        shape = (site.experts, site.in_features) if site.experts else (site.in_features,)
        own = found.experts.get(site.id)
        mean = found.means[site.id] if own is None else own.imatrix
        if mean.size != math.prod(shape) or (own is not None and mean.shape != shape):
            raise TamizError(
                f"{path}: {site.id}: found {mean.size} inputs, expected the "
                f"{' x '.join(map(str, shape))} of {model}; is the imatrix of another model?"
            )
        if site.experts:  # without counts all are taken to have as many tokens
            counts = np.full(site.experts, float(found.count))
            experts[site.id] = own or ExpertInputs(counts, mean.reshape(shape))
        else:
            means[site.id] = mean
    layers = max((site.layer for site in surveyed.sites if site.layer is not None), default=-1) + 1
    beyond = [name for name in (*found.means, *found.experts) if _layer(name) >= layers]
    if beyond or not (means or experts):
        raise TamizError(
            f"{path}: found {beyond[0] if beyond else 'no site of the model'}, expected the "
            f"{layers} layers of {model}; is the imatrix of another model?"
        )
    return Imatrix(found.count, means, experts)


def _layer(site: str) -> int:
    """The number of a site's layer; -1 outside of layers."""
    parts = site.split(".")
    return int(parts[1]) if parts[0] == "layers" and parts[1].isdigit() else -1


def weighed_by(calibration: Calibration | None, imatrix: Imatrix, surveyed: Survey) -> Calibration:
    """A calibration with the mean squares of an imatrix.

    Args:
        calibration: What was measured; None for a calibration that has no samples.
        imatrix: The mean squares, of sites of the model.
        surveyed: The dense bundle's graph.
    """
    means = {site: np.asarray(mean, np.float64) for site, mean in imatrix.means.items()}
    digest = hashlib.sha256()
    for site, mean in sorted(means.items()):
        digest.update(site.encode() + mean.tobytes())
    experts = {site: ExpertSums.of_means(found) for site, found in imatrix.experts.items()}
    for site, sums_of in sorted(experts.items()):
        digest.update(site.encode() + sums_of.counts.tobytes() + sums_of.sums.tobytes())
    of_experts = {site: site for site in experts}
    if calibration is None:
        none = {site: np.empty((0, len(mean)), np.float32) for site, mean in means.items()}
        return Calibration(
            fingerprint(surveyed.bundle),
            {site: site for site in means},
            dict.fromkeys(means, 1),
            imatrix.count,
            mass=float(imatrix.count),
            sums={site: imatrix.count * mean for site, mean in means.items()},
            samples={site: Rows.of(rows) for site, rows in none.items()},
            runs=none,
            imatrix=digest.hexdigest(),
            expert_inputs=of_experts,
            experts=experts,
        )
    inputs, mass = calibration.inputs, calibration.mass
    sums = {inputs[site]: mass * mean for site, mean in means.items() if site in inputs}
    sums = {**calibration.sums, **sums}
    return replace(
        calibration,
        sums=sums,
        imatrix=digest.hexdigest(),
        expert_inputs=calibration.expert_inputs | of_experts,
        experts=calibration.experts | experts,
    )
