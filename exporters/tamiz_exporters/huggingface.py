"""Export of a Hugging Face model, a local folder or a hub id, with optimum."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tamiz.api import TamizError
from tamiz_exporters import onnx
from tamiz_exporters.companions import CONFIG, copy_sentence_modules

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_NOISY = ("optimum", "transformers", "torch", "huggingface_hub", "onnxscript")


def accepts(source: str) -> bool:
    """Whether `source` is a folder with ``config.json`` or looks like a hub id, ``org/name``."""
    if Path(source).exists():
        return (Path(source) / CONFIG).is_file()
    return _HUB_ID.fullmatch(source) is not None


def export(source: str, directory: Path, task: str | None = None) -> str:
    """Writes the dense bundle's files.

    Args:
        source: A local folder or a hub id.
        directory: An existing, empty directory.
        task: Optimum's name of the task; None for the one that the configuration names.

    Returns:
        `source`.

    Raises:
        TamizError: If optimum is not installed, the model cannot be fetched, or optimum does not
            know its architecture.
    """
    try:
        with _quiet():
            from optimum.exporters.onnx import main_export
    except ImportError as error:
        raise TamizError(
            f"{source}: this model is exported by optimum ({error}); "
            "run: pip install 'tamiz[export]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix=".optimum.", dir=directory.parent) as exported:
        try:
            with _quiet():
                main_export(
                    source,
                    exported,
                    task=task or _task(source),
                    dtype="fp32",
                    do_validation=False,
                    trust_remote_code=False,
                )
        except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            reason = f"{reason}; try --task" if "task" in reason and task is None else reason
            raise TamizError(f"{source}: optimum cannot export it: {reason}") from error
        onnx.export(exported, directory)
    copy_sentence_modules(Path(source), directory)
    return source


def _task(source: str) -> str:
    """Returns optimum's task: a decoder with its KV cache, or an encoder's hidden states."""
    from transformers import AutoConfig

    config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
    names = config.architectures or []
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return "text-generation-with-past"
    if all(name.endswith("Model") for name in names):
        return "feature-extraction"
    return "auto"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences progress bars, warnings and logs; what went wrong comes as an exception."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    sink = io.StringIO()
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(sink),
            contextlib.redirect_stderr(sink),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
