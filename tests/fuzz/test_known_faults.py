"""Random graphs find faults that passes and techniques once had, when they are put back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_passes.linears
import tamiz_passes.merge
import tamiz_passes.rms_norm
import tamiz_passes.sites
import tamiz_passes.swiglu
from kit.beside_onnxruntime import Refused
from kit.many_graphs import check_number
from tamiz.api.editing import GraphEditor
from tamiz.api.invariants import Invariants
from tamiz.plugins import load

PLUGINS = load()
#: Graphs until a fault is found.
MOST = 300
Patch = pytest.MonkeyPatch


def named_by_label(patch: Patch) -> None:
    """A constant is found by its label, whatever it holds."""
    constant = GraphEditor.constant

    def same(editor: GraphEditor, label: str, array: np.ndarray) -> ir.Value:
        there = editor.model.graph.initializers.get(label)
        return there if there is not None else constant(editor, label, array)

    patch.setattr(GraphEditor, "constant", same)


def one_byte_off(patch: Patch) -> None:
    """A packed weight has one wrong byte."""
    constant = GraphEditor.constant

    def changed(editor: GraphEditor, label: str, array: np.ndarray) -> ir.Value:
        if array.dtype == np.uint8 and array.size > 1000:
            array = array.copy()
            array.reshape(-1)[700] ^= 0x20
        return constant(editor, label, array)

    patch.setattr(GraphEditor, "constant", changed)


def lost_output(patch: Patch) -> None:
    """An Identity between two outputs makes one of them."""

    def remove(graph: ir.Graph) -> None:
        for node in list(graph):
            x, y = (node.inputs or (None,))[0], node.outputs[0]
            if node.op_type == "Identity" and node.domain == "" and x is not None:
                y.replace_all_uses_with(x, replace_graph_outputs=True)
                graph.remove(node, safe=True)

    patch.setattr("tamiz_passes.clean_up.remove_identities", remove)


def norms_of_unknown_width(patch: Patch) -> None:
    """A norm's weight fits an input of unknown width."""
    last_dim, accept = tamiz_passes.rms_norm.last_dim, tamiz_passes.rms_norm._Norm.accept

    def accepted(rule: Any, y: ir.Value, x: ir.Value, weight: ir.Value, epsilon: Any) -> Any:
        def known(value: ir.Value) -> int | None:
            assert weight.const_value is not None
            size = last_dim(value)
            return int(weight.const_value.shape[0]) if size is None else size  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(tamiz_passes.rms_norm, "last_dim", known)
            return accept(rule, y, x, weight, epsilon)

    patch.setattr(tamiz_passes.rms_norm._Norm, "accept", accepted)


def gates_of_any_shape(patch: Patch) -> None:
    """SwiGLU takes any two shapes."""
    patch.setattr(tamiz_passes.swiglu, "same_shape", lambda *_: True)


def any_bias(patch: Patch) -> None:
    """A Gemm with a bias of any shape is a site."""
    patch.setattr(tamiz_passes.linears, "_no_gemm_site", lambda *_: None)


def draws_merged(patch: Patch) -> None:
    """Two equal draws become one."""
    patch.setattr(tamiz_passes.merge, "draws", lambda _: False)


def draws_merged_unseen(patch: Patch) -> None:
    """The same, where the pass manager does not look."""
    draws_merged(patch)
    patch.setattr(Invariants, "check", lambda *_, **__: None)


def lost_output_unseen(patch: Patch) -> None:
    """The same as `lost_output`, where the pass manager does not look."""
    lost_output(patch)
    patch.setattr(Invariants, "check", lambda *_, **__: None)


def wrong_orientation(patch: Patch) -> None:
    """A transposed weight is read as if it were none."""
    constant_weight = tamiz_passes.sites.constant_weight

    def straight(value: ir.Value | None) -> tuple[ir.Value, bool] | None:
        found = constant_weight(value)
        return found and (found[0], False)

    patch.setattr(tamiz_passes.sites, "constant_weight", straight)


#: Where the search begins, for a fault that few graphs meet.
BEGIN: dict[Callable[[Patch], None], int] = {norms_of_unknown_width: 140}
FAULTS = (
    *(named_by_label, one_byte_off, lost_output, lost_output_unseen, norms_of_unknown_width),
    *(gates_of_any_shape, any_bias, draws_merged, draws_merged_unseen, wrong_orientation),
)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_found(monkeypatch: Patch, fault: Callable[[Patch], None]) -> None:
    fault(monkeypatch)
    begin = BEGIN.get(fault, 0)
    assert any(is_wrong(number) for number in range(begin, begin + MOST))


def is_wrong(number: int) -> bool:
    try:
        check_number(number, PLUGINS)
    except Refused:
        return False
    except Exception:
        return True
    return False
