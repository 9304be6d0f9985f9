"""The sampling that a GGUF file suggests, as Hugging Face's ``generation_config.json`` has it."""

from __future__ import annotations

from typing import Any

from tamiz_exporters.gguf_file import GgufFile

_PREFIX = "general.sampling."
#: What llama.cpp takes for what a file does not say, by the names of Hugging Face.
_DEFAULTS: dict[str, float] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repetition_penalty": 1.0,
    "repeat_last_n": 64,
}
#: Keys by the names of Hugging Face. XTC and mirostat have none: they are refused where they act.
_KEYS: dict[str, tuple[str, type]] = {
    "temp": ("temperature", float),
    "top_k": ("top_k", int),
    "top_p": ("top_p", float),
    "min_p": ("min_p", float),
    "penalty_repeat": ("repetition_penalty", float),
    "penalty_last_n": ("repeat_last_n", int),
    "xtc_probability": ("xtc_probability", float),
    "mirostat": ("mirostat", int),
}
#: llama.cpp's samplers in their order, and the value with which each that has one does nothing.
_ORDER: dict[str, tuple[str, float] | None] = {
    "penalties": ("repetition_penalty", 1.0),
    "dry": None,
    "top_n_sigma": None,
    "top_k": ("top_k", 0),
    "typ_p": None,
    "top_p": ("top_p", 1.0),
    "min_p": ("min_p", 0.0),
    "xtc": None,
    "temperature": ("temperature", 1.0),
}


def suggested_sampling(file: GgufFile) -> dict[str, Any]:
    """Fields of ``generation_config.json``; none where the file suggests nothing.

    As in llama.cpp, samplers that ``general.sampling.sequence`` leaves out do nothing. Another
    order of them is kept as ``sampler_sequence``, which ``--sampling model`` refuses.

    Raises:
        TamizError: A key has another type.
    """
    found: dict[str, Any] = {}
    for key, (name, kind) in _KEYS.items():
        if _PREFIX + key in file.metadata:
            value = file.get(_PREFIX + key, kind)
            found[name] = float(f"{value:.6g}") if kind is float else value
    sequence = file.get(f"{_PREFIX}sequence", str, "")
    if not found and not sequence:
        return {}
    found = {**_DEFAULTS, **found}
    if sequence:
        names = [name.strip() for name in sequence.split(";") if name.strip()]
        if names != [name for name in _ORDER if name in names]:
            found["sampler_sequence"] = sequence
        left_out = [idle for name, idle in _ORDER.items() if name not in names]
        found |= dict(idle for idle in left_out if idle is not None)
    return {"do_sample": found["temperature"] > 0, **found}
