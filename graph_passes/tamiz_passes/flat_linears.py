"""Lets linears work on ``[batch, sequence, features]`` that exporters flatten before them.

    Reshape([B, S, K] → [B·S, K]), Gemm, Reshape([B·S, N] → [B, S, N])      becomes      MatMul, Add

The first Reshape may join heads at the same time, [B, S, H, D] → [B·S, H·D].
A Reshape of token ids that leaves their shape goes, too. What the shapes are is computed on samples
of several batches and lengths.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor, GraphPass, Phase, linear_at, remove_unused
from tamiz_passes.expansion import Expansion
from tamiz_passes.linears import no_linear
from tamiz_passes.probe import Case, Probe, form
from tamiz_passes.values import Refusal, constant, last_dim, producer, rank


def _case(batch: int, length: int) -> Case:
    positions = np.tile(np.arange(length), (batch, 1))
    return Case(np.ones((batch, length), np.int64), positions)


_CASES = (_case(2, 5), _case(1, 3), _case(3, 1))


class FlatLinears(GraphPass):
    """Takes the Reshapes around a Gemm away; see the module."""

    name = "flat-linears"
    phase = Phase.RECOGNISE
    needs = frozenset({"plain"})
    provides = frozenset({"flat"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        shapes = _Shapes(model)
        modified = False
        for node in list(model.graph):
            try:
                modified |= _unreshape_ids(shapes, node) or _unflatten(model, shapes, node)
            except Refusal as refusal:
                self.note(node, refusal.sentence)
        if modified:
            remove_unused(model)
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


class _Shapes:
    """Says whether a Reshape gives an activation's or an input's own leading dimensions."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self._known: dict[Hashable, bool] = {}

    def are(self, shape: ir.Value, like: ir.Value, features: int | None) -> bool:
        """Whether `shape` is ``[B, S]`` of `like`, with `features` behind where they are given."""
        fixed = constant(shape)
        if fixed is not None:  # 0 is the dimension of what is reshaped
            return features is None and fixed.tolist() in ([0, 0], [0, -1], [-1, 0])
        if shape.producer() is None:
            return False
        key = (features, *form([shape], [like]))
        if key not in self._known:
            self._known[key] = self._run(shape, like, features)
        return self._known[key]

    def _run(self, shape: ir.Value, like: ir.Value, features: int | None) -> bool:
        probe = Probe(self.model, [shape], [like])
        behind = [] if features is None else [features]
        for case in _CASES:
            found = probe.run([shape], case)[0].tolist()
            expected = [case.batch, case.length, *behind]
            free = [a for a, b in zip(found, expected, strict=False) if a != b]
            if len(found) != len(expected) or free not in ([], [-1]):
                return False
        return True


def _unreshape_ids(shapes: _Shapes, node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "Reshape") or node.outputs[0].is_graph_output():
        return False
    ids, shape = node.inputs[0], node.inputs[1]
    if ids is None or shape is None or not ids.is_graph_input() or ids.name != "input_ids":
        return False
    if rank(ids) != 2 or not shapes.are(shape, ids, None):
        return False
    node.outputs[0].replace_all_uses_with(ids)
    return True


def _joined_width(heads: ir.Value) -> int | None:
    """H·D of ``[B, S, H, D]``; None of something else, or where it is not known."""
    if rank(heads) != 4 or heads.shape is None:
        return None
    count, size = heads.shape[2], heads.shape[3]
    return count * size if isinstance(count, int) and isinstance(size, int) else None


def _same_rows(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values are known to have the same first two dimensions."""
    if a.shape is None or b.shape is None or len(b.shape) < 2:
        return False
    pairs = [(a.shape[axis], b.shape[axis]) for axis in (0, 1)]
    known = all(isinstance(size, int) or size.value is not None for pair in pairs for size in pair)
    return known and all(one == other for one, other in pairs)


def _unflatten(model: ir.Model, shapes: _Shapes, node: ir.Node) -> bool:
    if (node.domain, node.op_type) != ("", "Gemm") or no_linear(node) is not None:
        return False
    flat, y = producer(node.inputs[0], "Reshape"), node.outputs[0]
    x = flat.inputs[0] if flat is not None else None
    users = list(dict.fromkeys(y.consumers()))
    if flat is None or x is None or rank(y) != 2 or y.is_graph_output() or not users:
        return False
    width = _joined_width(x)
    if rank(x) != 3 and (width is None or width != last_dim(flat.outputs[0])):
        return False
    inside = all(u.graph is node.graph and u.op_type == "Reshape" for u in users)
    features = last_dim(y)
    if not inside or features is None:
        return False
    for user in users:  # [B, S, N] has as many rows as [B, S, K], so K is that of the weight
        shape = user.inputs[1]
        if user.inputs[0] is not y or shape is None or not shapes.are(shape, x, features):
            return False
        if rank(x) == 4 and not _same_rows(x, user.outputs[0]):
            return False
    new = Expansion(GraphEditor(model), node)
    if rank(x) == 4:
        shape = new.graph.constant(f"flat.{width}", np.array([0, 0, width]))
        heads, x = x, new.op("Reshape", [x, shape], like=x)
        x.shape = ir.Shape([*list(heads.shape or ())[:2], width])
    weight = node.inputs[1]
    if "transB" in node.attributes and node.attributes["transB"].as_int():
        assert weight is not None
        weight = new.op("Transpose", [weight], {"perm": [1, 0]})
    result = new.op("MatMul", [x, weight], like=x)
    result.shape = ir.Shape([*list(x.shape or ())[:-1], features])
    if (bias := linear_at(node).bias) is not None:
        result = new.op("Add", [result, bias], like=result)
    for user in users:
        old = user.outputs[0]
        if old.is_graph_output():
            user.replace_input_with(0, result)
        else:
            old.replace_all_uses_with(result)
    return True
