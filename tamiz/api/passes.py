"""Graph passes: their base class, when they run, in which order, and the notes that they leave."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from graphlib import CycleError, TopologicalSorter
from typing import ClassVar

import onnx_ir as ir

from tamiz.api.invariants import Invariants


class Phase(str, Enum):
    """When a pass runs in a build: before sites are found, or after techniques have rewritten."""

    RECOGNISE = "recognise"
    FUSE = "fuse"


@dataclass(frozen=True)
class Note:
    """Why a pass left a node as it was.

    Attributes:
        pass_name: The pass that looked at it.
        node: Name of the node.
        reason: One sentence: what was expected and what was found.
    """

    pass_name: str
    node: str
    reason: str


class GraphPass(ir.passes.InPlacePass):
    """A pass that plugins contribute through the hook `tamiz_graph_passes`.

    Subclasses set `name` and `phase`, implement `call`, and append to `notes` a reason for every
    candidate they leave alone. A pass object is used for one model.

    Attributes:
        needs: States of the graph, by name. The pass runs after all passes that provide one.
        provides: States of the graph that hold once all passes that provide them have run. Those of
            tamiz' own passes: ``clean``, ``plain`` (fused ops of ONNX Runtime are standard ops),
            ``flat`` and ``linears`` (linears work on rank 3, and packed ones are taken apart),
            ``rms-norm``, ``swiglu``, ``attention``, ``residual``, ``logits-to-keep`` (what the
            pass of this name recognises is recognised), ``short-conv``, ``text-attention``,
            ``norms``, ``sums`` and ``ops-final`` (nodes of the domain stay as they are and can be
            fused).
    """

    name: ClassVar[str]
    phase: ClassVar[Phase]
    needs: ClassVar[frozenset[str]] = frozenset()
    provides: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def __call__(self, model: ir.Model | ir.passes.PassResult, /) -> ir.passes.PassResult:
        """Runs the pass, and asserts what holds after every pass; see `Invariants`.

        Raises:
            BrokenGraphError: The pass broke the graph.
        """
        graph = model.model if isinstance(model, ir.passes.PassResult) else model
        states = self.phase is Phase.RECOGNISE
        before = Invariants.of(graph, states=states)
        result = super().__call__(model)
        before.check(graph, states=states)
        return result

    def note(self, node: ir.Node, reason: str) -> None:
        """Records why `node` was not rewritten."""
        self.notes.append(Note(self.name, node.name or node.op_type, reason))


def in_order(passes: Iterable[type[GraphPass]]) -> list[type[GraphPass]]:
    """Sorts passes by phase, then by what they need; those that may swap go by name.

    Raises:
        ValueError: Passes need each other.
    """
    by_phase = sorted(passes, key=lambda p: (list(Phase).index(p.phase), p.name))
    sorter: TopologicalSorter[type[GraphPass]] = TopologicalSorter()
    for graph_pass in by_phase:
        before = [
            p for p in by_phase if p.provides & graph_pass.needs or _is_earlier(p, graph_pass)
        ]
        sorter.add(graph_pass, *before)
    try:
        sorter.prepare()
    except CycleError as error:
        names = " → ".join(p.name for p in error.args[1])
        raise ValueError(f"the graph passes {names} need each other") from error
    ordered: list[type[GraphPass]] = []
    ready: list[type[GraphPass]] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=by_phase.index)
        ordered.append(ready.pop(0))
        sorter.done(ordered[-1])
    return ordered


def _is_earlier(a: type[GraphPass], b: type[GraphPass]) -> bool:
    return a.phase is Phase.RECOGNISE and b.phase is Phase.FUSE
