r"""What errors of weights cost a model, from inputs and output gradients of its products.

    loss(ΔW) = ½ · mean over tokens t of Σ_n G_n · (ΔW x_t)_n²        G_n = E[(∂ log p / ∂y_n)²]

y = W x is a site's product, and the token behind p is drawn from the model's own distribution, so G
is the Fisher information of the output. The loss is in nats of KL divergence per token: small
errors, nearly uncorrelated between outputs and sites. At an embedding, x_t selects a row. Of an
encoder the loss is 1 - cosine of the embedding of a text (see `tamiz.survey.output_loss`), to which
the errors of its tokens add up:

    loss(ΔW) = ½ · mean over texts of Σ_n (Σ_t g_tn (ΔW x_t)_n)²

Of experts, G of an expert's outputs is 0 at the tokens that do not take it, so that a rare expert
costs little; x_t are the tokens that take it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.site import Site, SiteKind
from tamiz.survey.activations import Values, expert_inputs, linear_inputs
from tamiz.survey.backward.run import BackwardPass
from tamiz.survey.gradients import by_token
from tamiz.survey.output_loss import output_loss
from tamiz.survey.survey import Survey, reading
from tamiz.system.progress import Progress
from tamiz_ops.formats import TILE

Float = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: Inputs that are kept of each site.
_SAMPLES = 128
#: Inputs of experts, and the expert that each went to.
_Gone = tuple[Float, NDArray[Any]]
#: Of a window: inputs that are kept by name, those of experts by name, and what is kept of the
#: gradients of sites by id.
_Seen = tuple[dict[str, Float], dict[str, _Gone], dict[str, NDArray[Any]]]
#: Values that a window keeps, in units of the inputs and outputs of its sites; the others are of
#: attention and activation functions.
_VALUES = 2


@dataclass(frozen=True)
class WeightSensitivity:
    """What errors of one site's weight cost.

    Attributes:
        inputs: Inputs x, float32 ``[S, K]``; None at an embedding.
        outputs: G, float32 ``[N]``; at an embedding ``[K]``.
    """

    inputs: Float | None
    outputs: Float

    def tiles(self, rows: int, amount: int) -> NDArray[np.intp]:
        """Some tiles of 16 rows of a weight of `rows`: those at `amount` equal parts of Σ G.

        A tile may occur more than once. An embedding takes tiles at equal distances.
        """
        count = -(-rows // TILE)
        middles = (np.arange(amount) + 0.5) / amount
        sums = np.cumsum(self._of_tiles(count))
        indices: NDArray[np.intp] = np.minimum(np.searchsorted(sums, middles * sums[-1]), count - 1)
        return indices

    def loss(self, tiles: NDArray[np.intp], errors: Sequence[Float]) -> float:
        """Nats per token that an error of the weight costs, from some of its rows.

        Args:
            tiles: Which tiles; see `tiles`.
            errors: Ŵ − W of the rows of each tile, float32 ``[≤ 16, K]``.
        """
        if self.inputs is None:
            of_rows = [np.square(error, dtype=np.float64) @ self.outputs for error in errors]
            return 0.5 * float(np.concatenate(of_rows).mean())
        parts = []
        for tile, error in zip(tiles, errors, strict=True):
            weight = float(self.outputs[_rows(tile)].sum(dtype=np.float64))
            parts.append(self.of_tile(tile, error) / max(weight, 1e-300))
        return 0.5 * float(np.mean(parts)) * float(self.outputs.sum(dtype=np.float64))

    def of_tile(self, tile: int, error: Float) -> float:
        """Twice what an error of one tile's rows costs."""
        assert self.inputs is not None
        squares = np.square(error @ self.inputs.T, dtype=np.float64).mean(axis=1)
        return float(squares @ self.outputs[_rows(tile)].astype(np.float64))

    def _of_tiles(self, count: int) -> Float64:
        """Σ G of each tile; of an embedding, and where no output matters, 1."""
        if self.inputs is None or not self.outputs.any():
            return np.ones(count)
        padded = np.pad(self.outputs.astype(np.float64), (0, -len(self.outputs) % TILE))
        sums: Float64 = padded.reshape(count, TILE).sum(axis=1)
        return sums


