"""One engine in its own process, ``-m tamiz.evaluation.bench_child DIR THREADS MODE WITHOUT…``.

The parent (`tamiz.evaluation.bench`) writes one JSON command a line and reads one JSON answer a
line, so that rounds of several engines interleave while each keeps an honest resident set of its
own. Only the standard library and `tamiz.platforms` are imported here:
`benchmarks/engines/peers.py` serves other engines, under other Python interpreters, through this
module.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tamiz.platforms import disk_reads, peak_rss

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz.runtime.model import Model

#: Tokens decoded before the clock starts: caches and thread pools have gone cold meanwhile. A large
#: last-level cache takes several passes over the weights until it has them again.
WARM_UP = 8
#: Tokens that a sequence must be able to take after its prompt.
DECODE_ROOM = 128


class Engine(Protocol):
    """What can be measured: a loaded decoder with one sequence, at first empty."""

    vocabulary: int
    limit: int

    def prefill(self, ids: list[int]) -> None:
        """Empties the sequence, reads all of `ids`, and knows the next token's logits."""

    def decode(self, tokens: int) -> None:
        """Appends that many greedy tokens, one step each."""

    def rewind(self, length: int) -> None:
        """Forgets what `decode` appended, so that the sequence has `length` tokens again."""

    def counts(self) -> dict[str, Any]:
        """What the ops of a bundle counted; requested of bundles only."""

    def switched_off(self) -> dict[str, Any]:
        """What `auto` switched off, by context; requested of bundles only."""


class TextEngine(Protocol):
    """What can be measured of an encoder or a classifier."""

    vocabulary: int
    limit: int

    def embed(self, texts: list[list[int]]) -> None:
        """Computes what the model gives for texts of one length."""


def reads(counts: dict[str, Any]) -> dict[str, float]:
    """Totals of what this process read so far.

    Args:
        counts: What its ops counted; see `tamiz_ops.op_counts`.

    Returns:
        ``weights``, bytes of packed weights that its ops read; ``disk``, bytes that came from the
        disk, such as pages of mapped weights that were not in memory; and ``faults``, how often a
        thread waited for such a page.
    """
    disk, faults = disk_reads()
    ops = (op for part in counts.values() for op in part.values())
    weights = sum(sums.get("matmul.bytes_read", 0.0) for sums in ops)
    return {"weights": weights, "disk": disk, "faults": faults}


def prompt(length: int, vocabulary: int) -> list[int]:
    """The same pseudo-random token ids for every engine of that vocabulary.

    x ← (a·x + c) mod 2⁶⁴ with Knuth's MMIX constants, high bits. The standard library's generator
    would bring OpenSSL into the process whose memory is measured.
    """
    ids, state = [], length
    for _ in range(length):
        state = (6364136223846793005 * state + 1442695040888963407) % 2**64
        ids.append((state >> 33) % vocabulary)
    return ids


def serve(load: Callable[[], Engine]) -> None:
    """Loads a decoder, then answers commands until end of input; see `serve_session`."""
    serve_session(lambda: DecoderSession(load()))


def serve_session(load: Callable[[], DecoderSession | EncoderSession]) -> None:
    """Loads an engine, says its ``kind``, then answers commands until end of input.

    ``{"do": "rss"}`` is answered with ``bytes``. Commands of an encoder: ``{"do": "embed", "texts":
    m, "tokens": n}`` (``seconds``). Commands of a decoder: ``{"do": "prefill", "tokens": n}``,
    ``{"do": "decode", "tokens": n}`` (``seconds``; decode leaves the sequence as it was),
    ``{"do": "counts"}`` (``counts``, see `Engine`), ``{"do": "reads"}`` (see `reads`) and ``{"do":
    "switched_off"}`` (``switched_off``).
    """
    # Libraries print to stdout as they please; only answers may reach the parent.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    start = time.perf_counter()
    try:
        session = load()
    except Exception as error:
        answer(error=f"{error}")
        return
    load_s = time.perf_counter() - start
    answer(load_s=load_s, limit=session.engine.limit, kind=session.kind)
    for line in sys.stdin:
        command = json.loads(line)
        answer(**({"bytes": peak_rss()} if command["do"] == "rss" else session.do(command)))


