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
from tamiz_exporters.architectures import SOFT_CAPS
from tamiz_exporters.companions import CONFIG, copy_sentence_modules
from tamiz_exporters.sentence_files import is_embedder

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
#: Optimum's tasks of a decoder with its KV cache, and of an encoder.
_DECODER, _HIDDEN_STATES = "text-generation-with-past", "feature-extraction"
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
            import optimum.exporters.onnx  # noqa: F401
    except ImportError as error:
        raise TamizError(
            f"{source}: this model is exported by optimum ({error}); "
            "run: pip install 'tamiz[export]'"
        ) from error
    with tempfile.TemporaryDirectory(prefix=".optimum.", dir=directory.parent) as exported:
        try:
            with _quiet():
                by_optimum(source, exported, task or _task(source))
        except (OSError, ValueError, KeyError, RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            reason = f"{reason}; try --task" if "task" in reason and task is None else reason
            raise TamizError(f"{source}: optimum cannot export it: {reason}") from error
        onnx.export(exported, directory)
    copy_sentence_modules(Path(source), directory)
    return source


def by_optimum(source: str, folder: str | Path, task: str) -> None:
    """Lets optimum write its files.

    Args:
        source: A local folder or a hub id.
        folder: Where to.
        task: Optimum's name of the task.
    """
    from optimum.exporters.onnx import main_export, onnx_export_from_model
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
    options = {"task": task, "do_validation": False}
    if task == _DECODER and getattr(config, SOFT_CAPS[0], None):
        # Torch's fused attention, which optimum would export, leaves the soft cap of scores out.
        model = AutoModelForCausalLM.from_pretrained(
            source, trust_remote_code=False, torch_dtype="float32", attn_implementation="eager"
        )
        onnx_export_from_model(model, folder, **options)
        return
    main_export(source, folder, dtype="fp32", trust_remote_code=False, **options)


def _task(source: str) -> str:
    """Returns optimum's task: a decoder with its KV cache, or an encoder's hidden states.

    A model of sentence-transformers is read for its hidden states, whatever it was trained for.
    """
    from transformers import AutoConfig

    if is_embedder(Path(source)):
        return _HIDDEN_STATES
    config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
    names = config.architectures or []
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return _DECODER
    if all(name.endswith("Model") for name in names):
        return _HIDDEN_STATES
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
