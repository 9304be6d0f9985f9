"""`tamiz chat`, driven as a user does: keys into a pseudo-terminal, text out of it."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit.patience import PATIENCE

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()=>].?)|[\r\x08]")
PASTE, PASTED = "\x1b[200~", "\x1b[201~"
UP, CTRL_C, CTRL_D = "\x1b[A", "\x03", "\x04"


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, *arguments: str | Path) -> None:
        self._end, child = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tamiz", *map(str, arguments)],
            stdin=child,
            stdout=child,
            stderr=child,
            env=environment,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
        )
        os.close(child)
        self._raw = b""

    @property
    def text(self) -> str:
        """What was shown so far, without control sequences."""
        return _ESCAPES.sub("", self._raw.decode("utf-8", "replace"))

    def keys(self, keys: str) -> int:
        """Types keys at the prompt; returns where the text that follows begins."""
        self.wait(r">\s*\Z")
        return self.type(keys)

    def type(self, keys: str) -> int:
        """Types keys at once."""
        shown = len(self.text)
        os.write(self._end, keys.encode())
        return shown

    def wait(self, pattern: str, since: int = 0) -> re.Match[str]:
        """Waits until a pattern is shown after a place in the text."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.text[since:], re.DOTALL)):
            ready, _, _ = select.select([self._end], [], [], deadline - time.monotonic())
            assert ready, f"{pattern!r} is not shown: {self.text[since:]!r}"
            try:
                self._raw += os.read(self._end, 65536)
            except OSError:  # the program ended
                raise AssertionError(f"ended without {pattern!r}: {self.text!r}") from None
        return found

    def answer(self, message: str) -> str:
        """Sends a message; returns what is shown up to the speed of the answer."""
        since = self.keys(f"{message}\r")
        return self.wait(r"\[\d+ tokens.*?\]", since).string

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)


@pytest.fixture
def terminal(dense_dir: Path) -> Iterator[Callable[..., Terminal]]:
    """Starts `tamiz chat` and waits for its prompt."""
    started: list[Terminal] = []

    def start(*options: str, bundle: Path = dense_dir) -> Terminal:
        made = Terminal("chat", bundle, *options)
        started.append(made)
        made.wait(r"lists the commands\.\s+>")
        return made

    yield start
    for made in started:
        made.close()


def test_banner_answer_stats_and_quit(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("--max-new-tokens", "3")
    assert "tiny.gguf; techniques: dense; context: 256 tokens" in chat.text
    assert re.search(r"\[3 tokens, [\d.]+ tok/s\]", chat.answer("hello"))
    since = chat.keys("/stats\r")
    chat.wait(r"\d+ of 256 tokens of context used; 1 answers, 3 tokens in [\d.]+ s", since)
    since = chat.keys("/reset\r")
    chat.wait(r"\[new conversation\]", since)
    since = chat.keys("/stats\r")
    chat.wait(r"0 of 256 tokens of context used", since)
    chat.keys("/quit\r")
    assert chat.process.wait(PATIENCE) == 0


def test_commands_are_listed_and_suggested(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("--max-new-tokens", "2")
    since = chat.keys("/help\r")
    chat.wait(r"/help .*/reset .*/save FILE .*/system TEXT .*/stats .*/quit ", since)
    since = chat.keys("/rest\r")
    chat.wait(r"error: unknown command '/rest'; did you mean '/reset'\?", since)
    chat.keys(CTRL_D)
    assert chat.process.wait(PATIENCE) == 0


def test_up_recalls_and_a_paste_keeps_its_lines(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> None:
    chat = terminal("--max-new-tokens", "2", "--system", "Be brief.")
    chat.answer("hello")
    chat.answer(UP)
    chat.answer(f"{PASTE}one\ntwo{PASTED}")
    file = tmp_path / "chat.json"
    for expected in ("saved to", "exists and is not overwritten"):
        since = chat.keys(f"/save {file}\r")
        chat.wait(expected, since)
    messages = json.loads(file.read_text("utf-8"))["messages"]
    assert messages[0] == {"role": "system", "content": "Be brief."}
    said = [message["content"] for message in messages if message["role"] == "user"]
    assert said == ["hello", "hello", "one\ntwo"]
    since = chat.keys("/system Be long.\r")
    chat.wait("new conversation with this system prompt", since)


def test_ctrl_c_stops_the_answer_and_not_the_chat(
    terminal: Callable[..., Terminal], dense_dir: Path, tmp_path: Path
) -> None:
    patient = Path(shutil.copytree(dense_dir, tmp_path / "patient"))
    config = (patient / "config.json").read_text("utf-8")
    assert config.count('_embeddings": 256') == 1
    text = config.replace('_embeddings": 256', '_embeddings":9999')  # as many bytes
    (patient / "config.json").write_text(text, "utf-8")
    chat = terminal(bundle=patient)
    since = chat.keys("half a line" + CTRL_C)
    chat.wait("half a line.*>", since)
    since = chat.keys("hello\r")
    chat.wait(r"hello.*\n.{20}", since)  # the answer has begun
    chat.type(CTRL_C)
    chat.wait(r"\[stopped\]", since)
    since = chat.keys("/stats\r")
    chat.wait(r"\b0 of 9,999 tokens of context used; 1 answers", since)
    chat.keys("/quit\r")
    assert chat.process.wait(PATIENCE) == 0


def test_a_line_too_long_ends_the_turn_only(terminal: Callable[..., Terminal]) -> None:
    chat = terminal("--max-new-tokens", "2")
    since = chat.keys("hello " * 300 + "\r")
    chat.wait("error: the prompt's .* do not fit: the model's limit is", since)
    assert re.search(r"\[2 tokens", chat.answer("hello"))
    chat.keys("/quit\r")
    assert chat.process.wait(PATIENCE) == 0
