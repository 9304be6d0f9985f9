"""Pages of tokens that were read before, under a name that says all that their contents depend on.

name_0 = H(scope),  name_n = H(name_{n-1}, tokens of the n-th page)

The keys and values of a token depend on the model, its switches and all tokens up to it, and not on
how the tokens were divided into runs. So a page that is found holds the bits that reading the
tokens again would give. Model and switches are those of the batch, whose cache this is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Ids
from hashlib import blake2b

import numpy as np

from tamiz.interface.states import PAGE
from tamiz.runtime.batching.page_files import PageFiles
from tamiz.runtime.batching.pages import Pages
from tamiz.runtime.batching.slots import Slots


class PrefixCache:
    """Full pages by the tokens that they end; the cache is one owner of each."""

    def __init__(
        self, pages: Pages, files: PageFiles | None = None, slots: Slots | None = None
    ) -> None:
        """Starts empty.

        Args:
            pages: The pages of the batch.
            files: Where pages outlive the process; None to keep them in memory only.
            slots: The states of fixed size of the batch, and copies of them; None for a model
                without such state.
        """
        self._pages, self._files, self._slots = pages, files, slots or Slots()
        self._named: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        """Number of pages that are kept."""
        return len(self._named)

    @property
    def unused(self) -> int:
        """Pages that no sequence reads, so that they can be freed."""
        return sum(not self._pages.shared(page) for page in self._named.values())

    def find(self, tokens: Ids[int], scope: bytes, slot: int = 0) -> list[int]:
        """Pages that hold the beginning of a text; the caller becomes an owner of each.

        Args:
            tokens: The text.
            scope: Only pages that were kept in the same scope are found.
            slot: Is filled with the state after them, of a model that has any in slots.
        """
        keys: list[bytes] = []
        pages: list[int] = []
        for name in names(tokens, scope):
            if name not in self._named and not self._load(name):
                break
            keys.append(name)
            pages.append(self._named[name])
            self._pages.share(pages[-1:])
        while keys and not self._slots.has(keys[-1]):
            self._pages.give_back([pages.pop()])
            keys.pop()
        if keys:
            self._slots.load(keys[-1], slot)
        self._touch(keys)
        return pages

    def known(self, tokens: Ids[int], scope: bytes) -> int:
        """Tokens of the beginning of a text whose pages are kept, with a copy of state or not."""
        count = 0
        for name in names(tokens, scope):
            if name not in self._named:
                break
            count += PAGE
        return count

    def keep(
        self,
        tokens: Ids[int],
        pages: Ids[int],
        scope: bytes,
        slot: int | None = None,
        answered: bool = False,
    ) -> None:
        """Keeps the full pages of a text that was read; a page that is kept already stays.

        Args:
            tokens: The text.
            pages: Its pages.
            scope: Where they are found.
            slot: Has the state after the last full page; None where no slot has it.
            answered: Whether this page ends in an answer; see `Slots.save`.
        """
        kept = list(names(tokens, scope))
        if kept and slot is not None:
            self._slots.save(kept[-1], slot, answered)
        for name, page in zip(kept, pages, strict=False):
            if name not in self._named:
                self._named[name] = page
                self._pages.share([page])
                if self._files is not None:
                    self._files.save(name, page)
        self._touch([name for name in kept if name in self._named])

    def evict(self, count: int) -> None:
        """Frees up to `count` pages that no sequence reads, those of the oldest use first."""
        unused = (name for name, page in self._named.items() if not self._pages.shared(page))
        for name in [name for name, _ in zip(unused, range(count), strict=False)]:
            self._pages.give_back([self._named.pop(name)])

    def _load(self, name: bytes) -> bool:
        """Takes a page from its file, if there is one and there is room for it."""
        if self._files is None or not self._files.has(name):
            return False
        self.evict(max(0, 1 - self._pages.free))
        if not self._pages.free:
            return False
        taken = self._pages.take(1)
        if self._files.load(name, taken[0]):
            self._named[name] = taken[0]
            return True
        self._pages.give_back(taken)
        return False

    def _touch(self, used: list[bytes]) -> None:
        """Marks pages as used, the beginning of a text last: without it none of them is found."""
        for name in reversed(used):
            self._named.move_to_end(name)


def names(tokens: Ids[int], scope: bytes) -> Iterator[bytes]:
    """The names of the full pages of a text."""
    name = blake2b(scope, digest_size=32).digest()
    for end in range(PAGE, len(tokens) + 1, PAGE):
        page = np.array(tokens[end - PAGE : end], np.int64).tobytes()
        name = blake2b(name + page, digest_size=32).digest()
        yield name
