"""A sequence of a batch: what it has read, and what the next runs read."""

from __future__ import annotations

from collections.abc import Sequence as Ids

from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE
from tamiz.runtime.sequence import Logits, check_tokens


class Member:
    """One sequence of a batch.

    Attributes:
        tokens: What has been read so far.
        unread: What the next runs read.
        drafts: Tokens that may follow the unread ones; the run that reads the last unread token
            reads them as well, so that `accept` can keep those that prove right.
        room: Tokens that it can have.
        cached: Tokens of the prompt that an earlier sequence had read.
        slot: Where its state of fixed size lies, of a model that has any.
        branch: Tokens that it shares with texts that were read before, in whole pages.
        prompt: Tokens that are read as a prompt; those behind are decode steps.
        rows: Logits ``[1 + drafts, V]`` after the last token and after each draft, until the batch
            runs again; None while tokens are unread.
    """

    def __init__(
        self,
        prompt: Ids[int],
        room: int,
        pages: list[int],
        vocabulary: int,
        cached: int = 0,
        most_drafts: int | None = None,
    ) -> None:
        """Use `Batch.add`."""
        self.tokens = list(prompt[:cached])
        self.unread = list(prompt[cached:])
        self.drafts: list[int] = []
        self.room = room
        self.cached = cached
        self.rows: Logits | None = None
        self.pages = pages
        self.kept = cached // PAGE
        self.prompt = len(prompt)
        self.scope = b""
        self.slot = self.branch = 0
        self._vocabulary, self._most_drafts = vocabulary, most_drafts

    @property
    def logits(self) -> Logits | None:
        """``[V]`` of the token that follows all that were read; None while tokens are unread."""
        return None if self.rows is None else self.rows[-1]

    def append(self, token: int) -> None:
        """Adds a token for the next run to read.

        Raises:
            TamizError: The model does not know the token, or the sequence has no room for it.
        """
        check_tokens((token,), self._vocabulary)
        if len(self.tokens) + len(self.unread) >= self.room:
            raise TamizError(
                f"the sequence has {self.room} tokens, which is all that it was added with room"
                " for; try more room in Batch.add"
            )
        self.unread.append(token)
        self.rows, self.drafts = None, []

    def propose(self, drafts: Ids[int]) -> None:
        """Lets the run that reads the last unread token verify guesses of those that follow it.

        Args:
            drafts: Token ids; those that the sequence has no room for are left out, and those
                that what the model keeps of it could not forget.

        Raises:
            TamizError: The model does not know one of them.
        """
        check_tokens(drafts, self._vocabulary)
        room = self.room - len(self.tokens) - len(self.unread)
        self.drafts = list(drafts[:room][: self._most_drafts])

    def accept(self, drafts: int) -> None:
        """Keeps so many drafts of the last run, and forgets those behind them."""
        if self.rows is None:
            raise TamizError("the sequence has unread tokens, so no draft was verified")
        del self.tokens[len(self.tokens) - len(self.rows) + 1 + drafts :]
        self.rows = self.rows[: 1 + drafts]
