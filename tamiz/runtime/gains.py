"""``--without auto``: switches off the techniques that make a step of this machine slower.

    ratio of a technique = seconds of a step with it / seconds of a step without it

Both are measured alternately at the present context, in steps that the sequence then forgets. What
is measured depends on the machine and on what else it does, so answers do as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass

from tamiz.runtime.sequence import Logits, Sequence

#: Rounds of a measurement; a round times each choice of techniques once.
ROUNDS = 7
#: Steps of a choice in a round. The first one is not timed: it may find cold caches.
STEPS = 5

#: Measures a sequence that a token follows: ratios by technique, one a round.
Measure = Callable[[Sequence, int, Collection[str], Collection[str]], Mapping[str, Ids[float]]]


@dataclass(frozen=True)
class Gain:
    """What a technique gains in a step.

    Attributes:
        ratio: Seconds of a step with it, divided by seconds without it; median over rounds.
        spread: Half of the distance between the quartiles of the rounds' ratios.
        context: Tokens of the sequence that was measured.
    """

    ratio: float
    spread: float
    context: int

    @classmethod
    def of(cls, ratios: Iterable[float], context: int) -> Gain:
        """From the ratios of at least two rounds."""
        low, middle, high = statistics.quantiles(ratios, n=4)
        return cls(round(middle, 3), round((high - low) / 2, 3), context)

    @property
    def slower(self) -> bool:
        """Whether the technique makes a step slower by more than the spread."""
        return self.ratio - self.spread > 1


class Gains:
    """Techniques that a model switches off where they gain nothing.

    Attributes:
        measured: Each technique's last measurement.
        off: The techniques that were slower in it.
    """

    def __init__(
        self, names: Collection[str], step_techniques: Collection[str], measure: Measure
    ) -> None:
        """Starts without measurements, and with nothing switched off.

        Args:
            names: Techniques that may be switched off.
            step_techniques: Those that change single steps only, not prompts.
            measure: `ratios`, or what stands in for it.
        """
        self.measured: dict[str, Gain] = {}
        self.off: frozenset[str] = frozenset()
        self._names = tuple(names)
        self._step_techniques = frozenset(step_techniques)
        self._measure = measure
        self._context = 0

    @property
    def switched_off(self) -> dict[str, Gain]:
        """The measurements of the techniques that are off."""
        return {name: gain for name, gain in self.measured.items() if name in self.off}

    def due(self, sequence: Sequence) -> bool:
        """Whether the sequence is twice as long as the one that was measured last, or the first.

        A sequence near the model's limit has no room for the steps.
        """
        length = len(sequence.tokens)
        room = sequence.room >= STEPS
        return bool(self._names) and room and length >= 2 * self._context

    def settle(
        self, sequence: Sequence, logits: Logits, unread: int, fixed: Collection[str] = ()
    ) -> Logits:
        """Measures a sequence, and leaves it as if it had been read without what is slower.

        Args:
            sequence: Has just run a prompt without `fixed` and `off`.
            logits: After its last token.
            unread: Number of tokens that it read in this call; more were there before.
            fixed: Techniques that are off anyway.

        Returns:
            The logits after its last token.
        """
        logits, text, before = logits.copy(), list(sequence.tokens), self.off
        gains = self._measure(sequence, int(logits.argmax()), fixed, self._names)
        self._context = len(text)
        self.measured = {name: Gain.of(each, len(text)) for name, each in gains.items()}
        self.off = frozenset(name for name, gain in self.measured.items() if gain.slower)
        sequence.switch_off({*fixed, *self.off})
        changed = self.off ^ before
        # A prompt of which one token was unread was read by a step.
        if changed - self._step_techniques or (changed and unread == 1):
            sequence.truncate(0)
            logits = sequence.read(text)
        return logits


def ratios(
    sequence: Sequence,
    token: int,
    fixed: Collection[str],
    names: Collection[str],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Times steps with all techniques and without one, in rounds.

    Args:
        sequence: The sequence; has its tokens and its state afterwards.
        token: The token that follows.
        fixed: Techniques that no step has.
        names: Techniques to compare with steps without them.
        clock: Returns seconds.

    Returns:
        By technique and round: seconds with it, divided by seconds without it.
    """
    sequence.keep()
    by_name: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(ROUNDS):
        every = _seconds(sequence, token, fixed, clock)
        for name in names:
            by_name[name].append(every / _seconds(sequence, token, {*fixed, name}, clock))
    return by_name


def _seconds(
    sequence: Sequence, token: int, off: Collection[str], clock: Callable[[], float]
) -> float:
    """The least time of greedy steps without `off`, which the sequence forgets.

    What disturbs a step makes it longer, often two or three in a row.
    """
    length, seconds = len(sequence.tokens), []
    sequence.switch_off(off)
    for _ in range(STEPS):
        start = clock()
        logits = sequence.step(token)
        seconds.append(clock() - start)
        token = int(logits.argmax())
    sequence.truncate(length)
    return min(seconds[1:])
