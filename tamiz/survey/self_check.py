"""Compares a model with the one that it was made from: equal where nothing is lossy, else alike.

All outputs are compared, by name, on one input. A dense model has those of the .onnx file that it
was exported from, a built one those of the dense model. What only rewrites must leave every output
as it is within rounding. What a technique changes is lossy, and how much is for ``tamiz eval`` to
say; but outputs that point elsewhere are those of another model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tamiz.files.errors import TamizError
from tamiz.interface.states import decodes
from tamiz.runtime.logprobs import log_softmax
from tamiz.survey.sample_inputs import Declared, Feeds, made_up, read_sample
from tamiz.survey.whole_run import (
    HALVES,
    first_line,
    open_session,
    run,
    run_changed,
    tensors,
)

#: Largest difference that is rounding, relative to the largest number of an output, by the bytes of
#: a number: of sums in another order over the layers of a deep model.
_ROUNDING = {2: 3e-2, 4: 1e-3, 8: 1e-3}
#: The same where tensors are exact but inputs of products are rounded to 16 bits or 8.
_ROUNDED_INPUTS = 10
#: Token ids are drawn below the first of these that the vocabulary has, where nobody says its size;
#: other integers below the second, as large ones may be sizes of more than the memory.
_VOCABULARIES, _OTHERS = (256, 2), 2
#: How many times what ONNX Runtime's own optimiser changes is still rounding, and how many times
#: the usual rounding that may be.
_MARGIN, _MOST_SPREAD = 4, 20.0
#: Smallest cosine between an output and that of a lossy build: a weight in the wrong orientation
#: gives 0 ± 1 / sqrt(n) for n numbers, so it is judged from `_FEW` numbers on.
_ALIKE, _FEW = 0.1, 256
#: Largest share of whole numbers that may differ where they come from rounded ones.
_OTHER_INTEGERS = 0.01


class DifferentModelError(TamizError):
    """The built model is another one than the dense model."""


class NotRunError(DifferentModelError):
    """The installed ONNX Runtime does not run the new model."""


@dataclass(frozen=True)
class Reference:
    """What a dense model gives on one input.

    Attributes:
        model: Its file.
        feeds: The input, by name.
        outputs: What it gives, by name; numbers are NumPy arrays, sequences lists.
    """

    model: Path
    feeds: Feeds
    outputs: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        model: Path,
        vocabulary: int | None = None,
        sample: Path | None = None,
        sizes: Mapping[str, Sequence[int | str | None]] | None = None,
    ) -> Reference | None:
        """Runs a dense model.

        Args:
            model: The dense ``model.onnx``.
            vocabulary: Token ids are drawn below this; None where it is not known.
            sample: ``.npz`` file with the inputs; None to make them up.
            sizes: Dimensions of inputs, of which more is known than the model declares, by name.

        Returns:
            What it gives; None where no valid input is known.

        Raises:
            TamizError: onnxruntime cannot load the model, or it does not run on the sample.
        """
        session = _opened(model)
        if sample is not None:
            return cls._of_sample(model, session, sample)
        return cls._made_up(model, session, vocabulary, sizes or {})

    @classmethod
    def several(
        cls, model: Path, count: int, vocabulary: int | None, samples: Sequence[Path]
    ) -> list[Reference]:
        """Runs a dense model on several inputs.

        Args:
            model: The dense ``model.onnx``.
            count: How many inputs are made up.
            vocabulary: See `of`.
            samples: ``.npz`` files with an input each; none to make them up.

        Returns:
            What it gives on each; nothing where no valid input is known.

        Raises:
            TamizError: onnxruntime cannot load the model, or it does not run on a sample.
        """
        session = _opened(model)
        if samples:
            return [cls._of_sample(model, session, sample) for sample in samples]
        found: list[Reference] = []
        for draw in range(count):
            reference = cls._made_up(model, session, vocabulary, {}, draw)
            if reference is None:
                break
            found.append(reference)
        return found

    @classmethod
    def on(cls, model: Path, inputs: Iterable[Feeds], workers: int) -> list[Reference]:
        """Runs a dense model on inputs that it takes.

        Args:
            model: The dense ``model.onnx``.
            inputs: Each by name; those that the model does not take are left out.
            workers: Runs side by side.

        Raises:
            TamizError: onnxruntime cannot load the model, or it does not run.
        """
        session = _opened(model)
        names = {node.name for node in session.get_inputs()}
        kept = [{n: value for n, value in feeds.items() if n in names} for feeds in inputs]
        try:
            with ThreadPoolExecutor(workers) as pool:
                outputs = pool.map(lambda feeds: run(session, feeds), kept)
                return [cls(model, *pair) for pair in zip(kept, outputs, strict=True)]
        except Exception as error:  # onnxruntime raises a class for every status
            raise TamizError(f"{model}: does not run: {first_line(error)}") from error

    @classmethod
    def _of_sample(cls, model: Path, session: ort.InferenceSession, sample: Path) -> Reference:
        feeds = read_sample(sample, session)
        try:
            return cls(model, feeds, run(session, feeds))
        except Exception as error:
            raise TamizError(
                f"{sample}: {model} does not run on it: {first_line(error)}"
            ) from error

    @classmethod
    def _made_up(
        cls,
        model: Path,
        session: ort.InferenceSession,
        vocabulary: int | None,
        sizes: Mapping[str, Sequence[int | str | None]],
        draw: int | None = None,
    ) -> Reference | None:
        """The first made-up input that says much, else the first valid one; None where none is."""
        best = None
        below = [(vocabulary, vocabulary)] if vocabulary else [(n, _OTHERS) for n in _VOCABULARIES]
        inputs = [
            Declared(n.name, n.type, sizes.get(n.name, n.shape)) for n in session.get_inputs()
        ]
        for feeds in chain.from_iterable(made_up(inputs, *most, draw) for most in below):
            try:
                reference = cls(model, feeds, run(session, feeds))
            except Exception:  # the input is not valid; others are tried
                continue
            if reference.says_much:
                return reference
            best = best or reference
        return best

    @property
    def says_much(self) -> bool:
        """Whether all numbers are finite, and not all are 0."""
        numbers = [v for v in tensors(self.outputs.values()) if v.dtype.kind in "fc" and v.size]
        return all(np.isfinite(v).all() and v.any() for v in numbers)

    @property
    def is_drawn(self) -> bool:
        """Whether the dense model gives other numbers when it runs again."""
        session = open_session(self.model)
        run(session, self.feeds)  # sessions of one process may begin with the same draw
        again = run(session, self.feeds)
        pairs = zip(tensors(self.outputs.values()), tensors(again.values()), strict=True)
        return not all(_equal(a, b) for a, b in pairs)

    def compare(self, built: Path, *, techniques: bool, lossy: bool) -> dict[str, float]:
        """Compares a built model.

        Args:
            built: The built ``model.onnx``.
            techniques: Whether a technique changed a site.
            lossy: Whether one of them changes values.

        Returns:
            ``max_relative_error`` = max |y − ŷ| / max |y|, the largest of all outputs; and of a
            decoder's logits ``kl_mean``, the mean over tokens of KL(dense ‖ built) in nats, and
            ``top1_agreement``, a fraction. Three digits, so that they do not depend on the order
            of additions. Logits of -inf are tokens that a technique leaves out: the error is that
            of the others, and there is no ``kl_mean``.

        Raises:
            DifferentModelError: The built model does not run, lacks an output, or one differs
                more than it may.
        """
        found = self._found(built)
        # Techniques keep states of a sequence in their own way, and passes join them.
        names = [n for n in self.outputs if not n.startswith("present") or n in found]
        if techniques:
            names = [name for name in names if not name.startswith("present")]
        allowed = None if lossy else 1.0 * (_ROUNDED_INPUTS if techniques else 1)
        result = {"max_relative_error": self._most(found, names, allowed)}
        if "logits" in names and decodes(self.feeds):
            result |= _of_logits(self.outputs["logits"], found["logits"])
        return {key: float(f"{value:.3g}") for key, value in result.items()}

    def compare_export(self, dense: Path) -> None:
        """Compares a dense model with this one, the .onnx file that it was exported from.

        Inputs of products of stored weights are rounded to 16 bits, and what computes in float16
        does so in float32. Without prepacking, MatMulNBits does not round its inputs to 8 bits.

        Raises:
            DifferentModelError: As `compare`.
        """
        found, halves = self._found(dense), False
        for name, value in self.outputs.items():
            other = found.get(name)
            if all(isinstance(array, np.ndarray) for array in (value, other)):
                found[name] = _narrow(value, other)
                halves |= value.dtype in HALVES
        self._most(found, list(self.outputs), 1.0 if halves else _ROUNDED_INPUTS)

    def _found(self, model: Path) -> dict[str, Any]:
        """What another model gives on the input."""
        try:
            return run_changed(open_session(model), self.feeds)
        except Exception as error:
            raise NotRunError(f"the new model does not run: {first_line(error)}") from error

    def _most(self, found: Mapping[str, Any], names: Sequence[str], allowed: float | None) -> float:
        """The largest relative difference, where it may be as large as the model itself rounds."""
        if missing := [name for name in names if name not in found]:
            raise DifferentModelError(f"the new model lacks the output {missing[0]}")
        try:
            return self._error(found, names, allowed)
        except DifferentModelError:
            if allowed is None:
                raise
            return self._error(found, names, allowed * self._spread())

    def _error(
        self, found: Mapping[str, Any], names: Iterable[str], allowed: float | None
    ) -> float:
        """The largest relative difference of all outputs; see `_difference`."""
        errors = [0.0]
        for name in names:
            a, b = tensors([self.outputs[name]]), tensors([found[name]])
            if len(a) != len(b):
                raise DifferentModelError(f"{name} of the new model has another length")
            pairs = zip(a, b, strict=True)
            errors += [_difference(name, *pair, allowed) for pair in pairs]
        return max(errors)

    def _spread(self) -> float:
        """How much more than usual the dense model rounds: what ONNX Runtime's optimiser changes.

        Optimised or not, float16 inside of a graph is rounded in other places, and differences of
        close numbers say little.
        """
        optimised = run(open_session(self.model, optimised=True), self.feeds)
        error = self._error(optimised, self.outputs, None)
        return min(_MOST_SPREAD, max(1.0, _MARGIN * error / _ROUNDING[4]))


def _opened(model: Path) -> ort.InferenceSession:
    """A session of a dense model.

    Raises:
        TamizError: onnxruntime cannot load it.
    """
    try:
        return open_session(model)
    except Exception as error:  # onnxruntime raises a class for every status
        raise TamizError(f"{model}: the dense model does not load: {first_line(error)}") from error


def _narrow(expected: Any, found: Any) -> Any:
    """Numbers as a file of float16 gives them: rounded, and what overflows there is not known."""
    if expected.dtype not in HALVES or found.shape != expected.shape:
        return found
    with np.errstate(over="ignore"):
        return np.where(np.isfinite(expected), found.astype(expected.dtype), expected)


def _difference(name: str, expected: Any, found: Any, allowed: float | None) -> float:
    """The largest relative difference of one tensor.

    Args:
        name: Of the output.
        expected: Of the dense model.
        found: Of the built model.
        allowed: How much rounding, in units of `_ROUNDING`; None of a lossy build.

    Raises:
        DifferentModelError: It is larger than it may be.
    """
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise DifferentModelError(
            f"{name} of the new model is {found.dtype}{list(found.shape)}, expected "
            f"{expected.dtype}{list(expected.shape)}"
        )
    if expected.dtype.kind not in "fc":
        other = float(np.mean(found != expected)) if expected.size else 0.0
        if allowed is not None and other > _OTHER_INTEGERS:
            raise DifferentModelError(f"{name} of the new model differs in {other:.0%}")
        return 0.0
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = expected.astype(wide), found.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    left_out = np.isneginf(b) if name == "logits" and allowed is None else np.zeros(b.shape, bool)
    if not (same | left_out | (np.isfinite(a) & np.isfinite(b))).all():
        if allowed is None and not np.isfinite(a).all():
            return 0.0  # the dense model overflows on this input: nothing is known
        raise DifferentModelError(
            f"{name} of the new model is not finite where that of its source is"
        )
    if left_out.size and left_out.all(axis=-1).any():
        raise DifferentModelError(f"{name} of the new model leaves out every token")
    a, b = a[np.isfinite(a) & np.isfinite(b)], b[np.isfinite(a) & np.isfinite(b)]
    error = float(np.abs(a - b).max(initial=0.0) / (np.abs(a).max(initial=0.0) or 1.0))
    if allowed is not None and error > allowed * _ROUNDING.get(expected.dtype.itemsize, 1e-3):
        raise DifferentModelError(f"{name} of the new model differs by {100 * error:.3g} %")
    if allowed is None and a.size >= _FEW and _cosine(a, b) < _ALIKE:
        raise DifferentModelError(
            f"{name} of the new model has a cosine of {_cosine(a, b):.2g} with that of its source"
        )
    return error


def _equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _cosine(a: Any, b: Any) -> float:
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return 1.0 if norms == 0 else float(np.vdot(a, b).real / norms)


def _of_logits(expected: Any, found: Any) -> dict[str, float]:
    if expected.ndim == 0 or not expected.size or not np.isfinite(expected).all():
        return {}
    p, q = log_softmax(expected.astype(np.float64)), log_softmax(found.astype(np.float64))
    result = {}
    if np.isfinite(found).all():
        result["kl_mean"] = max(0.0, (np.exp(p) * (p - q)).sum(axis=-1).mean())
    result["top1_agreement"] = (expected.argmax(-1) == found.argmax(-1)).mean()
    return result
