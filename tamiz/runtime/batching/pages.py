"""Pages of a cache that several sequences share."""

from __future__ import annotations

from collections.abc import Iterable

from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE


def pages_of(tokens: int) -> int:
    """Pages that hold the keys and values of so many tokens."""
    return -(-tokens // PAGE)


class Pages:
    """How many owners each page of a cache has; a page without an owner is free.

    Attributes:
        count: Pages of the cache.
    """

    def __init__(self, count: int) -> None:
        """All of `count` pages are free."""
        self.count = count
        self._free = list(range(count))[::-1]
        self._owners = [0] * count

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """Takes pages for their first owner; those that were returned last come first.

        Raises:
            TamizError: Too few are free.
        """
        if count > self.free:
            raise TamizError(
                f"{count} pages of {PAGE} tokens are needed, but {self.free} of the batch's"
                f" {self.count} are free; try again when a sequence was removed, or a batch of"
                " more tokens"
            )
        taken = [self._free.pop() for _ in range(count)]
        self.share(taken)
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """Adds an owner to each page."""
        for page in pages:
            self._owners[page] += 1

    def shared(self, page: int) -> bool:
        """Whether a page has more than one owner."""
        return self._owners[page] > 1

    def give_back(self, pages: list[int]) -> None:
        """Removes an owner from each page."""
        for page in reversed(pages):
            self._owners[page] -= 1
            if not self._owners[page]:
                self._free.append(page)
