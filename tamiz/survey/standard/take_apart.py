"""Takes the programs of `Fused` nodes apart: every stage becomes a node of its own."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.files.errors import TamizError
from tamiz.interface.metadata import DOMAIN
from tamiz_ops.program import read_program


def take_apart(model: ir.Model) -> None:
    """Puts the stages in place of each `Fused` node.

    Raises:
        TamizError: A node stacks what it keeps of a sequence, as techniques do that keep more
            than keys and values.
    """
    for node in list(model.graph):
        if (node.domain, node.op_type) == (DOMAIN, "Fused"):
            _take_apart(model.graph, node)


def _take_apart(graph: ir.Graph, fused: ir.Node) -> None:
    if "stacks" in fused.attributes:
        names = ", ".join(str(value.name) for value in fused.inputs[-1:] if value is not None)
        raise TamizError(
            f"node {fused.name!r} keeps {names} of a sequence, which has no form in standard ONNX; "
            "try a build without the technique"
        )
    values = list(fused.inputs)
    program = fused.attributes["program"].as_string()
    for number, stage in enumerate(read_program(program)):
        inputs = [None if at is None else values[at] for at in stage.inputs]
        name = "/".join(filter(None, (fused.name, stage.part, f"{stage.op}.{number}")))
        count = len(stage.outputs)
        node = ir.node(
            stage.op, inputs, stage.attributes, domain=DOMAIN, name=name, num_outputs=count
        )
        for port, (value, given) in enumerate(zip(node.outputs, stage.outputs, strict=True)):
            value.name = "" if given is None else f"{name}/{port}"
            if given is not None:
                values.append(value)
        graph.insert_before(fused, node)
    found = [values[at] for at in fused.attributes["outputs"].as_ints()]
    made = [value for value in found if value is not None]
    for old, new in zip(fused.outputs, made, strict=True):
        new.shape, new.type, new.name, old.name = old.shape, old.type, old.name, None
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(fused, safe=True)
