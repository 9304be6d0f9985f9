r"""What errors of weights cost a decoder, from inputs and output gradients of its products.

    loss(ΔW) = ½ · mean over tokens t of Σ_n G_n · (ΔW x_t)_n²        G_n = E[(∂ log p / ∂y_n)²]

y = W x is a site's product, and the token behind p is drawn from the model's own distribution, so G
is the Fisher information of the output. The loss is in nats of KL divergence per token: small
errors, nearly uncorrelated between outputs and sites. At an embedding, x_t selects a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamiz.api.site import SiteKind
from tamiz.survey.activations import Values, linear_inputs
from tamiz.survey.backward import Gradients, UnknownOpError, back, wanted
from tamiz.survey.gradients import Progress, surprise
from tamiz.survey.survey import Survey, reading
from tamiz_ops.formats import TILE

Float = NDArray[np.float32]

#: First positions of a text, which are left out: their activations differ from all others.
_FIRST = 4
#: Inputs that are kept of each site.
_SAMPLES = 128


@dataclass(frozen=True)
class Sensitivity:
    """What errors of one site's weight cost.

    Attributes:
        inputs: Inputs x, float32 ``[S, K]``; None at an embedding.
        outputs: G, float32 ``[N]``; at an embedding ``[K]``.
    """

    inputs: Float | None
    outputs: Float

    def tiles(self, rows: int, wanted: int) -> NDArray[np.intp]:
        """Some tiles of 16 rows of a weight of `rows`: those at `wanted` equal parts of Σ G.

        A tile may occur more than once. An embedding takes tiles at equal distances.
        """
        count = -(-rows // TILE)
        middles = (np.arange(wanted) + 0.5) / wanted
        sums = np.cumsum(self._of_tiles(count))
        found: NDArray[np.intp] = np.minimum(np.searchsorted(sums, middles * sums[-1]), count - 1)
        return found

    def loss(self, tiles: NDArray[np.intp], errors: Sequence[Float]) -> float:
        """Nats per token that an error of the weight costs, from some of its rows.

        Args:
            tiles: Which tiles; see `tiles`.
            errors: Ŵ − W of the rows of each tile, float32 ``[≤ 16, K]``.
        """
        if self.inputs is None:
            of_rows = [np.square(error, dtype=np.float64) @ self.outputs for error in errors]
            return 0.5 * float(np.concatenate(of_rows).mean())
        found = []
        for tile, error in zip(tiles, errors, strict=True):
            weights = self.outputs[TILE * tile : TILE * (tile + 1)].astype(np.float64)
            squares = np.square(error @ self.inputs.T, dtype=np.float64).mean(axis=1)
            found.append(float(squares @ weights) / max(float(weights.sum()), 1e-300))
        return 0.5 * float(np.mean(found)) * float(self.outputs.sum(dtype=np.float64))

    def _of_tiles(self, count: int) -> NDArray[np.float64]:
        """Σ G of each tile; of an embedding, and where no output matters, 1."""
        if self.inputs is None or not self.outputs.any():
            return np.ones(count)
        padded = np.pad(self.outputs.astype(np.float64), (0, -len(self.outputs) % TILE))
        sums: NDArray[np.float64] = padded.reshape(count, TILE).sum(axis=1)
        return sums


def sensitivities(
    survey: Survey, windows: Sequence[Sequence[int]], progress: Progress
) -> Mapping[str, Sensitivity]:
    """Sensitivities of all sites that have a weight.

    Args:
        survey: A dense decoder.
        windows: Tokens of a text.
        progress: Called for every window.

    Returns:
        By site id.

    Raises:
        UnknownOpError: The backward pass does not know an op of the graph.
    """
    from threadpoolctl import threadpool_limits

    sites = {site.node: site for site in survey.sites if site.weight is not None}
    nodes, logits = list(survey.model.graph), survey.model.graph.outputs[0].name
    if logits != "logits":
        raise UnknownOpError(f"{logits}, expected logits")
    inputs = linear_inputs(survey)
    read = (name for node in nodes for name in wanted(node))
    names = dict.fromkeys([logits, *read, *inputs.values()])
    run = Values(survey, list(names), threads=1)
    kept: dict[str, list[Float]] = {name: [] for name in inputs.values()}
    squares: dict[str, NDArray[np.float64]] = {}
    tokens = 0
    # One thread: sums must not depend on the number of threads.
    with reading(survey.bundle), threadpool_limits(1):
        for done, window in enumerate(windows):
            progress("measure sensitivity", done, len(windows))
            values = run(window)
            step = max(1, (len(window) - _FIRST) * len(windows) // _SAMPLES)
            for name, chosen in kept.items():
                chosen.append(values[name][_FIRST::step].copy())
            at = {logits: surprise(values[logits], np.random.Generator(np.random.Philox(done)))}
            for node in reversed(nodes):
                given: Gradients = [at.pop(output.name or "", None) for output in node.outputs]
                if all(gradient is None for gradient in given):
                    continue
                site, first = sites.get(node.name or ""), given[0]
                if site is not None and first is not None:
                    square = np.einsum("tn,tn->n", first[_FIRST:], first[_FIRST:], dtype=np.float64)
                    squares[site.id] = squares.get(site.id, 0) + square
                for value, gradient in zip(node.inputs, back(node, values, given), strict=False):
                    if value is not None and value.name is not None and gradient is not None:
                        before = at.get(value.name)
                        at[value.name] = gradient if before is None else before + gradient
            tokens += max(1, len(window) - _FIRST)
    return {
        site.id: Sensitivity(
            None if site.kind == SiteKind.EMBEDDING else np.concatenate(kept[inputs[site.id]]),
            (squares[site.id] / tokens).astype(np.float32),
        )
        for site in sites.values()
        if site.id in squares
    }
