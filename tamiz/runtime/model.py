"""Runs a decoder bundle in onnxruntime: sequences with a KV cache, and generation.

Imported by the processes whose memory is measured: numpy and onnxruntime, nothing else that is
heavy. The text side (tokenizer, stop strings, chat) is `tamiz.runtime.text.stream`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ids
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.bundle import MODEL, Bundle
from tamiz.files.errors import TamizError
from tamiz.interface.states import OF_DECODERS, PAST, SEQUENCES, TYPES, State, decodes
from tamiz.interface.switches import switch_input
from tamiz.runtime.gains import Gains, Measure, ratios
from tamiz.runtime.kv_cache import ExactSequence, SharedSequence
from tamiz.runtime.sampling import Sampler, Sampling
from tamiz.runtime.sequence import CHUNK, Decoder, Logits, Sequence, check_tokens
from tamiz.runtime.session import has_ops, load_session
from tamiz.runtime.speculation.prices import Prices
from tamiz.runtime.speculation.settings import Resolved, Speculation
from tamiz.runtime.speculation.speculator import decoding
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.switches import AUTO, check_switches, switchable
from tamiz.runtime.text.ends import ends_by_id, ends_by_name, stop_strings

if TYPE_CHECKING:
    from tamiz.runtime.text.tokenizer import Tokenizer

#: Tokens of an answer that a new sequence has room for, if so many are requested; it grows.
_ANSWER = 1 << 14
#: Most tokens that a model can have: more than any has, and their cache can be addressed.
_LONGEST = 1 << 28

#: Takes a token and the logits ``[V]`` from which it was drawn.
Observer = Callable[[int, Logits], None]


class Model:
    """A decoder bundle, loaded. Sequences of one model may run in turn, in one thread.

    Attributes:
        limit: Tokens that a sequence can have (``max_position_embeddings``).
        vocabulary: Number of logits.
        states: What the graph keeps of a sequence: the KV cache, and whatever else comes in as
            ``past_…`` and goes out as ``present_…``.
        has_positions: Whether the graph takes position_ids.
        can_keep: Whether it takes logits_to_keep, the number of last positions to compute logits
            for; without it a prompt's logits are all computed.
        has_sequences: Whether a run can have tokens of several sequences, see
            `tamiz.runtime.batching.batch`.
        shared_cache: Whether the cache may be one buffer, appended in place.
        prices: What runs cost; learned while tokens are generated with speculation.
        switches: Techniques that a run can do without.
        without: Those that new sequences do without.
        gains: Switches techniques off by what steps take; None unless `auto` was requested.
    """

    def __init__(
        self,
        bundle: Bundle,
        session: ort.InferenceSession,
        constants: Ids[ort.OrtValue] = (),
        without: Iterable[str] = (),
        measure: Measure = ratios,
    ) -> None:
        """Wraps a session and the constants that were read for it; use `load`."""
        self.bundle = bundle
        self.session = session
        self._constants = constants
        inputs = {value.name: value for value in session.get_inputs()}
        outputs = {value.name: value for value in session.get_outputs()}
        path = bundle.path / MODEL
        for name in ("input_ids", "attention_mask"):
            if name not in inputs:
                raise TamizError(f"{path}: has no input {name}, expected a decoder")
        if "logits" not in outputs:
            raise TamizError(f"{path}: has no output logits, expected a decoder")
        self.states = [_state(path, inputs[n]) for n in inputs if n.startswith(PAST)]
        if not self.states:
            raise TamizError(f"{path}: has no inputs past_key_values.*, expected a KV cache")
        if missing := [s.present for s in self.states if s.present not in outputs]:
            raise TamizError(f"{path}: has no output {missing[0]}, which its past input needs")
        if not decodes(inputs):
            other = next(n for n in inputs if not n.startswith(PAST) and n not in OF_DECODERS)
            raise TamizError(
                f"{path}: requires the input {other}, expected only {', '.join(OF_DECODERS)} and "
                "states; run it with onnxruntime"
            )
        self.has_positions = "position_ids" in inputs
        optional = {value.name for value in session.get_overridable_initializers()}
        self.can_keep = "logits_to_keep" in optional
        self.has_sequences = SEQUENCES in optional
        self.switches = switchable(session)
        named = frozenset(without)
        self.without = check_switches(bundle, self.switches, named - {AUTO})
        self.gains: Gains | None = None
        if AUTO in named:
            rest = [name for name in self.switches if name not in self.without]
            self.gains = Gains(rest, bundle.manifest.step_techniques, measure)
        self.vocabulary = int(outputs["logits"].shape[-1])
        self.limit = _positive(bundle, "max_position_embeddings")
        self._ends = ends_by_id(bundle)
        self._stop_strings = stop_strings(bundle)
        self.shared_cache = bundle.manifest.kv_cache == "shared"
        self.prices = Prices()

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        threads: int | None = None,
        without: Iterable[str] = (),
        measure: Measure = ratios,
    ) -> Model:
        """Opens a bundle and makes its session.

        Args:
            directory: The bundle.
            threads: Threads that work on one run; None leaves it to onnxruntime (physical cores).
            without: Techniques to switch off: runs compute what a bundle without them computes.
                The name `auto` adds those that make a step slower. `generate` measures this after
                it has run a prompt, and again at twice the context; answers then depend on the
                machine.
            measure: Measures techniques for `auto`.

        Raises:
            TamizError: No valid bundle, not a decoder, or onnxruntime is too old or refuses it; or
                one of `without` cannot be switched off.
        """
        bundle = Bundle.open(directory)
        session, constants = load_session(bundle, threads)
        return cls(bundle, session, constants, without, measure)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The bundle's tokenizer, loaded when it is used first.

        Raises:
            TamizError: The bundle has none, or it is malformed.
        """
        from tamiz.runtime.text.tokenizer import Tokenizer

        return Tokenizer(self.bundle)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that end an answer; see `tamiz.runtime.text.ends`."""
        return self._ends | (
            ends_by_name(self.tokenizer) if self.bundle.has_tokenizer else frozenset()
        )

    def stop_strings(self, more: Iterable[str], sampling: Sampling) -> tuple[str, ...]:
        """Strings that end an answer: those of a caller, and of the model unless ends are ignored.

        Args:
            more: Of the caller.
            sampling: How tokens are drawn.
        """
        return (*more, *(() if sampling.ignore_eos else self._stop_strings))

    @cached_property
    def _never(self) -> frozenset[int]:
        """Tokens that have logits but no text: the head is larger than the vocabulary."""
        if not self.bundle.has_tokenizer:
            return frozenset()
        return frozenset(self.tokenizer.lacks(range(self.vocabulary)))

    def sampler(self, sampling: Sampling, prompt: Iterable[int]) -> Sampler:
        """Draws the tokens that follow a prompt; tokens without text are never drawn.

        Raises:
            TamizError: `logit_bias` names a token that the model does not know.
        """
        check_tokens([*sampling.logit_bias], self.vocabulary)
        never = self._never | self.stop_ids if sampling.ignore_eos else self._never
        return Sampler(sampling, prompt, never)

    def counts(self) -> dict[str, dict[str, dict[str, float]]]:
        """What the ops of the model counted in all runs so far, see `tamiz_ops.op_counts`."""
        if not has_ops(self.bundle):
            return {}
        import tamiz_ops

        return tamiz_ops.op_counts(self.session)

    def sequence(self, capacity: int = CHUNK) -> Sequence:
        """An empty sequence.

        Args:
            capacity: Tokens to make room for; it grows when they do not suffice.
        """
        decoder = Decoder(
            self.bundle.path,
            self.session,
            self.states,
            self.vocabulary,
            self.limit,
            self.has_positions,
            self.can_keep,
            self.switches,
            self.without,
        )
        if self.shared_cache:
            return SharedSequence(decoder, min(capacity, self.limit))
        return ExactSequence(decoder)

    def generate(
        self,
        prompt: Ids[int],
        sampling: Sampling,
        max_new_tokens: int | None = None,
        sequence: Sequence | None = None,
        speculation: Speculation | None = None,
        statistics: SpeculationStatistics | None = None,
        observe: Observer | None = None,
    ) -> Iterator[int]:
        """Yields the tokens that follow a prompt, up to and without a stop token.

        Args:
            prompt: Token ids, at least one.
            sampling: How tokens are drawn.
            max_new_tokens: Largest number of tokens; None, or more than the model's limit leaves,
                for what it leaves.
            sequence: Continues there: what it shares with the beginning of the prompt is not run
                again. It must have been run without the techniques that the answer does without.
            speculation: How tokens are guessed ahead; None for mode `auto`. In mode `self`
                the tokens are those of the model without the techniques that can be switched off;
                in all other modes they are those of mode `off`.
            statistics: Gets what came of the guesses.
            observe: Called with each token and the logits ``[V]`` from which it was drawn, which
                are valid during the call.

        Raises:
            TamizError: The prompt is empty, or leaves no room for a token in the limit; or the
                model cannot verify guesses and the mode demands it; or see `sampler`.
        """
        room = self.limit - len(prompt)
        if not prompt:
            raise TamizError("the prompt is empty, expected at least one token")
        if room < 1:
            raise TamizError(
                f"the prompt's {len(prompt)} tokens do not fit: the model's limit is"
                f" {self.limit} tokens (max_position_embeddings of config.json)"
            )
        count = room if max_new_tokens is None else min(room, max_new_tokens)
        if sequence is None:
            sequence = self.sequence(len(prompt) + min(count, _ANSWER if max_new_tokens else CHUNK))
        speculation = speculation or Speculation()
        statistics = statistics or SpeculationStatistics()
        # Errors are raised before the first token; `_generate` resolves again after a measurement.
        resolved = self.resolve(speculation)
        sampler = self.sampler(sampling, prompt)
        return self._generate(
            prompt, sampler, count, sequence, speculation, resolved, statistics, observe
        )

    def _generate(
        self,
        prompt: Ids[int],
        sampler: Sampler,
        count: int,
        sequence: Sequence,
        speculation: Speculation,
        resolved: Resolved,
        statistics: SpeculationStatistics,
        observe: Observer | None,
    ) -> Iterator[int]:
        unread = prompt[sequence.keep_prefix(prompt) :]
        sequence.switch_off(resolved.off)
        logits = sequence.read(unread)
        if self.gains is not None:
            if self.gains.due(sequence):
                logits = self.gains.settle(sequence, logits, len(unread), self.without)
            resolved = self.resolve(speculation)
        end = len(prompt) + count - 1
        with decoding(sequence, sampler, resolved, statistics, self.prices, end) as step:
            for remaining in range(count, 0, -1):
                token = sampler(logits)
                if token in self.stop_ids:
                    return
                if observe is not None:
                    observe(token, logits)
                yield token
                if remaining > 1:
                    logits = step(token)

    def resolve(self, speculation: Speculation) -> Resolved:
        """What settings of speculation mean for this model.

        Raises:
            TamizError: See `generate`.
        """
        if self.gains is None:
            return speculation.resolve(self.bundle, self.switches, self.without)
        if speculation.mode == "self":
            raise TamizError(
                f"--speculate=self and --without={AUTO} exclude each other: the answer would do"
                " without the techniques that are measured; try --speculate=auto"
            )
        off = self.without | self.gains.off
        return speculation.resolve(self.bundle, self.switches, off)

    def logits(
        self, input_ids: NDArray[np.int64], attention_mask: NDArray[np.int64] | None = None
    ) -> Logits:
        """Logits of whole sequences, without a cache.

        Args:
            input_ids: ``[B, S]``.
            attention_mask: ``[B, S]``, 0 at padding (on the left); None for no padding.

        Returns:
            ``[B, S, V]``; rows of padding hold nothing meaningful.
        """
        batch = len(input_ids)
        mask = np.ones_like(input_ids) if attention_mask is None else attention_mask
        feeds = {"input_ids": input_ids, "attention_mask": mask}
        if self.has_positions:
            feeds["position_ids"] = np.maximum(mask.cumsum(axis=1) - 1, 0)
        feeds |= {state.past: state.zeros(batch) for state in self.states}
        feeds |= {switch_input(name): np.ones(1, np.int64) for name in self.without}
        result: Logits = self.session.run(["logits"], feeds)[0].astype(np.float32, copy=False)
        return result


def _state(path: Path, value: ort.NodeArg) -> State:
    """The state that comes in at an input."""
    if (state := State.of(value)) is None:
        raise TamizError(
            f"{path}: {value.name} is {value.type} {value.shape}, expected one of"
            f" {', '.join(TYPES)} with one dimension besides the batch that grows, or none"
        )
    return state


def _positive(bundle: Bundle, key: str) -> int:
    value = bundle.json("config.json").get(key)
    if type(value) is not int or not 1 <= value <= _LONGEST:
        raise TamizError(
            f"{bundle.path / 'config.json'}: {key} is {value!r}, expected an int from 1 to"
            f" {_LONGEST}"
        )
    return value
