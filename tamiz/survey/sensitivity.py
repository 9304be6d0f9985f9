r"""What errors of weights cost a decoder, from inputs and output gradients of its products.

    loss(ΔW) = ½ · mean over tokens t of Σ_n G_n · (ΔW x_t)_n²        G_n = E[(∂ log p / ∂y_n)²]

y = W x is a site's product, and the token behind p is drawn from the model's own distribution, so G
is the Fisher information of the output. The loss is in nats of KL divergence per token: small
errors, nearly uncorrelated between outputs and sites. At an embedding, x_t selects a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamiz.api.site import Site, SiteKind
from tamiz.survey.activations import Values, linear_inputs
from tamiz.survey.backward import Gradients, UnknownOpError, back, wanted
from tamiz.survey.gradients import Progress, surprise
from tamiz.survey.survey import Survey, reading
from tamiz_ops.formats import TILE

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: First positions of a text, which are left out: their activations differ from all others.
_FIRST = 4
#: Inputs that are kept of each site.
_SAMPLES = 128
#: Values that a window keeps, in units of the inputs and outputs of its sites; the others are of
#: attention and activation functions.
_VALUES = 2


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

    def _of_tiles(self, count: int) -> Float64:
        """Σ G of each tile; of an embedding, and where no output matters, 1."""
        if self.inputs is None or not self.outputs.any():
            return np.ones(count)
        padded = np.pad(self.outputs.astype(np.float64), (0, -len(self.outputs) % TILE))
        sums: Float64 = padded.reshape(count, TILE).sum(axis=1)
        return sums


def sensitivities(
    survey: Survey, windows: Sequence[Sequence[int]], progress: Progress, at_once: int = 1
) -> Mapping[str, Sensitivity]:
    """Sensitivities of all sites that have a weight.

    Args:
        survey: A dense decoder.
        windows: Tokens of a text.
        progress: Called for every window.
        at_once: Windows to read side by side, each with its own activations in memory.

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
    step = max(1, sum(max(0, len(window) - _FIRST) for window in windows) // _SAMPLES)

    def measure(number: int) -> tuple[dict[str, Float], dict[str, Float64]]:
        """Inputs that are kept of one window, and the sums of squared gradients of its sites."""
        values = run(windows[number])
        kept = {name: values[name][_FIRST::step].copy() for name in inputs.values()}
        random = np.random.Generator(np.random.Philox(number))
        at = {logits: surprise(values.pop(logits), random)}
        return kept, _squares(nodes, sites, values, at)

    found = []
    # One thread a window: sums must not depend on the number of threads.
    limited = threadpool_limits(1)
    with reading(survey.bundle), limited, ThreadPoolExecutor(at_once) as pool:
        progress("measure sensitivity", 0, len(windows))
        for pair in pool.map(measure, range(len(windows))):
            found.append(pair)
            progress("measure sensitivity", len(found), len(windows))
    tokens = sum(max(1, len(window) - _FIRST) for window in windows)
    result = {}
    for site in sites.values():
        if all(site.id in squares for _, squares in found):
            total = np.sum([squares[site.id] for _, squares in found], axis=0) / tokens
            x = None
            if site.kind != SiteKind.EMBEDDING:
                x = np.concatenate([kept[inputs[site.id]] for kept, _ in found])
            result[site.id] = Sensitivity(x, total.astype(np.float32))
    return result


def windows_at_once(survey: Survey, tokens: int, memory: int) -> int:
    """How many windows can be read side by side, at least 1.

    Args:
        survey: A dense decoder.
        tokens: Tokens of a window.
        memory: Bytes that their activations may take.
    """
    of_sites = sum(site.in_features + site.out_features for site in survey.sites)
    return max(1, memory // max(1, _VALUES * 4 * tokens * of_sites))


def _squares(
    nodes: Sequence[ir.Node],
    sites: Mapping[str, Site],
    values: Mapping[str, Float],
    at: dict[str, Float],
) -> dict[str, Float64]:
    """Sums over tokens of the squared gradients at the outputs of sites, by id.

    Args:
        nodes: In the order of the graph.
        sites: The sites, by the names of their nodes.
        values: What the backward pass is computed from, by name.
        at: The gradient at the graph's output, by name; holds those at other values on the way.
    """
    squares: dict[str, Float64] = {}
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
    return squares
