"""Conversations: chat templates, rendered by a process of their own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from datetime import datetime
from typing import Any

from tamiz.files.errors import TamizError
from tamiz.runtime.text.tokenizer import Tokenizer

Message = dict[str, str]
#: What compiling, and each rendering, may take: seconds of work and bytes of memory. Templates of
#: real models take milliseconds and kilobytes.
_SECONDS, _MEMORY = 1.5, 256 << 20
#: How much longer the template may take by the clock, where other programs keep the cores busy.
_PATIENCE = 20
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """The chat template of a ``tokenizer_config.json``.

    A template comes with the model, so it is not trusted. A process of its own, which starts with
    the first rendering and ends with this object, compiles and renders it in jinja2's immutable
    sandbox, within bounds of time and memory. The functions and filters are those that
    transformers gives templates.
    """

    def __init__(self, settings: dict[str, Any], now: datetime | None = None) -> None:
        """Takes the template; compiling it is part of the first rendering.

        Args:
            settings: Contents of tokenizer_config.json.
            now: Time that templates with a date write; None for the time of each rendering.

        Raises:
            TamizError: There is no template.
        """
        source = settings.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = [entry for entry in source if isinstance(entry, dict)]
            source = next((e.get("template") for e in named if e.get("name") == "default"), None)
        if not isinstance(source, str):
            raise TamizError(
                "tokenizer_config.json: has no chat_template, so this model cannot chat; use"
                " tamiz run --raw"
            )
        self._source, self._now = source, now
        self._special = {key: _content(settings.get(key)) for key in _SPECIAL}
        self._process: _Process | None = None

    def render(self, messages: list[Message]) -> str:
        """The prompt for the assistant's next message.

        Args:
            messages: ``{"role": "system" | "user" | "assistant", "content": …}``, oldest first.

        Raises:
            TamizError: The template is malformed, refuses the messages, tries what the sandbox
                forbids, or takes too much time or memory.
        """
        values = {"messages": messages, "add_generation_prompt": True, **self._special}
        process, self._process = self._process, None
        try:
            if process is None or not process.alive:
                process = _Process(self._source, self._now)
            text = process.request({"values": values})
        except _Refused as error:
            raise TamizError(f"tokenizer_config.json: chat_template: {error}") from None
        finally:
            if process is not None and process.alive:
                self._process = process
        return text


class _Refused(Exception):
    """What the process says against a template."""


class _Process:
    """The process that renders one template; it is ended with this object."""

    def __init__(self, source: str, now: datetime | None) -> None:
        """Starts it and compiles the template; see `ChatTemplate`.

        Raises:
            _Refused: The template cannot be compiled within the bounds.
        """
        self._child = subprocess.Popen(
            [sys.executable, "-m", "tamiz.runtime.text.template_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.alive = True
        fixed = None if now is None else now.isoformat()
        limits = {"seconds": _SECONDS, "memory": _MEMORY}
        self.request({"source": source, "now": fixed, **limits})

    def request(self, request: dict[str, Any]) -> str:
        """The text of the process' answer; whatever else happens, the process is ended.

        Raises:
            _Refused: The answer is an error, or the process ended instead.
        """
        answer = None
        try:
            answer = self._exchange(json.dumps(request).encode() + b"\n")
        finally:
            if answer is None:
                self.end()
        if "error" in answer:
            raise _Refused(answer["error"])
        return str(answer["text"])

    def _exchange(self, request: bytes) -> dict[str, Any]:
        pipes = self._child.stdin, self._child.stdout
        assert pipes[0] is not None
        assert pipes[1] is not None
        try:
            pipes[0].write(request)
            pipes[0].flush()
        except BrokenPipeError:  # the process has ended; its exit code says why
            pass
        end = time.monotonic() + _PATIENCE
        data = bytearray()
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([pipes[1]], [], [], max(0, end - time.monotonic()))
            part = os.read(pipes[1].fileno(), 1 << 20) if ready else b""
            if not part:
                raise _Refused(self._reason(late=not ready))
            data += part
        answer: dict[str, Any] = json.loads(data)
        return answer

    def _reason(self, late: bool) -> str:
        """Why there is no answer."""
        if late:
            return f"takes more than {_PATIENCE} s"
        if (code := self._child.wait()) == -signal.SIGPROF:
            return f"takes more than {_SECONDS:g} s"
        return f"ended the process that renders it (exit code {code})"

    def end(self) -> None:
        """Ends the process."""
        self.alive = False
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __del__(self) -> None:
        """Ends the process; where `__init__` failed, there may be none."""
        if getattr(self, "alive", False):
            self.end()


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[Message],
    control_tokens: bool = False,
) -> list[int]:
    """Token ids of the prompt for the assistant's next message.

    Args:
        tokenizer: The bundle's tokenizer.
        template: The bundle's chat template, which writes the control tokens.
        messages: See `ChatTemplate.render`.
        control_tokens: The name of a control token inside of a message becomes that token; by
            default it stays text.

    Raises:
        TamizError: See `ChatTemplate.render` and `Tokenizer.encode`.
    """
    if not control_tokens:
        messages = [{**m, "content": tokenizer.protect(m["content"])} for m in messages]
    return tokenizer.encode(template.render(messages), bos=False, control_tokens=True)


def _content(token: Any) -> str:
    """Text of a special token, which transformers writes as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
