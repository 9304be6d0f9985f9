"""Takes away what hides the structure of an exported graph: Identity, constants computed at run
time, duplicates, dead nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import onnx_ir as ir
import onnx_ir.passes.common as common
from onnxscript.optimizer import fold_constants

from tamiz.api import GraphPass, Phase

#: Vectors up to this length are folded (a norm's 1 + w); weights stay in the mapped file.
_FOLD_LIMIT = 1 << 16
#: Domain of nodes that a pass must not see.
_HIDDEN = "pkg.tamiz.hidden"


class CleanUp(GraphPass):
    """Inlines functions, folds small constants, merges equal nodes, drops dead ones, names all."""

    name = "clean-up"
    phase = Phase.RECOGNISE
    provides = frozenset({"clean"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cleans `model` in place."""
        before = _size(model)
        common.InlinePass()(model)
        with _branches_kept(model):
            common.IdentityEliminationPass()(model)
        fold_constants(
            model,
            onnx_shape_inference=True,
            input_size_limit=_FOLD_LIMIT,
            output_size_limit=_FOLD_LIMIT,
            should_fold=lambda node: False if any(map(_is_matrix, node.inputs)) else None,
        )
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        common.CommonSubexpressionEliminationPass()(model)
        common.RemoveUnusedNodesPass()(model)
        name_nodes(model)
        return ir.passes.PassResult(model, modified=_size(model) != before)


@contextmanager
def _branches_kept(model: ir.Model) -> Iterator[None]:
    """Hides every Identity that makes the output of a branch, e.g. of an If.

    What such a node reads may be a value around the branch, and onnx-ir's elimination fails there.
    """
    ends = [
        node
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
        if (node.domain, node.op_type) == ("", "Identity")
        and node.graph is not model.graph
        and node.outputs[0].is_graph_output()
    ]
    for node in ends:
        node.domain = _HIDDEN
    try:
        yield
    finally:
        for node in ends:
            node.domain = ""


def name_nodes(model: ir.Model) -> None:
    """Gives every node of the main graph a unique name; names already unique stay."""
    taken: set[str] = set()
    for node in model.graph:
        base = node.name or (node.outputs[0].name if node.outputs else None) or node.op_type
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}.{count}"
        taken.add(name)
        node.name = name


def _size(model: ir.Model) -> tuple[int, int, int]:
    return len(model.graph), len(model.graph.initializers), len(model.functions)


def _is_matrix(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None else None
    return tensor is not None and len(tensor.shape) > 1 and tensor.size > 1024
