"""Graph passes: their base class, when they run, and the notes that they leave."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

import onnx_ir as ir


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

    Subclasses set `name`, `phase` and `order`, implement `call`, and append to `notes` a reason
    for every candidate they leave alone. A pass object is used for one model.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase]
    order: ClassVar[int] = 0

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, node: ir.Node, reason: str) -> None:
        """Records why `node` was not rewritten."""
        self.notes.append(Note(self.name, node.name or node.op_type, reason))