@dataclass(frozen=True)
class TextWeightSensitivity(WeightSensitivity):
    """The same where the errors of the tokens of a text add up.

    Attributes:
        gradients: g of the inputs, float32 ``[S, N]``, text after text.
        texts: Number of texts, all of one length.
    """

    gradients: Float
    texts: int

    def of_tile(self, tile: int, error: Float) -> float:
        """Twice what an error of one tile's rows costs."""
        assert self.inputs is not None
        changes = (self.inputs @ error.T) * self.gradients[:, _rows(tile)]
        of_texts = changes.reshape(self.texts, -1, len(error)).sum(axis=1, dtype=np.float64)
        return float(np.square(of_texts).sum()) / self.texts


@dataclass(frozen=True)
class ExpertSensitivity(WeightSensitivity):
    """The same of experts, whose rows lie one after the other; see the module.

    Attributes:
        taken: The expert that each of the inputs went to, int32 ``[S]``.
        experts: How many there are.
    """

    taken: NDArray[np.int32]
    experts: int

    def of_tile(self, tile: int, error: Float) -> float:
        """Twice what an error of one tile's rows costs; an expert without inputs has all."""
        assert self.inputs is not None
        own = self.inputs[self.taken == tile * TILE // (len(self.outputs) // self.experts)]
        x = own if len(own) else self.inputs
        squares = np.square(error @ x.T, dtype=np.float64).mean(axis=1)
        return float(squares @ self.outputs[_rows(tile)].astype(np.float64))


def _rows(tile: int) -> slice:
    """The rows of a tile."""
    return slice(TILE * tile, TILE * (tile + 1))


def sensitivities(
    survey: Survey, windows: Sequence[Sequence[int]], progress: Progress, at_once: int = 1
) -> Mapping[str, WeightSensitivity]:
    """Sensitivities of all sites that have a weight.

    Args:
        survey: A dense decoder or encoder.
        windows: Tokens of a text; for an encoder, of several texts of one length.
        progress: Called for every window.
        at_once: Windows to read side by side, each with its own activations in memory.

    Returns:
        By site id.

    Raises:
        UnknownOpError: The backward pass does not know an op of the graph.
    """
    from threadpoolctl import threadpool_limits

    sites = {site.node: site for site in survey.sites if site.weight is not None}
    loss, inputs, of_experts = output_loss(survey), linear_inputs(survey), expert_inputs(survey)
    backward = BackwardPass(list(survey.model.graph), sites)
    chosen = [name for pair in of_experts.values() for name in pair]
    names = dict.fromkeys([loss.output, *backward.wanted(), *inputs.values(), *chosen])
    run = Values(survey, list(names), threads=1)
    first, tokens = loss.first, sum(max(0, len(window) - loss.first) for window in windows)
    step = 1 if loss.of_texts else max(1, tokens // _SAMPLES)

    def measure(number: int) -> _Seen:
        values, ids = run.in_shape(windows[number]), windows[number]
        kept = {name: by_token(values[name])[first::step].copy() for name in inputs.values()}
        taken = {id: by_token(values[name]) for id, (_, name) in of_experts.items()}
        gone = {x: _gone(values[x], taken[id], first, step) for id, (x, _) in of_experts.items()}
        random = np.random.Generator(np.random.Philox(number))
        drawn = loss.gradient(values.pop(loss.output), random)
        of_sites = (
            (sites[visit.node.name or ""], by_token(visit.outputs[0]))
            for visit in backward.visits(values, loss.output, drawn)
            if visit.node.name in sites and visit.outputs[0] is not None
        )
        if loss.of_texts:
            return kept, gone, {site.id: _of_text(site, g, ids) for site, g in of_sites}
        squares = {s.id: _squares_of(s, g, taken.get(s.id), first) for s, g in of_sites}
        return kept, gone, squares

    measured: list[_Seen] = []
    # One thread a window: sums must not depend on the number of threads.
    limited = threadpool_limits(1)
    with reading(survey.bundle), limited, ThreadPoolExecutor(at_once) as pool:
        progress("measure sensitivity", 0, len(windows))
        for seen in pool.map(measure, range(len(windows))):
            measured.append(seen)
            progress("measure sensitivity", len(measured), len(windows))
    read = inputs | {id: x for id, (x, _) in of_experts.items()}
    return {
        site.id: _joined(site, measured, read.get(site.id, ""), tokens, loss.of_texts)
        for site in sites.values()
        if all(site.id in gradients for *_, gradients in measured)
    }


def _joined(
    site: Site, measured: Sequence[_Seen], name: str, tokens: int, of_texts: bool
) -> WeightSensitivity:
    """The sensitivity of a site that reads the input `name`, from all windows."""
    given = [gradients[site.id] for *_, gradients in measured]
    if site.experts:
        own = [gone[name] for _, gone, _ in measured]
        of_each, taken = (np.concatenate(parts) for parts in zip(*own, strict=True))
        outputs = _tokens(of_each, given, tokens).outputs
        return ExpertSensitivity(of_each, outputs, taken, site.experts)
    x = None
    if site.kind != SiteKind.EMBEDDING:
        x = np.concatenate([kept[name] for kept, *_ in measured])
    return _texts(x, given) if of_texts else _tokens(x, given, tokens)


def _gone(x: Float, taken: NDArray[Any], first: int, step: int) -> _Gone:
    """Inputs ``[S, K]`` of each `step`-th token from `first` on, once for each expert that it
    takes, and these experts ``[S]``; x is ``[…, T, K]``, or ``[…, T, top, K]``."""
    x = by_token(x)
    places = np.arange(taken.size).reshape(taken.shape)[first::step].ravel()
    return x[places * len(x) // taken.size], taken.ravel()[places]


def _squares_of(site: Site, gradient: Float, taken: NDArray[Any] | None, first: int) -> Float64:
    """Sums of squares ``[N]`` of a gradient over the tokens from `first` on.

    The gradient is ``[T, N]``; of experts, of which `taken` ``[T, top]`` tells, ``[T · top, N /
    experts]``.
    """
    if taken is None:
        return _squares(gradient[first:])
    result = np.zeros((site.experts, gradient.shape[1]))
    for place, expert in enumerate(taken.ravel()):
        if place >= first * taken.shape[1]:
            result[expert] += np.square(gradient[place], dtype=np.float64)
    return result.ravel()


def _tokens(x: Float | None, squares: Sequence[Float64], tokens: int) -> WeightSensitivity:
    """From sums of squared gradients over the tokens of each window."""
    return WeightSensitivity(x, (np.sum(squares, axis=0) / max(1, tokens)).astype(np.float32))


def _texts(x: Float | None, gradients: Sequence[Float]) -> WeightSensitivity:
    """From the gradients ``[T, N]`` of each text."""
    squares = np.sum([_squares(gradient) for gradient in gradients], axis=0)
    outputs = (squares / len(gradients)).astype(np.float32)
    if x is None:
        return WeightSensitivity(None, outputs)
    return TextWeightSensitivity(x, outputs, np.concatenate(gradients), len(gradients))


def _of_text(site: Site, gradient: Float, ids: Sequence[int]) -> Float:
    """What is kept of a site's gradient ``[T, N]``: of an embedding, sums by row."""
    if site.kind != SiteKind.EMBEDDING:
        return gradient
    rows = np.unique(ids, return_inverse=True)[1]
    sums = np.zeros((rows.max() + 1, gradient.shape[1]), np.float32)
    np.add.at(sums, rows, gradient)
    return sums


def kept_of_text(survey: Survey, tokens: int) -> int:
    """Bytes of the inputs and gradients that are kept of an encoder's text.

    Args:
        survey: A dense encoder.
        tokens: Tokens of the text.
    """
    return 4 * tokens * _site_values(survey)


def windows_at_once(survey: Survey, tokens: int, memory: int) -> int:
    """How many windows can be read side by side, at least 1.

    Args:
        survey: A dense model.
        tokens: Tokens of a window.
        memory: Bytes that their activations may take.
    """
    return max(1, memory // max(1, _VALUES * 4 * tokens * _site_values(survey)))


def _site_values(survey: Survey) -> int:
    """Inputs and outputs of all sites for one token."""
    return sum(
        site.top * (site.in_features + site.out_features // site.experts)
        if site.experts
        else site.in_features + site.out_features
        for site in survey.sites
    )


def _squares(gradient: Float) -> Float64:
    """Sums over tokens of the squares of ``[T, N]``."""
    sums: Float64 = np.einsum("tn,tn->n", gradient, gradient, dtype=np.float64)
    return sums