@dataclass
class DecoderSession:
    """Does the commands of a decoder.

    Attributes:
        engine: The decoder.
        length: Tokens of the last prompt.
    """

    engine: Engine
    length: int = 0
    kind: ClassVar[str] = "a decoder"

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command."""
        if command["do"] == "counts":
            return {"counts": self.engine.counts()}
        if command["do"] == "reads":
            return reads(self.engine.counts())
        if command["do"] == "switched_off":
            return {"switched_off": self.engine.switched_off()}
        tokens = command["tokens"]
        if command["do"] == "prefill":
            self.length = tokens
            ids = prompt(tokens, self.engine.vocabulary)
            start = time.perf_counter()
            self.engine.prefill(ids)
            return {"seconds": time.perf_counter() - start}
        self.engine.decode(WARM_UP)
        start = time.perf_counter()
        self.engine.decode(tokens)
        seconds = time.perf_counter() - start
        self.engine.rewind(self.length)
        return {"seconds": seconds}


@dataclass(frozen=True)
class EncoderSession:
    """Does the commands of an encoder.

    Attributes:
        engine: The encoder.
    """

    engine: TextEngine
    kind: ClassVar[str] = "an encoder"

    def do(self, command: dict[str, Any]) -> dict[str, Any]:
        """The answer to a command."""
        tokens = command["tokens"]
        ids = prompt(command["texts"] * tokens, self.engine.vocabulary)
        rows = [ids[at : at + tokens] for at in range(0, len(ids), tokens)]
        self.engine.embed(rows)  # brings the weights to the caches
        start = time.perf_counter()
        self.engine.embed(rows)
        return {"seconds": time.perf_counter() - start}


class EncoderEngine:
    """A bundle of an encoder, or of a classifier, in a session of ONNX Runtime."""

    def __init__(self, bundle: Bundle, read: Callable[[list[list[int]]], object]) -> None:
        """Wraps a loaded model.

        Args:
            bundle: Its bundle.
            read: Runs it on texts, given as token ids.
        """
        from tamiz.runtime.embedding.settings import most_tokens

        self._read = read
        self.vocabulary = int(bundle.json("config.json")["vocab_size"])
        self.limit = most_tokens(bundle) or sys.maxsize

    def embed(self, texts: list[list[int]]) -> None:
        """See `TextEngine`."""
        self._read(texts)


class BundleEngine:
    """A bundle in tamiz' own runtime."""

    def __init__(self, model: Model, speculate: str = "off") -> None:
        """Wraps a loaded decoder.

        Args:
            model: The decoder.
            speculate: Mode of `tamiz.runtime.speculation.settings.Speculation`.
        """
        from tamiz.runtime.sequence import Sequence

        self.model = model
        self.mode = speculate
        self.vocabulary = self.model.vocabulary
        self.limit = self.model.limit
        self.sequence: Sequence
        self.prompt: list[int]
        self._switched_off: dict[str, Any] = {}
        self._resolve()

    def _resolve(self) -> None:
        from tamiz.runtime.speculation.settings import Speculation

        self.speculation = self.model.resolve(Speculation(self.mode))

    def prefill(self, ids: list[int]) -> None:
        """See `Engine`."""
        self.prompt = ids
        self.sequence = self.model.sequence(min(len(ids) + DECODE_ROOM, self.limit))
        self.sequence.switch_off(self.speculation.off)
        self.logits = self.sequence.read(ids).copy()

    def decode(self, tokens: int) -> None:
        """See `Engine`."""
        from tamiz.runtime.sampling import Sampler, Sampling
        from tamiz.runtime.speculation.speculator import decoding
        from tamiz.runtime.speculation.statistics import SpeculationStatistics

        self._settle()
        token, end = int(self.logits.argmax()), len(self.sequence.tokens) + tokens
        greedy, statistics, prices = Sampler(Sampling()), SpeculationStatistics(), self.model.prices
        with decoding(self.sequence, greedy, self.speculation, statistics, prices, end) as step:
            for _ in range(tokens):
                token = int(step(token).argmax())

    def _settle(self) -> None:
        """Measures techniques for `auto`, once at each context and before anything is timed."""
        gains, context = self.model.gains, len(self.prompt)
        if gains is None or str(context) in self._switched_off:
            return
        self.logits = gains.settle(self.sequence, self.logits, context, self.model.without)
        self._switched_off[str(context)] = {n: asdict(g) for n, g in gains.switched_off.items()}
        self._resolve()

    def rewind(self, length: int) -> None:
        """See `Engine`."""
        self.sequence.truncate(length)
        if len(self.sequence.tokens) < length:  # it has state that knows no way back
            self.sequence.read(self.prompt)

    def counts(self) -> dict[str, Any]:
        """See `Engine`."""
        return self.model.counts()

    def switched_off(self) -> dict[str, Any]:
        """See `Engine`."""
        return self._switched_off


def load_session(
    directory: str, threads: int, speculate: str, without: Iterable[str]
) -> DecoderSession | EncoderSession:
    """Loads a bundle for the commands of its kind.

    Args:
        directory: The bundle.
        threads: Threads of ONNX Runtime's pool.
        speculate: Mode of `tamiz.runtime.speculation.settings.Speculation`.
        without: Techniques to switch off.
    """
    from tamiz.runtime.embedding.classifier import Classifier
    from tamiz.runtime.load import load_model
    from tamiz.runtime.model import Model

    model = load_model(directory, threads, tuple(without))
    if isinstance(model, Model):
        return DecoderSession(BundleEngine(model, speculate))
    read = model.logits if isinstance(model, Classifier) else model.embeddings
    return EncoderSession(EncoderEngine(model.bundle, read))


if __name__ == "__main__":
    serve_session(lambda: load_session(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]))
