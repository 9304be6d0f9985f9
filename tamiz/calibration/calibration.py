"""Calibration: what the inputs of the linear sites are on a text.

For every site the mean of x² (imatrix) and some of its inputs x, a uniform sample of the tokens.
Each token draws a number from the tokens before it in its window; the tokens with the smallest
numbers are the sample; a site that keeps fewer has the first of those of a site that keeps more. So
merged calibrations hold the sample of both texts together, whatever the order (bottom-k sampling),
and two runs on one text hold the same.

Windows that judge what is built are kept beside, and not measured: no fit reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import Statistics
from tamiz.calibration.kept import fair_ranks, held_out
from tamiz.calibration.rows import Rows
from tamiz.evaluation.windows import Window, window_hash
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.survey.experts import ExpertSums

#: Tokens of a window.
WINDOW = 512
#: Most inputs that follow each other which are kept of a site.
RUN = 256
#: Windows whose tokens are kept, for predictions of losses.
KEPT_WINDOWS = 32
#: Most windows that judge: of 9 domains 8 each.
JUDGING_WINDOWS = 72


@dataclass
class Calibration:
    """Statistics of a model on a text.

    Attributes:
        model: SHA-256 that identifies the dense model; see `fingerprint`.
        inputs: Name of the input by site id; sites that read the same input share it.
        limits: Most samples that are kept, by input.
        count: Tokens that were seen.
        windows: SHA-256 of every window that was seen, in order.
        origins: The name of the text that each of them is of.
        weights: How much each of them counts.
        kept: Numbers of the windows whose tokens are kept; see `tamiz.calibration.kept`.
        tokens: The tokens of these, int32 ``[n, WINDOW]``.
        priorities: The samples' random numbers, uint64 ``[S]``, ascending.
        places: Number of the window that each sample is of, int32 ``[S]``.
        mass: Tokens that were seen, each as often as its window counts.
        sums: Σ x² by input over the same, float64 ``[K]``.
        samples: The first samples by input, at most S of K numbers.
        run_window: SHA-256 of the window that `runs` are of: the smallest.
        runs: By input, those of the last tokens of that window, as they follow each other,
            float32 ``[R, K]``, R at most the input's limit and `RUN`.
        imatrix: SHA-256 of the imatrix that `sums` are of; '' if they are of the text.
        judging: Windows that judge what is built; nothing of them was measured.
        expert_inputs: Name of the input by id of a site of experts.
        experts: Sums at these inputs over the tokens that took each expert.
    """

    model: str
    inputs: dict[str, str]
    limits: dict[str, int]
    count: int = 0
    windows: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    priorities: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))
    places: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    mass: float = 0.0
    sums: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    samples: dict[str, Rows] = field(default_factory=dict)
    run_window: str = ""
    runs: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    imatrix: str = ""
    judging: list[Window] = field(default_factory=list)
    expert_inputs: dict[str, str] = field(default_factory=dict)
    experts: dict[str, ExpertSums] = field(default_factory=dict)
    _ordered: dict[str, ref[NDArray[np.float32]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @property
    def digest(self) -> str:
        """Identifies what was measured."""
        seen = [self.model, self.limits, self.windows, self.origins, self.weights, self.imatrix]
        return hashlib.sha256(json.dumps(seen, sort_keys=True).encode()).hexdigest()

    @property
    def fitting(self) -> list[Window]:
        """The kept windows that are not held out; predictions read them."""
        numbers = self._held_out()
        return [self._window(i) for i in range(len(self.kept)) if i not in numbers]

    @property
    def held_out(self) -> list[Window]:
        """The windows that what is built is measured on: no fit sees their samples."""
        return self.judging or [self._window(i) for i in self._held_out()]

    def check_held_out(self) -> list[Window]:
        """The held-out windows.

        Raises:
            TamizError: The calibration keeps none.
        """
        if not self.held_out:
            raise TamizError(
                f"the calibration keeps {len(self.tokens)} windows of {WINDOW} tokens, expected at "
                "least 2: one to predict losses, the others to measure them"
            )
        return self.held_out

    def _window(self, index: int) -> Window:
        """A kept window."""
        number = self.kept[index]
        return Window(self.origins[number], self.tokens[index], self.weights[number])

    def _held_out(self) -> list[int]:
        """Which of the measured windows are held out: none where others judge."""
        if self.judging:
            return []
        return held_out([self.origins[number] for number in self.kept], len(self.windows))

    def statistics(self, site: str) -> Statistics | None:
        """Statistics of one site; None where its input was not measured.

        The samples are of fitting windows, not of held-out ones.
        """
        if self.expert_inputs.get(site) in self.experts:
            return self._of_experts(self.experts[self.expert_inputs[site]])
        name = self.inputs.get(site)
        if name is None or not self.count:
            return None
        imatrix = (self.sums[name] / self.mass).astype(np.float32)
        places = self.places[: len(self.samples[name])]
        order = np.argsort(places, kind="stable")
        order = order[~np.isin(places[order], [self.kept[i] for i in self._held_out()])]
        origins = np.array(self.origins, np.str_)[places[order]]
        samples = self._in_order(name, order)
        return Statistics(self.count, imatrix, samples, origins, self.runs[name])

    def _of_experts(self, found: ExpertSums) -> Statistics:
        """Statistics of a site of experts."""
        mean = found.sums.sum(axis=0) / max(1.0, found.counts.sum())
        none = np.empty((0, len(mean)), np.float32)
        imatrix = mean.astype(np.float32)
        return Statistics(self.count, imatrix, none, experts=found.means())

    def _in_order(self, name: str, order: NDArray[np.intp]) -> NDArray[np.float32]:
        """Samples of an input; the same array as long as one of its sites holds it."""
        kept = self._ordered.get(name)
        samples = None if kept is None else kept()
        if samples is None:
            samples = self.samples[name].at(order).floats()
            self._ordered[name] = ref(samples)
        return samples

    def add(
        self,
        window: Window,
        values: Mapping[str, NDArray[np.float32]],
        experts: Mapping[str, ExpertSums] = MappingProxyType({}),
    ) -> None:
        """Adds one window.

        Args:
            window: The window of T tokens.
            values: The inputs ``[T, K]`` by name.
            experts: Sums at the inputs of experts, by name.
        """
        ids = np.asarray(window.tokens, np.int32)
        digest = window_hash(window.tokens)
        seed = int(digest[:16], 16)
        priorities = np.random.Generator(np.random.Philox(seed)).integers(
            0, 1 << 63, len(ids), dtype=np.uint64
        )
        if window.weight != 1:
            share = priorities / float(1 << 63)
            drawn = -np.expm1(np.log1p(-share) / window.weight)  # the least of `weight` numbers
            priorities = (drawn * float(1 << 63)).astype(np.uint64)
        one = Calibration(self.model, self.inputs, self.limits, len(ids), [digest])
        one.origins, one.weights, one.kept = [window.origin], [window.weight], [0]
        one.tokens, one.mass = [ids.tolist()], window.weight * len(ids)
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        one.priorities, one.places = priorities[order], np.zeros(len(order), np.int32)
        one.run_window = digest
        for name, value in values.items():
            one.sums[name] = window.weight * np.square(value, dtype=np.float64).sum(axis=0)
            one.samples[name] = Rows.of(value[order[: self.limits[name]]].astype(np.float32))
            one.runs[name] = value[-min(RUN, self.limits[name]) :].astype(np.float32)
        one.experts = {name: found.times(window.weight) for name, found in experts.items()}
        self.merge(one)

    def merge(self, other: Calibration) -> None:
        """Adds what another calibration of the same model has seen."""
        both = (self, other)
        self._ordered.clear()
        for name, total in other.sums.items():
            self.sums[name] = self.sums[name] + total if name in self.sums else total
            samples = [c.samples[name] for c in both if name in c.samples]
            numbers = [c.priorities[: len(c.samples.get(name, ()))] for c in both]
            order = np.argsort(np.concatenate(numbers), kind="stable")[: self.limits[name]]
            self.samples[name] = Rows.joined(samples).at(order)
        self.expert_inputs = self.expert_inputs | other.expert_inputs
        for name, found in other.experts.items():
            self.experts[name] = self.experts[name].joined(found) if name in self.experts else found
        priorities = np.concatenate([self.priorities, other.priorities])
        places = np.concatenate([self.places, other.places + np.int32(len(self.windows))])
        order = np.argsort(priorities, kind="stable")[: max(self.limits.values())]
        self.priorities, self.places = priorities[order], places[order]
        if not self.run_window or other.run_window < self.run_window:
            self.run_window, self.runs = other.run_window, other.runs
        kept = dict(zip(self.kept, self.tokens, strict=True))
        more = zip(other.kept, other.tokens, strict=True)
        kept |= {len(self.windows) + number: tokens for number, tokens in more}
        self.count += other.count
        self.mass += other.mass
        self.windows += other.windows
        self.origins += other.origins
        self.weights += other.weights
        ranks = fair_ranks(self.origins, self.weights)
        self.kept = sorted(kept, key=lambda number: (ranks[number], number))[:KEPT_WINDOWS]
        self.tokens = [kept[number] for number in self.kept]
        self.judge_on([*self.judging, *other.judging])

    def judge_on(self, windows: Sequence[Window]) -> None:
        """Takes the windows that judge: those that were not measured, some of each text."""
        measured = set(self.windows)
        hashed = {window_hash(window.tokens): window for window in windows}
        free = [window for digest, window in hashed.items() if digest not in measured]
        ranks = fair_ranks([w.origin for w in free], [w.weight for w in free])
        order = sorted(range(len(free)), key=lambda number: (ranks[number], number))
        self.judging = [free[number] for number in sorted(order[:JUDGING_WINDOWS])]


def fingerprint(bundle: Bundle) -> str:
    """Identifies the model of a dense bundle."""
    files = {
        name: file.sha256
        for name, file in bundle.manifest.files.items()
        if name.startswith("model.onnx") or name.endswith((".onnx", ".data"))
    }
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
