"""What a site costs: bytes that are stored, bytes that a decode step reads, compute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum


class Access(str, Enum):
    """How a part of a cost is read; all that no part names is streamed.

    `FIXED`: streamed whatever a mask on the inputs leaves out, as scales are. `RECORDS`: single
    cache lines with gaps between them; at an attention, rows of keys and values. `INDEX`: streamed
    before the rest, to choose what of the rest is read.
    """

    FIXED = "fixed"
    RECORDS = "records"
    INDEX = "index"


@dataclass(frozen=True)
class Part:
    """A part of what a site reads that is not simply streamed.

    Attributes:
        read: Bytes, which `Cost.read` includes.
        work: Compute that has to be done before other parts are read, in int4 multiply-accumulates,
            which `Cost.work` does not include.
    """

    read: int
    work: int = 0


@dataclass(frozen=True)
class Cost:
    """What one site costs under a technique, known before the fit.

    Attributes:
        stored: Bytes in the bundle.
        read: Bytes read from memory for one decoded token.
        work: Compute for one decoded token, in int4 multiply-accumulates whose weights are in the
            cache. Its time overlaps with that of reading, see `tamiz.planning.speed`.
        exact: False where these are upper bounds, and only the fit knows how much less it is.
        parts: Parts of `read` by how they are accessed.
    """

    stored: int
    read: int
    work: int = 0
    exact: bool = True
    parts: Mapping[Access, Part] = field(default_factory=dict)

    def part(self, access: Access) -> Part:
        """The part that is accessed in a way; empty where there is none."""
        return self.parts.get(access, Part(0))

    def masked(self, share: float) -> Cost:
        """The cost where a mask leaves `share` of the inputs: fixed parts are read all the same."""
        fixed = self.part(Access.FIXED).read
        kept = round((self.read - fixed) * share)
        return replace(self, read=fixed + kept, work=round(self.work * share))


def together(costs: Iterable[Cost]) -> Cost:
    """What costs without parts are together."""
    every = tuple(costs)
    stored, read, work = (
        sum(getattr(cost, part) for cost in every) for part in ("stored", "read", "work")
    )
    return Cost(stored, read, work)
