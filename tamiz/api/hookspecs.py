"""The hooks through which exporters, graph passes and techniques reach the core.

A plugin is a module or object named by an entry point of the group ``tamiz``; built-in plugins
load the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from tamiz.api.site import Site
from tamiz.api.statistics import Imatrix
from tamiz.api.technique import Technique

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import GraphPass, Note

PROJECT = "tamiz"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


def offer(*techniques: Technique) -> Callable[[], Sequence[Technique]]:
    """The hook of a plugin with these techniques: ``tamiz_techniques = offer(MY_TECHNIQUE)``."""
    hook: Callable[[], Sequence[Technique]] = hookimpl(lambda: techniques)
    return hook


@dataclass(frozen=True)
class Exporter:
    """A way to turn a source into a dense bundle.

    Attributes:
        name: ``gguf``, ``huggingface``, ``onnx``.
        summary: What it reads, such as "a .gguf file": the end of the sentence "expected …".
        accepts: Whether it reads this source (a path, a hub id, or a name such as ``smollm2``).
        export: Writes the dense bundle's files, without the manifest, into an existing empty
            directory and returns the path or name of the source it read. Raises TamizError.
        dtypes: Values that `export` takes as its keyword ``dtype``, the default first; empty where
            it has no such keyword and writes float32.
        takes_task: Whether `export` has the keyword ``task``, what the model is exported for, such
            as ``text-generation-with-past``.
        takes_file: Whether `export` has the keyword ``file``, which model of a folder is meant.
        takes_activation: Whether `export` has the keyword ``activation``, the function of the
            feed-forward block where the source names none, such as ``relu``.
    """

    name: str
    summary: str
    accepts: Callable[[str], bool]
    export: Callable[..., str]
    dtypes: tuple[str, ...] = ()
    takes_task: bool = False
    takes_file: bool = False
    takes_activation: bool = False


@hookspec
def tamiz_techniques() -> Sequence[Technique]:
    """Techniques that the plugin declares."""
    raise NotImplementedError


@hookspec
def tamiz_exporters() -> Sequence[Exporter]:
    """Exporters that the plugin offers; the first that accepts a source exports it.

    A plugin's exporters are tried in the order of the list, those of several plugins in pluggy's
    order: ``@hookimpl(tryfirst=True)`` comes first, ``trylast=True`` last. The exporters that tamiz
    brings are tried last.
    """
    raise NotImplementedError


@hookspec
def tamiz_graph_passes() -> Sequence[type[GraphPass]]:
    """Graph passes that every build runs, in order of their phase and of what they need."""
    raise NotImplementedError


@hookspec(firstresult=True)
def tamiz_find_sites(model: ir.Model) -> tuple[list[Site], list[Note]] | None:
    """Finds the sites of a model, after the passes of phase `recognise`.

    Returns the sites in graph order, and for every linear-looking node that is no site the reason
    why; None leaves the model to the next plugin.
    """
    raise NotImplementedError


@hookspec(firstresult=True)
def tamiz_read_imatrix(path: Path) -> Imatrix | None:
    """Reads mean squares of the inputs of sites from a regular file of another tool.

    Raises TamizError if the file is damaged. None leaves the file to the next plugin; the reader
    that tamiz brings, of llama.cpp's imatrix files, is tried last.
    """
    raise NotImplementedError
