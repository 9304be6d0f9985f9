"""Calibrates a dense bundle: texts, files to merge, interruptions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

from tamiz.api.site import SiteKind
from tamiz.calibration import file as files
from tamiz.calibration.calibration import (
    KEPT_WINDOWS,
    RUN,
    WINDOW,
    Calibration,
    fingerprint,
)
from tamiz.calibration.domains import DOMAINS, OWN, shipped_windows
from tamiz.calibration.kept import split
from tamiz.calibration.rows import row_bytes
from tamiz.evaluation.windows import Window, window_hash
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.files.outputs import check_output
from tamiz.files.tensor_file import is_intact
from tamiz.files.text_file import read_text
from tamiz.survey.survey import Survey, survey
from tamiz.system.progress import Progress, silent

if TYPE_CHECKING:
    from tamiz.plugins import Plugins
    from tamiz.survey.activations import Activations

_SAVE_EVERY = 8
#: Windows that a model writes where there is no text, and where there is other text as well.
_GENERATED, _OWN_BESIDE = 24, 8
#: Inputs to keep of a head: what is fitted to them has as many parameters as a layer.
_HEAD_SAMPLES = 8192
#: What is read and kept unless the caller says otherwise.
_WINDOWS, _SAMPLES, _MEMORY = 64, 4096, 1 << 30


@dataclass(frozen=True)
class Text:
    """A text to calibrate on.

    Attributes:
        path: Its file, in UTF-8.
        weight: How much each of its tokens counts in means, and how likely its inputs are kept,
            relative to a text of weight 1; above 0.
    """

    path: Path
    weight: float = 1.0


class Known(NamedTuple):
    """Windows of text.

    Attributes:
        fitting: Those that fits and predictions read.
        judging: Those that what is built is measured on; none where some of the others judge.
    """

    fitting: list[Window]
    judging: list[Window]


def calibrate_bundle(
    source: Path,
    target: Path,
    plugins: Plugins,
    *,
    texts: Sequence[Path | Text] = (),
    domains: Sequence[str] | None = None,
    merged: Sequence[Path] = (),
    windows: int = _WINDOWS,
    samples: int = _SAMPLES,
    memory: int = _MEMORY,
    threads: int | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Measures the inputs of a model's sites and writes the calibration file.

    Args:
        source: Folder of a dense bundle.
        target: The file to write; ``<target>.part`` holds what an interrupted run has measured.
        plugins: The loaded plugins.
        texts: UTF-8 texts, or such with weights.
        domains: Shipped domains to read as well, or `OWN` for what the model itself writes; None
            for all shipped ones where neither texts nor files are given.
        merged: Calibration files of the same model to take in.
        windows: Windows of 512 tokens to read of each text.
        samples: Inputs to keep of every site; of heads 8,192.
        memory: Bytes that all kept inputs may take.
        threads: Threads of onnxruntime.
        progress: Called with every step.

    Raises:
        TamizError: No dense bundle, an unreadable or too short text, a file of another model, or
            `target` cannot be written.
    """
    bundle = Bundle.open_dense(source)
    weighted = [text if isinstance(text, Text) else Text(text) for text in texts]
    paths = (*(text.path for text in weighted), *merged)
    read = [source, *(path for path in paths if not path.is_dir())]
    check_output(target, "a calibration", files.is_calibration, read)
    others = [files.load(path, bundle) for path in merged]
    if domains is None:
        domains = () if weighted or others else DOMAINS
    if others and not (weighted or domains):
        result = others.pop(0)
    else:
        known = read_texts(bundle, weighted, domains, windows, threads, progress)
        surveyed = survey(bundle, plugins)
        result = measure(surveyed, known.fitting, target, samples, memory, threads, progress)
        result.judge_on(known.judging)
    for other in others:
        pairs = result.limits.items()
        result.limits = {name: min(limit, other.limits[name]) for name, limit in pairs}
        result.merge(other)
    files.save(result, target)
    _part(target).unlink(missing_ok=True)
    return result


