"""The sampling that a model recommends: generation_config.json, as transformers reads it."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.generation_fields import NO_EFFECT, OBEYED, REFUSED
from tamiz.runtime.sampling import Sampling

FILE = "generation_config.json"
_log = logging.getLogger(__name__)
#: Fields of draws, with what transformers takes where they are absent.
_DRAWS = {"temperature": 1.0, "top_k": 50.0, "top_p": 1.0, "min_p": 0.0}


def recommended_sampling(bundle: Bundle) -> Sampling:
    """The sampling of generation_config.json.

    `tamiz.runtime.generation_fields` says what becomes of each field; one that is not known is a
    warning.

    Raises:
        TamizError: A field has another type, or changes answers in a way that tamiz does not know.
    """
    config = bundle.json(FILE) if FILE in bundle.manifest.files else {}
    path = bundle.path / FILE
    for name, value in config.items():
        harmless = value is None or value == [] or value in REFUSED.get(name, (value,))
        if not harmless:
            raise TamizError(
                f"{path}: {name} is {value!r}, which tamiz does not know; try without --sampling"
                " model"
            )
    if unknown := sorted(config.keys() - OBEYED.keys() - REFUSED.keys() - NO_EFFECT.keys()):
        names = ", ".join(unknown)
        _log.warning("%s: fields that tamiz does not know are not read: %s", path, names)

    def number(name: str, default: float) -> float:
        value = config.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TamizError(f"{path}: {name} is {value!r}, expected a number")
        return float(value)

    fields: dict[str, Any] = {
        "repeat_penalty": number("repetition_penalty", 1.0),
        "repeat_last_n": int(number("repeat_last_n", -1)),
        "logit_bias": dict.fromkeys(_suppressed(path, config), -math.inf),
    }
    if config.get("do_sample"):
        fields |= {name: number(name, default) for name, default in _DRAWS.items()}
        fields["top_k"] = int(fields["top_k"])
    try:
        return Sampling(**fields)
    except TamizError as error:
        raise TamizError(f"{path}: {error}") from error


def _suppressed(path: Path, config: dict[str, Any]) -> list[int]:
    ids = config.get("suppress_tokens") or []
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        raise TamizError(f"{path}: suppress_tokens is {ids!r}, expected a list of ints")
    words = config.get("bad_words_ids") or []
    single = [word[0] for word in words if isinstance(word, list) and len(word) == 1]
    if len(single) != len(words) or any(type(token) is not int for token in single):
        raise TamizError(
            f"{path}: bad_words_ids is {words!r}, expected lists of one id each, since tamiz knows"
            " no others; try without --sampling model"
        )
    return [*ids, *single]


def recommendation(bundle: Bundle) -> str | None:
    """What generation_config.json says about sampling, in one line; None if it says nothing."""
    try:
        sampling = recommended_sampling(bundle)
    except TamizError as error:
        return f"recommended sampling: not known: {error}"
    if sampling == Sampling(repeat_last_n=-1):
        return None
    return f"recommended sampling: {_described(sampling)}; --sampling model uses it"


def _described(sampling: Sampling) -> str:
    if not sampling.temperature:
        words = ["the likeliest token"]
    else:
        words = [f"temperature {sampling.temperature:g}"]
        if sampling.top_k:
            words.append(f"top-k {sampling.top_k}")
        if sampling.top_p < 1:
            words.append(f"top-p {sampling.top_p:g}")
        if sampling.min_p:
            words.append(f"min-p {sampling.min_p:g}")
    if sampling.repeat_penalty != 1:
        of = "" if sampling.repeat_last_n < 0 else f" of the last {sampling.repeat_last_n} tokens"
        words.append(f"repeat penalty {sampling.repeat_penalty:g}{of}")
    if sampling.logit_bias:
        words.append(f"{len(sampling.logit_bias)} tokens suppressed")
    return ", ".join(words)
