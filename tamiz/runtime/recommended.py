"""The sampling that a model recommends: generation_config.json, as transformers reads it."""

from __future__ import annotations

import math
from typing import Any

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.sampling import Sampling

FILE = "generation_config.json"
#: Fields of draws, with what transformers takes where they are absent.
_DRAWS = {"temperature": 1.0, "top_k": 50.0, "top_p": 1.0, "min_p": 0.0}
#: Fields that change answers and have no counterpart here, with the values that change nothing.
_UNKNOWN: dict[str, tuple[Any, ...]] = {
    "bad_words_ids": (),
    "begin_suppress_tokens": (),
    "diversity_penalty": (0,),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": (),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "sequence_bias": (),
    "top_h": (),
    "typical_p": (1,),
    "watermarking_config": (),
}


def recommended_sampling(bundle: Bundle) -> Sampling:
    """The sampling of generation_config.json.

    Without ``do_sample`` the likeliest token is taken. ``repetition_penalty`` counts the whole
    text, as in transformers.

    Raises:
        TamizError: A field has another type, or changes answers in a way that tamiz does not know.
    """
    config = bundle.json(FILE) if FILE in bundle.manifest.files else {}
    path = bundle.path / FILE
    for name, idle in _UNKNOWN.items():
        value = config.get(name)
        if value is not None and value != [] and value not in idle:
            raise TamizError(
                f"{path}: {name} is {value!r}, which tamiz does not know; try without --sampling"
                " model"
            )

    def number(name: str, default: float) -> float:
        value = config.get(name)
        if value is None:
            return default
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TamizError(f"{path}: {name} is {value!r}, expected a number")
        return float(value)

    fields: dict[str, Any] = {
        "repeat_penalty": number("repetition_penalty", 1.0),
        "repeat_last_n": -1,
        "logit_bias": dict.fromkeys(_suppressed(bundle, config), -math.inf),
    }
    if config.get("do_sample"):
        fields |= {name: number(name, default) for name, default in _DRAWS.items()}
        fields["top_k"] = int(fields["top_k"])
    try:
        return Sampling(**fields)
    except TamizError as error:
        raise TamizError(f"{path}: {error}") from error


def _suppressed(bundle: Bundle, config: dict[str, Any]) -> list[int]:
    ids = config.get("suppress_tokens") or []
    if not isinstance(ids, list) or any(type(token) is not int for token in ids):
        path = bundle.path / FILE
        raise TamizError(f"{path}: suppress_tokens is {ids!r}, expected a list of ints")
    return ids


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
        words.append(f"repeat penalty {sampling.repeat_penalty:g}")
    if sampling.logit_bias:
        words.append(f"{len(sampling.logit_bias)} tokens suppressed")
    return ", ".join(words)
