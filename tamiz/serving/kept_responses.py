"""The latest responses, which later ones may continue."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from tamiz.serving.errors import ApiError

#: Responses that are kept.
MOST_KEPT = 1000


@dataclass(frozen=True)
class Kept:
    """A response that a later one may continue.

    Attributes:
        scope: Whose it is; others do not find it.
        messages: The conversation with its answer.
        response: The response.
    """

    scope: bytes
    messages: list[dict[str, Any]]
    response: dict[str, Any]


class Kepts:
    """The latest responses, in memory."""

    def __init__(self) -> None:
        """Has none yet."""
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def add(self, kept: Kept) -> None:
        """Keeps a response, in place of the oldest one where there are too many."""
        self._kept[kept.response["id"]] = kept
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)

    def find(self, name: str, scope: bytes) -> Kept:
        """A response by its id.

        Raises:
            ApiError: There is none, or it is somebody else's.
        """
        kept = self._kept.get(name)
        if kept is None or kept.scope != scope:
            raise ApiError(404, f"there is no response {name}", code="response_not_found")
        return kept

    def remove(self, name: str, scope: bytes) -> None:
        """Forgets a response; see `find`."""
        self.find(name, scope)
        del self._kept[name]
