"""What a graph keeps of a sequence: inputs ``past_…``, and outputs ``present_…`` that follow them.

    past_key_values.N.key → present.N.key            optimum's interface
    past_WHAT.N           → present_WHAT.N           of one layer or site
    past_layers.WHAT      → present_layers.WHAT      of all layers, along a first dimension

Each is ``[batch, …]``, ``past_layers.WHAT`` ``[layers, batch, …]``, with at most one dimension
that has a row a token.

A state ``recent`` is ``[batch, rows, …]``: the rows of the last tokens, that of token t at
t mod rows, and `SPARE` of them more than a token reads. So up to `SPARE` tokens can be forgotten
without a copy of it. Where sequences lie in pages of 64 tokens it is ``[pages, rows, …]``, and
token t of a page has the row t mod rows of that page.

A state of a recurrence, ``past_delta.N`` or ``past_mamba.N``, is ``[batch, …]`` of fixed size, too,
and can forget `SPARE` tokens: the ops `GatedDeltaNet`, `Mamba2` and `SelectiveScan` say how. Where
sequences lie in pages it is ``[slots, …]``, and the input ``slots`` says which slot each segment of
``sequences`` belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnxruntime as ort

PAST = "past_"
KEY_VALUES = f"{PAST}key_values."
LAYERS = f"{PAST}layers."
#: What the names of states begin with that have the rows of the last tokens.
RECENT = f"{PAST}recent."
#: What the names of states begin with of which a batch has one for each sequence, in a slot.
RECURRENT = (f"{PAST}delta.", f"{PAST}mamba.")
#: Tokens at the end of a sequence that such states can forget.
SPARE = 16
#: Tokens of a page, as the ops divide what they keep of several sequences.
PAGE = 64
#: The input that says which tokens of a run belong to which sequence.
SEQUENCES = "sequences"
#: The input that says which slot each segment of `SEQUENCES` belongs to.
SLOTS = "slots"
#: The input of an encoder that says which tokens of a run belong to which text.
TEXT_BEGINS = "text_begins"
#: What a model that reads whole texts may take of their tokens.
TEXTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})

#: What a decoder requires besides its states.
OF_DECODERS = ("input_ids", "attention_mask", "position_ids")


def decodes(required: Iterable[str | None]) -> bool:
    """Whether required inputs of these names are those of a decoder.

    It reads tokens, a mask that covers those before them as well, and states of these, but nothing
    that another model gives, such as the encoder of a translator.
    """
    names = {name or "" for name in required}
    states = {name for name in names if name.startswith(PAST)}
    return bool(states) and "attention_mask" in names and names - states <= set(OF_DECODERS)


def reads_texts(inputs: Iterable[str | None]) -> bool:
    """Whether inputs of these names are whole texts, as an encoder reads them."""
    names = set(inputs)
    return "input_ids" in names and names <= TEXTS | {TEXT_BEGINS}


def present_of(past: str) -> str:
    """Name of the output that becomes the input `past` of the next run."""
    if past.startswith(KEY_VALUES):
        return f"present.{past.removeprefix(KEY_VALUES)}"
    return f"present_{past.removeprefix(PAST)}"


def stacked(past: str) -> str:
    """Name of the input that holds `past` of all layers."""
    return LAYERS + past.removeprefix(PAST).partition(".")[0]


@dataclass(frozen=True)
class State:
    """One tensor that the graph keeps of a sequence; all zeros at the start.

    Attributes:
        past: Name of its input.
        sizes: Its dimensions besides the batch; 0 where it has a row a token.
        dtype: Its element type.
        batch: The dimension that is the batch.
        axis: The dimension that has a row a token; None where its size is fixed.
        recent: Whether it can forget the last `SPARE` tokens; its size is fixed.
        in_slots: Whether a batch has one of each sequence, not one of each page.
    """

    past: str
    sizes: tuple[int, ...]
    dtype: type[np.generic]
    batch: int
    axis: int | None
    recent: bool = False
    in_slots: bool = False

    @classmethod
    def of(cls, value: ort.NodeArg) -> State | None:
        """The state that comes in at an input; None if its type or dimensions are of none."""
        batch = int(value.name.startswith(LAYERS))
        dims = value.shape
        growing = [a for a, size in enumerate(dims) if a > batch and not isinstance(size, int)]
        if value.type not in TYPES or len(dims) < 2 + batch or len(growing) > 1:
            return None
        sizes = [size if isinstance(size, int) else 0 for size in dims]
        del sizes[batch]
        axis = growing[0] if growing else None
        names = (*RECURRENT, *map(stacked, RECURRENT))
        in_slots = value.name.startswith(names) and axis is None
        rows = value.name.startswith((RECENT, stacked(RECENT))) and axis is None
        kind = TYPES[value.type]
        return cls(value.name, tuple(sizes), kind, batch, axis, rows or in_slots, in_slots)

    @property
    def present(self) -> str:
        """Name of its output."""
        return present_of(self.past)

    def shape(self, rows: int, batch: int = 1) -> tuple[int, ...]:
        """Its dimensions with room for `rows` tokens."""
        dims = [*self.sizes[: self.batch], batch, *self.sizes[self.batch :]]
        if self.axis is not None:
            dims[self.axis] = rows
        return tuple(dims)

    def paged(self, pages: int, slots: int = 0) -> tuple[int, ...]:
        """Its dimensions with room for several sequences in so many pages and slots."""
        if self.in_slots:
            return self.shape(0, slots)
        return self.shape(0, pages) if self.recent else self.shape(pages * PAGE)

    def page(self, array: NDArray[Any], page: int) -> NDArray[Any]:
        """View of what a page has of it, or a slot where it is in slots."""
        axis, rows = self.batch, slice(page, page + 1)
        if self.axis is not None:
            axis, rows = self.axis, slice(page * PAGE, (page + 1) * PAGE)
        return array[(slice(None),) * axis + (rows,)]

    def zeros(self, batch: int = 1) -> NDArray[Any]:
        """The state at the start, with room for no token."""
        return np.zeros(self.shape(0, batch), self.dtype)

    def first(self, array: NDArray[Any], rows: int) -> NDArray[Any]:
        """View of the first `rows` tokens; of all where the size is fixed."""
        if self.axis is None:
            return array
        return array[(slice(None),) * self.axis + (slice(rows),)]


TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
}
