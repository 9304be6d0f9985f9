"""An engine that is measured in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from tamiz.files.errors import TamizError


class Child:
    """An engine in its own process; see `tamiz.evaluation.bench_child` for the protocol."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> None:
        """Starts the process and waits until its engine is loaded.

        Args:
            name: What errors call it.
            command: Program and arguments, speaking the protocol on stdin and stdout.
            environment: Variables of the process beside those of this one.

        Raises:
            TamizError: The engine does not load.
        """
        self.name = name
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        # BLAS would otherwise keep a work area a thread resident for nothing.
        variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables,
        )
        ready = self._answer()
        self.load_s: float = ready["load_s"]
        self.limit: int = ready["limit"]
        self.kind: str = ready.get("kind", "a decoder")

    def prefill(self, tokens: int) -> float:
        """Reads a fresh prompt of that many tokens; returns tokens per second."""
        seconds: float = self.request(do="prefill", tokens=tokens)["seconds"]
        return tokens / seconds

    def decode(self, tokens: int) -> float:
        """Decodes after the last prompt; returns tokens per second."""
        seconds: float = self.request(do="decode", tokens=tokens)["seconds"]
        return tokens / seconds

    def embed(self, texts: int, tokens: int) -> float:
        """Computes embeddings of that many texts in one run; returns texts per second."""
        seconds: float = self.request(do="embed", texts=texts, tokens=tokens)["seconds"]
        return texts / seconds

    def peak_rss(self) -> int:
        """Peak resident set so far, in bytes."""
        peak: int = self.request(do="rss")["bytes"]
        return peak

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # a command that a dead process did not take
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def request(self, **command: object) -> dict[str, Any]:
        """Sends a command, and waits for its answer."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _answer reports why
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            self.close()
            raise TamizError(f"{self.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"the benchmark process ended with code {code}: {lines[-1] if lines else 'silently'}"
