"""Applies graph passes to an ONNX file, without a bundle."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.files.errors import TamizError, blaming, did_you_mean, naming
from tamiz.files.mapping import map_tensors
from tamiz.files.scratch import WRITTEN, held_folder
from tamiz.files.unknown_sizes import mark_unknown_sizes
from tamiz.interface.metadata import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir

    from tamiz.api.passes import GraphPass, Note
    from tamiz.plugins import Plugins
    from tamiz.survey.self_check import Reference

#: The pass that others rely on: it infers shapes and folds constants.
FIRST = "clean-up"
#: Bytes of weights from which they lie beside the .onnx file, which can hold 2 GB.
_LARGE = 1 << 28


@dataclass(frozen=True)
class Rewritten:
    """What became of a file.

    Attributes:
        passes: Names of the passes that ran, in order.
        before, after: Nodes of the graph.
        ops: How often ops of the domain `tamiz` are in it.
        notes: What was left as it was, and why.
        checked: Whether all outputs were compared after every pass.
        files: The files that were written.
    """

    passes: tuple[str, ...]
    before: int
    after: int
    ops: Mapping[str, int]
    notes: tuple[Note, ...]
    checked: bool
    files: tuple[Path, ...]


def chosen_passes(plugins: Plugins, only: Sequence[str]) -> list[type[GraphPass]]:
    """The passes to run, in the order of a build.

    Args:
        plugins: The loaded plugins.
        only: Names of passes; `FIRST` runs before them. Without names, all that recognise.

    Raises:
        TamizError: No pass has one of the names.
    """
    from tamiz.api.passes import Phase

    every = [graph_pass for phase in Phase for graph_pass in plugins.passes(phase)]
    names = [graph_pass.name for graph_pass in every]
    if unknown := [name for name in only if name not in names]:
        hint = did_you_mean(unknown[0], names)
        raise TamizError(f"--only: found {unknown[0]!r}, expected some of {', '.join(names)}{hint}")
    if not only:
        return plugins.passes(Phase.RECOGNISE)
    return [p for p in every if p.name in only or p.name == FIRST]


def rewrite_file(
    source: Path,
    target: Path,
    plugins: Plugins,
    only: Sequence[str] = (),
    *,
    check: bool = False,
    sample: Path | None = None,
) -> Rewritten:
    """Writes what passes make of a model.

    Args:
        source: An .onnx file.
        target: The new one; large weights go beside it, into ``TARGET.data``. Both appear when
            everything went well.
        plugins: The loaded plugins.
        only: See `chosen_passes`.
        check: Whether all outputs are compared with those of `source` after every pass.
        sample: ``.npz`` file with the input for this; None to make one up.

    Raises:
        TamizError: `source` is no model, `target` exists or is no .onnx file, no valid input is
            known, or a pass changes an output; nothing is written then.
    """
    import onnx_ir as ir

    passes = chosen_passes(plugins, only)
    _check_target(source, target)
    model, outside = _load(source)
    reference = _reference(source, sample) if check or sample is not None else None
    before = len(model.graph)
    notes: list[Note] = []
    with naming(target), held_folder(target) as held:
        scratch = held / WRITTEN
        scratch.mkdir()
        for graph_pass in passes:
            with blaming(f"graph pass {graph_pass.name}"):
                instance = graph_pass()
                instance(model)
            notes += instance.notes
            if reference is not None:
                _compare(reference, model, scratch, graph_pass.name)
        outside = outside or sum(tensor.nbytes for tensor in _tensors(model)) > _LARGE
        data = f"{target.name}.data" if outside else None
        ir.save(model, scratch / target.name, external_data=data)
        written = [name for name in (data, target.name) if name and (scratch / name).exists()]
        for name in written:  # the .onnx file comes last
            os.replace(scratch / name, target.parent / name)
    ops = Counter(node.op_type for node in model.graph if node.domain == DOMAIN)
    return Rewritten(
        tuple(graph_pass.name for graph_pass in passes),
        before,
        len(model.graph),
        dict(sorted(ops.items())),
        tuple(notes),
        reference is not None,
        tuple(target.parent / name for name in written),
    )


def _check_target(source: Path, target: Path) -> None:
    if target.suffix != ".onnx":
        raise TamizError(f"{target}: expected the name of a file that ends in .onnx")
    for path in (target, target.with_name(f"{target.name}.data")):
        if path.exists():
            same = source.exists() and path.samefile(source)
            raise TamizError(
                f"{path}: {'is the input' if same else 'exists'}; choose another place for -o"
            )
    if not target.parent.is_dir():
        raise TamizError(f"{target.parent}: no such folder")


def _load(source: Path) -> tuple[ir.Model, bool]:
    """The model, and whether weights of it lie in other files."""
    import onnx_ir as ir

    if not source.is_file():
        raise TamizError(f"{source}: no such file, expected an ONNX model")
    try:
        model = ir.load(source)
    except Exception as error:  # protobuf and serde each raise their own
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise TamizError(f"{source}: not an ONNX model ({reason})") from error
    if not model.graph.outputs:
        raise TamizError(f"{source}: found no outputs, expected at least one")
    outside = any(isinstance(tensor, ir.ExternalTensor) for tensor in _tensors(model))
    map_tensors(model, source.absolute().parent)
    mark_unknown_sizes(model)
    return model, outside


def _tensors(model: ir.Model) -> list[ir.TensorProtocol]:
    values = model.graph.initializers.values()
    return [value.const_value for value in values if value.const_value is not None]


def _reference(source: Path, sample: Path | None) -> Reference:
    from tamiz.survey.self_check import Reference

    found = Reference.of(source, sample=sample)
    if found is None:
        raise TamizError(
            f"{source}: no valid input is known to compare outputs; give one with --sample"
        )
    if found.is_drawn:
        raise TamizError(f"{source}: its outputs are drawn at random, they cannot be compared")
    return found


def _compare(reference: Reference, model: ir.Model, scratch: Path, name: str) -> None:
    import onnx_ir as ir

    from tamiz.survey.self_check import DifferentModelError

    path = scratch / "compared.onnx"
    ir.save(model.clone(), path, external_data="compared.data")
    try:
        reference.compare(path, techniques=False, lossy=False)
    except DifferentModelError as error:
        raise TamizError(
            f"{reference.model}: {error} after the graph pass {name}; nothing was written"
        ) from error
    finally:
        for made in scratch.glob("compared.*"):
            made.unlink()
