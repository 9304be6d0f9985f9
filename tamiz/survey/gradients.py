"""Costs of errors at the inputs of a decoder's linear sites, from a backward pass.

    loss_k = ½ E[(∂ log p(token) / ∂x_k)²]                  token: drawn from the model's own p

Small errors e at a site's input cost Σ_k loss_k · e_k² nats per token of KL divergence, if errors
are nearly uncorrelated between inputs and tokens. loss is half the diagonal of the Fisher
information. At token t an error costs c_t times that (`tamiz.survey.token_costs`). onnxruntime
runs the forward pass, `tamiz.survey.backward` the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tamiz.api.site import SiteKind
from tamiz.api.statistics import Sensitivity
from tamiz.survey.activations import Values, linear_inputs
from tamiz.survey.backward.node import Float, UnknownOpError
from tamiz.survey.backward.products import has_weight
from tamiz.survey.backward.run import BackwardPass
from tamiz.survey.survey import Survey, reading
from tamiz.survey.token_costs import TokenCosts
from tamiz.system.progress import Progress

#: First positions of a text, which are left out: their activations differ from all others.
_FIRST = 4
#: Largest number of windows that are read.
_WINDOWS = 8
#: Rows of logits whose probabilities are summed at a time.
_ROWS = 16


def sensitivities(
    survey: Survey, windows: Sequence[Sequence[int]], progress: Progress
) -> Mapping[str, Sensitivity]:
    """Costs of errors at the inputs of linear sites.

    Args:
        survey: A dense decoder.
        windows: Tokens of a text; the first eight windows are read.
        progress: Called for every window.

    Returns:
        By site id.

    Raises:
        UnknownOpError: The backward pass does not know an op of the graph.
    """
    from threadpoolctl import threadpool_limits

    sites = {site.node: site.id for site in survey.sites if site.kind == SiteKind.LINEAR}
    nodes, logits = list(survey.model.graph), survey.model.graph.outputs[0].name
    if logits != "logits":
        raise UnknownOpError(f"{logits}, expected logits")
    inputs = {site: name for site, name in linear_inputs(survey).items() if site in sites.values()}
    backward = BackwardPass(nodes, sites)
    names = dict.fromkeys([logits, *backward.wanted(), *inputs.values()])
    run = Values(survey, list(names), threads=1)
    windows, count = windows[:_WINDOWS], 0
    sums: dict[str, NDArray[np.float64]] = {}
    tokens = TokenCosts(inputs, len(windows))
    # One thread: sums must not depend on the number of threads.
    with reading(survey.bundle), threadpool_limits(1):
        for done, window in enumerate(windows):
            progress("weigh inputs", done, len(windows))
            values = run.in_shape(window)
            random = np.random.Generator(np.random.Philox(done))
            drawn = surprise(values.pop(logits), random)
            lengths = {}
            for node, _, (gradient, *_) in backward.visits(values, logits, drawn):
                if (site := sites.get(node.name or "")) is not None and has_weight(node):
                    assert gradient is not None
                    squares = np.square(by_token(gradient)[_FIRST:], dtype=np.float64)
                    sums[site] = sums.get(site, 0) + squares.sum(axis=0)
                    lengths[site] = squares.sum(axis=1)
            tokens.add({name: by_token(values[name])[_FIRST:] for name in inputs.values()}, lengths)
            count += max(1, len(window) - _FIRST)
    predictors = tokens.predictors()
    return {
        site: Sensitivity((total / (2 * count)).astype(np.float32), predictors.get(site))
        for site, total in sums.items()
    }


def surprise(logits: Float, random: np.random.Generator) -> Float:
    """∂(−log p(token)) / ∂logits ``[…, V]`` for tokens drawn from p = softmax(logits)."""
    shape, logits = logits.shape, by_token(logits)
    p = np.empty_like(logits)
    drawn = random.random((len(p), 1))
    for begin in range(0, len(p), _ROWS):  # some rows at a time: float64 sums of all take memory
        rows = slice(begin, begin + _ROWS)
        part = np.exp(logits[rows] - logits[rows].max(axis=1, keepdims=True))
        part /= part.sum(axis=1, keepdims=True)
        below = np.cumsum(part, axis=1, dtype=np.float64) < drawn[rows]
        part[np.arange(len(part)), np.minimum(below.sum(axis=1), part.shape[1] - 1)] -= 1
        p[rows] = part
    return p.reshape(shape)


def by_token(values: Float) -> Float:
    """Values of one text in the shape ``[T, width]``."""
    return values.reshape(-1, values.shape[-1])
