"""Takes away what hides the structure of an exported graph: Identity, constants computed at run
time, duplicates, dead nodes."""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common as common

from tamiz.api import GraphPass, Phase, remove_unused
from tamiz_passes.dimensions import fold_dimensions
from tamiz_passes.fold import fold_constants, lift_constants
from tamiz_passes.merge import merge_equal_nodes, remove_identities
from tamiz_passes.shapes import infer_shapes


class CleanUp(GraphPass):
    """Inlines functions, folds small constants, merges equal nodes, drops dead ones, names all.

    It also gives values the types and shapes that can be inferred. Graphs inside of nodes, such as
    the branches of an If, stay as they are.
    """

    name = "clean-up"
    phase = Phase.RECOGNISE
    provides = frozenset({"clean"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Cleans `model` in place."""
        before = _size(model)
        _inline_functions(model)
        remove_unused(model)
        remove_identities(model.graph)
        lift_constants(model.graph)
        infer_shapes(model)
        known = fold_dimensions(model)
        if fold_constants(model) or known:
            infer_shapes(model)
        remove_identities(model.graph)  # Casts that hand on are known now
        merge_equal_nodes(model.graph)
        remove_unused(model)
        name_nodes(model)
        return ir.passes.PassResult(model, modified=_size(model) != before)


def _inline_functions(model: ir.Model) -> None:
    """Inlines all functions of the model, or none: ONNX Runtime runs functions, too."""
    if not model.functions:
        return
    try:
        common.InlinePass()(model.clone())  # where it fails, it leaves half of the work
    except Exception:  # other opsets, attributes that are graphs, functions that call each other
        return
    common.InlinePass()(model)


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
