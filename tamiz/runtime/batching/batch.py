"""Several sequences of one model in one run.

A run reads the weights once for all its tokens, so that a step of eight sequences takes little
longer than a step of one. The tokens of all sequences stand in one row of the batch, without
padding; the graph's input `sequences` says which are whose, and in which pages of the cache the
keys and values of each lie. Every sequence has the text and the logits that it has alone, bit for
bit; so pages that were read once serve every sequence that begins with the same tokens.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterable, Iterator
from collections.abc import Sequence as Ids
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.bundle import MODEL
from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE, SEQUENCES, SLOTS, SPARE
from tamiz.interface.switches import switch_input
from tamiz.runtime import large_pages
from tamiz.runtime.batching.batchable import acting_in_steps, check_batchable, is_cache
from tamiz.runtime.batching.member import Member
from tamiz.runtime.batching.pace import Pace
from tamiz.runtime.batching.page_files import FilesOfPages, PageFiles
from tamiz.runtime.batching.pages import Pages, pages_of
from tamiz.runtime.batching.prefix_cache import PrefixCache
from tamiz.runtime.batching.slots import Slots, slots_of
from tamiz.runtime.kv_cache import bind
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampler, Sampling
from tamiz.runtime.sequence import CHUNK, Logits, check_tokens

_log = logging.getLogger("tamiz.runtime")
#: Decode steps that choose keys of which a run reads so many at most where they are known.
_STEPS = 32


class Batch:
    """Sequences of one model that are read together; they come and go between runs.

    Attributes:
        members: The sequences that are in the batch, in the order in which they came.
        tokens: Tokens that all sequences together can have.
    """

    def __init__(
        self,
        model: Model,
        tokens: int,
        slowdown: float = 1.45,
        prefixes: bool = False,
        files: FilesOfPages | None = None,
    ) -> None:
        """Allocates the cache; pages that were never used cost no memory.

        Args:
            model: The model. A batch has the switches of its `without`.
            tokens: Tokens that all sequences together can have, rounded up to pages of 64.
            slowdown: How many times as long a run may take while a prompt is read, as one where
                all sequences step: the prompt is read in parts of as many tokens as this allows.
                Where more prompts are read than sequences step, a run may take longer: each
                sequence gets an equal share of the time.
            prefixes: Pages of tokens that were read stay, as long as no sequence needs their room,
                for sequences that begin with the same tokens.
            files: Where these pages lie as files, for the next batch of this model.

        Raises:
            TamizError: The bundle does not run with several sequences, a number is out of range,
                or the cache is larger than the machine's memory.
        """
        check_batchable(model)
        if tokens < 1:
            raise TamizError(f"tokens is {tokens}, expected at least 1")
        if slowdown < 1:
            raise TamizError(f"slowdown is {slowdown}, expected at least 1")
        self.members: list[Member] = []
        self._model = model
        pages = pages_of(tokens)
        self.tokens = pages * PAGE
        # Refuses what the memory does not hold, before there is a list of so many pages.
        slots = slots_of(model.states, pages)
        self._cache = large_pages.arrays((s.paged(pages, slots), s.dtype) for s in model.states)
        self._pages = Pages(pages)
        self._slots = Slots(model.states, self._cache, slots)
        self._files = None
        if files is not None and slots:
            path = model.bundle.path
            _log.warning("%s: keeps a state of each sequence, so no pages go to files", path)
        elif files is not None:
            self._files = PageFiles(model, self._cache, files.folder, files.most_bytes)
        self._prefixes = PrefixCache(self._pages, self._files, self._slots)
        self._keeps = prefixes
        # Keys and values of a decode step then differ from those of a prompt.
        others = [state for state in model.states if not (state.recent or is_cache(state))]
        self._chooses = bool(acting_in_steps(model) and others)
        self._most_drafts = SPARE if any(state.recent for state in model.states) else None
        self._pace = Pace(slowdown)
        self._turn = 0  # the sequence whose prompt is read first
        self._binding = model.session.io_binding()
        for state, buffer in zip(model.states, self._cache, strict=True):
            bind(self._binding.bind_input, state.past, buffer)
            bind(self._binding.bind_output, state.present, buffer)
        self._off = np.ones(1, np.int64)
        for name in model.without:
            bind(self._binding.bind_input, switch_input(name), self._off)

    @property
    def free(self) -> int:
        """Tokens that the pages hold which no sequence has; 0 where none can join."""
        if not self._slots.free:
            return 0
        return (self._pages.free + self._prefixes.unused) * PAGE

    @property
    def lacking(self) -> int:
        """Tokens for which the next run may lack pages, see `add`."""
        ends = ((len(m.tokens) + len(m.unread) + len(m.drafts), m) for m in self.members)
        return sum(max(0, pages_of(end) - len(m.pages)) for end, m in ends) * PAGE - self.free

    def add(
        self,
        prompt: Ids[int],
        room: int,
        reserve: bool = True,
        scope: bytes = b"",
        answered: int = 0,
    ) -> Member:
        """Adds a sequence; the next runs read its prompt.

        Args:
            prompt: Token ids, at least one.
            room: Tokens that the sequence can have, with its prompt.
            reserve: Pages for all its room are taken now, so that the sequence can come to its
                end. Without it they are taken as it grows: before each run, `lacking` must not be
                above 0.
            scope: Pages are shared only among sequences of one scope.
            answered: Last tokens of `prompt` that were answered before, in a sequence that was
                removed: they are read as the decode steps that they were.

        Raises:
            TamizError: The prompt is empty, does not fit, or has a token that the model does not
                know; or too few pages are free.
        """
        if not 0 < len(prompt) <= room:
            raise TamizError(
                f"the prompt has {len(prompt)} tokens, expected at least 1 and at most the"
                f" sequence's room of {room}"
            )
        if room > self._model.limit:
            raise TamizError(
                f"a sequence of {room} tokens does not fit: the model's limit is"
                f" {self._model.limit} tokens (max_position_embeddings of config.json)"
            )
        check_tokens(prompt, self._model.vocabulary)
        # The last token is read in any case: its logits are wanted.
        asked = len(prompt) - answered
        alike = min(asked, len(prompt) - 1) if self._chooses else len(prompt) - 1
        slot = self._slots.take()
        branch = self._prefixes.known(prompt[:alike], scope) if self._slots.count else 0
        pages = self._prefixes.find(prompt[:alike], scope, slot)
        cached = len(pages) * PAGE
        try:
            pages += self._take(pages_of(room if reserve else len(prompt)) - len(pages))
        except TamizError:
            self._pages.give_back(pages)
            self._slots.give_back(slot)
            raise
        member = Member(prompt, room, pages, self._model.vocabulary, cached, self._most_drafts)
        member.scope, member.prompt = scope, asked
        member.slot, member.branch = slot, branch
        self.members.append(member)
        return member

    def remove(self, member: Member) -> None:
        """Removes a sequence; its pages are free for others.

        Raises:
            ValueError: It is not in the batch.
        """
        self.members.remove(member)
        self._keep(member)
        self._pages.give_back(member.pages)
        self._slots.give_back(member.slot)

    def close(self) -> None:
        """Ends the writing of pages to files; other batches need no end."""
        if self._files is not None:
            self._files.close()

    def run(self) -> list[Member]:
        """Reads one token of each sequence that has one unread, and parts of unread prompts.

        Returns:
            The sequences that nothing is unread of since this run: their `logits` are set.
        """
        steps = [member for member in self.members if len(member.unread) == 1]
        parts = self._parts(steps)
        if not steps and not parts:
            return []
        for member in self.members:
            self._keep(member)
        # Where logits are wanted comes last: the head is computed for these rows only.
        ready = [member for member, count in parts if count == len(member.unread)] + steps
        segments = [(m, m.unread[: count - (m in ready)]) for m, count in parts]
        rows = [(member, [member.unread[-1], *member.drafts]) for member in ready]
        start = time.perf_counter()
        logits = self._read(
            [segment for segment in segments if segment[1]] + rows, sum(len(r) for _, r in rows)
        )
        seconds = time.perf_counter() - start
        drafts = sum(len(member.drafts) for member in steps)
        self._pace.add(len(steps) + drafts, sum(count for _, count in parts), seconds)
        for member, ids in rows:
            member.rows, logits = logits[: len(ids)], logits[len(ids) :]
            member.unread, member.drafts = [], []
        return ready

    def generate(
        self, prompts: Iterable[Ids[int]], sampling: Sampling, max_new_tokens: int
    ) -> Generator[tuple[int, int], None, None]:
        """Yields the tokens that follow prompts, as they come.

        A prompt joins when there are pages for it and for its answer, in the order of `prompts`.
        The answer of a member that is removed meanwhile ends.

        Args:
            prompts: Token ids of each.
            sampling: How tokens are drawn; each answer is that of `Model.generate`.
            max_new_tokens: Largest number of tokens of an answer, at least 1; an answer may have
                fewer at the model's limit.

        Yields:
            The number of the prompt, from 0 on, and a token of its answer.

        Raises:
            TamizError: A prompt with its answer does not fit in the model's limit or in the
                batch, see `add`.
        """
        answers: dict[Member, tuple[int, Sampler]] = {}
        waiting = enumerate(prompts)
        following = next(waiting, None)
        try:
            while answers or following:
                answers = {m: answer for m, answer in answers.items() if m in self.members}
                while following:
                    number, prompt = following
                    room = min(len(prompt) + max_new_tokens, self._model.limit)
                    if answers and room > self.free:
                        break
                    sampler = self._model.sampler(sampling, prompt)
                    answers[self.add(prompt, room)] = number, sampler
                    following = next(waiting, None)
                for member in self.run():
                    logits = member.logits
                    if member not in answers or logits is None:
                        continue
                    number, sampler = answers[member]
                    token = sampler(logits)
                    ended = token in self._model.stop_ids
                    if not ended:
                        yield number, token
                        member.append(token)
                    if (ended or len(member.tokens) + 1 == member.room) and member in self.members:
                        self.remove(member)
        finally:
            for member in self.members[:]:
                if member in answers:
                    self.remove(member)

    def _parts(self, steps: list[Member]) -> list[tuple[Member, int]]:
        """Sequences that have more than a token unread, and how many tokens the run reads."""
        waiting, left = [member for member in self.members if len(member.unread) > 1], CHUNK
        if steps:
            rows = sum(1 + len(member.drafts) for member in steps)
            left = self._pace.tokens(rows, len(waiting) / len(steps))
        self._turn = (self._turn + 1) % max(1, len(waiting))
        parts = []
        # Each gets an equal share; where there are fewer tokens than sequences, they take turns.
        for place, member in enumerate(waiting[self._turn :] + waiting[: self._turn]):
            share = -(-left // (len(waiting) - place))
            if count := min(share, self._most_of(member)):
                parts.append((member, count))
                left -= count
        return parts

    def _most_of(self, member: Member) -> int:
        """Unread tokens that a run may have of a sequence."""
        unread, prompt = len(member.unread), member.prompt - len(member.tokens)
        if self._keeps and self._slots.count:  # so that its state is copied at the ends of pages
            read = len(member.tokens)
            last = (read + unread - 1) // PAGE * PAGE
            unread = min([unread, *(end - read for end in (member.branch, last) if end > read)])
        if not self._chooses or prompt >= unread:
            return unread
        return prompt if prompt > 0 else min(unread, _STEPS)

    def _take(self, count: int) -> list[int]:
        """Takes pages, if need be those that no sequence reads any more."""
        self._prefixes.evict(max(0, count - self._pages.free))
        return self._pages.take(count)

    def _keep(self, member: Member) -> None:
        """Keeps the pages that a sequence has filled since the last run."""
        alike = min(len(member.tokens), member.prompt) if self._chooses else len(member.tokens)
        full = alike // PAGE
        if self._keeps and full > member.kept:
            slot = member.slot if alike == full * PAGE == len(member.tokens) else None
            answered = len(member.tokens) > member.prompt
            text = member.tokens[:alike]
            self._prefixes.keep(text, member.pages, member.scope, slot, answered)
            member.kept = full

    def _read(self, segments: list[tuple[Member, list[int]]], keep: int) -> Logits:
        """Reads these tokens of each member; returns the logits ``[keep, V]`` of the last."""
        model, ids, positions, rows = self._model, list[int](), list[int](), []
        slots = list[int]()
        width = 0
        for member, part in segments:
            past, end = len(member.tokens), len(member.tokens) + len(part)
            member.pages += self._take(max(0, pages_of(end) - len(member.pages)))
            own = [
                (start, count, member.pages[: pages_of(start + abs(count))])
                for start, count in self._segments(member, past, end)
            ]
            rows += own
            slots += [member.slot] * len(own)
            width = max(width, pages_of(end))
            member.tokens += part
            del member.unread[: len(part)]
            ids += part
            positions += range(past, end)
        table = np.zeros((len(rows), 2 + width), np.int64)
        for row, (past, count, pages) in zip(table, rows, strict=True):
            row[:2], row[2 : 2 + len(pages)] = (past, count), pages
        feeds = {
            "input_ids": np.array([ids]),
            "position_ids": np.array([positions]),
            "attention_mask": np.ones((1, len(ids)), np.int64),
            SEQUENCES: table,
        }
        if self._slots.count:
            feeds[SLOTS] = np.array(slots, np.int64)
        count = len(ids)
        if model.can_keep:
            count = max(1, keep)
            feeds["logits_to_keep"] = np.array([count])
        logits = np.empty((1, count, model.vocabulary), np.float32)
        self._run(feeds, logits)
        last: Logits = logits[0, count - keep :]
        return last

    def _segments(self, member: Member, past: int, end: int) -> Iterator[tuple[int, int]]:
        """Divides tokens of a sequence into segments, each with its first and its count.

        Decode steps that choose keys are segments of their own, whose count is -1.
        """
        steps = max(past, min(end, member.prompt)) if self._chooses else end
        if steps > past:
            yield past, steps - past
        for step in range(steps, end):
            yield step, -1

    def _run(self, feeds: dict[str, NDArray[Any]], logits: Logits) -> None:
        for name, array in feeds.items():
            bind(self._binding.bind_input, name, array)
        bind(self._binding.bind_output, "logits", logits)
        try:
            self._model.session.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's exceptions share no base class
            reason = str(error).strip().splitlines()[0]
            path = self._model.bundle.path / MODEL
            raise TamizError(f"{path}: does not run with several sequences: {reason}") from error