def _part(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def measure(
    surveyed: Survey,
    cuts: Sequence[Window],
    target: Path,
    samples: int = _SAMPLES,
    memory: int = _MEMORY,
    threads: int | None = None,
    progress: Progress = silent,
) -> Calibration:
    """Measures the inputs of a model's sites on windows of text.

    Args:
        surveyed: The dense bundle's graph.
        cuts: The windows; see `text_windows`.
        target: Where the calibration is going to be written; ``<target>.part`` beside it holds what
            an interrupted run has measured, and this one goes on with it.
        samples: Inputs to keep of every site; of heads 8,192.
        memory: Bytes that all kept inputs may take.
        threads: Threads of onnxruntime.
        progress: Called with every window.

    Raises:
        TamizError: The memory does not hold one input of each site.
    """
    from tamiz.survey.activations import Activations

    run = Activations(surveyed, threads)
    limits = _limits(surveyed, run, samples, memory)
    empty = Calibration(fingerprint(surveyed.bundle), run.inputs, limits)
    empty.expert_inputs = {site: name for site, (name, _) in run.experts.items()}

    def every(state: Calibration, done: int) -> None:
        progress("calibrate", done, len(cuts))
        if done % _SAVE_EVERY == 0 and done < len(cuts):
            files.save(state, _part(target))

    start = _interrupted(surveyed.bundle, target, empty, cuts)
    for number, window in enumerate(cuts, 1):
        if number > len(start.windows):
            start.add(window, *run.measure(window.tokens))
            every(start, number)
    return start


def calibrate_on_domains(
    surveyed: Survey,
    target: Path,
    domains: Sequence[str] = DOMAINS,
    texts: Sequence[Text] = (),
    progress: Progress = silent,
) -> Calibration:
    """Measures the inputs of a model's sites on text that no calibration file is of.

    Args:
        surveyed: The dense bundle's graph.
        target: The file that keeps the calibration. One of this model that is there already is
            taken as it is; a damaged one is replaced.
        domains: Shipped domains to read, or `OWN` for what the model itself writes.
        texts: Texts to read as well.
        progress: Called with every step.
    """
    if is_intact(target, files.KIND):
        with suppress(TamizError):  # of another model
            return files.load(target, surveyed.bundle)
    known = read_texts(surveyed.bundle, texts, domains, progress=progress)
    calibration = measure(surveyed, known.fitting, target, progress=progress)
    calibration.judge_on(known.judging)
    files.save(calibration, target)
    _part(target).unlink(missing_ok=True)
    return calibration


def _limits(surveyed: Survey, run: Activations, samples: int, memory: int) -> dict[str, int]:
    """How many samples are kept of each input: of a head's more, in a quarter of the memory.

    Raises:
        TamizError: The memory does not hold one of each.
    """
    sites = [site for site in surveyed.sites if site.id in run.inputs]
    heads = {run.inputs[site.id] for site in sites if site.kind == SiteKind.HEAD}
    inputs = {run.inputs[site.id]: site.in_features for site in sites}
    of_heads = sum(row_bytes(inputs[name]) for name in heads)
    most = min(_HEAD_SAMPLES, memory // 4 // max(1, of_heads)) if heads else samples
    others = sum(row_bytes(count) for name, count in inputs.items() if name not in heads)
    floats = 4 * sum(inputs.values())
    left = memory - most * of_heads
    # Samples, and as many inputs that follow each other but at most RUN, as floats.
    limit = min(samples, max(left // (others + floats), (left - RUN * floats) // max(1, others)))
    if min(limit, most) < 1:
        raise TamizError(
            f"{memory >> 20} MB hold no sample of all {len(inputs)} inputs, expected more memory"
        )
    return {name: most if name in heads else limit for name in inputs}


def _interrupted(
    bundle: Bundle, target: Path, empty: Calibration, cuts: Sequence[Window]
) -> Calibration:
    """What an interrupted run of the same calibration has left, else `empty`."""
    if not is_intact(_part(target), files.KIND):
        return empty
    try:
        state = files.load(_part(target), bundle)
    except TamizError:
        return empty
    same = (state.inputs, state.limits, state.expert_inputs) == (
        *(empty.inputs, empty.limits),
        empty.expert_inputs,
    )
    begin = cuts[: len(state.windows)]
    seen = [(window_hash(window.tokens), window.weight) for window in begin]
    return state if same and seen == [*zip(state.windows, state.weights)] else empty  # noqa: B905


def read_texts(
    bundle: Bundle,
    texts: Sequence[Text],
    domains: Sequence[str],
    windows: int = _WINDOWS,
    threads: int | None = None,
    progress: Progress = silent,
) -> Known:
    """Windows of texts and of domains; of what the model writes where there is no other text.

    Args:
        bundle: The dense bundle.
        texts: The texts.
        domains: Shipped domains, or `OWN`.
        windows: Most windows to read of each text.
        threads: Threads of a model that writes.
        progress: Called with every step.

    Raises:
        TamizError: A text cannot be read, or has not one whole window; or the tokenizer reads none
            of the domains, and the model writes no text.
    """
    progress("read the text", 0, 1)
    length = window_length(bundle)
    shipped = [name for name in domains if name != OWN]
    fitting = shipped_windows(bundle, "fit", length, shipped) if shipped else []
    judging = shipped_windows(bundle, "judge", length, shipped) if shipped else []
    cuts = text_windows(bundle, texts, windows) if texts else []
    if OWN in domains or not (fitting or cuts):
        most = min(windows, _OWN_BESIDE if fitting or cuts else _GENERATED)
        cuts += _own_text(bundle, most, length, threads, progress)
    if not judging:  # the calibration keeps some of what it measures to judge
        return Known([*fitting, *cuts], [])
    of_texts = split(cuts, KEPT_WINDOWS)
    return Known([*fitting, *of_texts[0]], [*judging, *of_texts[1]])


def _own_text(
    bundle: Bundle, windows: int, length: int, threads: int | None, progress: Progress
) -> list[Window]:
    """What the model writes.

    Raises:
        TamizError: It writes none.
    """
    from tamiz.calibration.generated_text import generate_windows
    from tamiz.runtime.load import load_model
    from tamiz.runtime.model import Model

    model = load_model(bundle.path, threads)
    if not isinstance(model, Model):
        raise TamizError(
            f"{bundle.path}: a model without logits writes no text; expected --text in 'tamiz "
            "calibrate', and --calibration with its file in a build"
        )

    def report(done: int, total: int) -> None:
        progress("write a text", done, total)

    return generate_windows(model, windows, length, report)


def window_length(bundle: Bundle) -> int:
    """Tokens of a window: fewer where the model takes fewer."""
    from tamiz.runtime.embedding.settings import most_tokens

    return min(WINDOW, most_tokens(bundle) or WINDOW)


def text_windows(bundle: Bundle, texts: Sequence[Text], windows: int = _WINDOWS) -> list[Window]:
    """Windows from all over the texts.

    Raises:
        TamizError: A text cannot be read, or has not one whole window.
    """
    from tamiz.evaluation.windows import spread
    from tamiz.runtime.text.tokenizer import Tokenizer

    tokenizer, length = Tokenizer(bundle), window_length(bundle)
    cuts: list[Window] = []
    for text, origin in zip(texts, _origins(texts), strict=True):
        ids = tokenizer.encode(read_text(text.path), bos=False)
        if len(ids) < length:
            raise TamizError(f"{text.path}: has {len(ids)} tokens, expected at least {length}")
        pieces = spread(ids, min(windows, len(ids) // length), length)
        cuts += [Window(origin, piece, text.weight) for piece in pieces]
    return cuts


def _origins(texts: Sequence[Text]) -> list[str]:
    """A name for each text: its file's, with the folders that distinguish it from other texts."""
    paths = [PurePath(os.path.abspath(text.path)).parts for text in texts]
    names = []
    for own in paths:
        others = [parts for parts in paths if parts != own]
        count = 1
        while any(parts[-count:] == own[-count:] for parts in others):
            count += 1
        names.append(str(PurePath(*own[-count:])))
    return names
