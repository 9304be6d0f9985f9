"""Pages of a cache that several sequences share."""

from __future__ import annotations

from tamiz.files.errors import TamizError

#: Tokens of a page, as the op `Attention` divides a cache.
PAGE = 64


def pages_of(tokens: int) -> int:
    """Pages that hold the keys and values of so many tokens."""
    return -(-tokens // PAGE)


class Pages:
    """Which pages of a cache are free.

    Attributes:
        count: Pages of the cache.
    """

    def __init__(self, count: int) -> None:
        """All of `count` pages are free."""
        self.count = count
        self._free = list(range(count))[::-1]

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, tokens: int) -> list[int]:
        """Takes pages for so many tokens; those that were returned last come first.

        Raises:
            TamizError: Too few are free.
        """
        wanted = pages_of(tokens)
        if wanted > self.free:
            raise TamizError(
                f"a sequence of {tokens} tokens needs {wanted} pages of {PAGE} tokens, but"
                f" {self.free} of the batch's {self.count} are free; try again when a sequence was"
                " removed, or a batch of more tokens"
            )
        return [self._free.pop() for _ in range(wanted)]

    def give_back(self, pages: list[int]) -> None:
        """Makes pages free."""
        self._free += reversed(pages)
