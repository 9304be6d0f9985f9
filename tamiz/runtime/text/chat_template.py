"""Conversations: chat templates, rendered by a process of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from queue import Empty, SimpleQueue
from typing import IO, Any

from tamiz.files.errors import TamizError
from tamiz.platforms import OUT_OF_TIME
from tamiz.runtime.text.tokenizer import Tokenizer, content

#: What was said: ``{"role": "system" | "user" | "assistant" | …, "content": …}``, and whatever else
#: the template reads. The content is a text, or a list of ``{"type": "text", "text": …}``.
Message = Mapping[str, Any]
#: What compiling, and each rendering, may take: seconds of work and bytes of memory. Templates of
#: real models take milliseconds and kilobytes.
_SECONDS, _MEMORY = 1.5, 256 << 20
#: How much longer the template may take by the clock, where other programs keep the cores busy.
_PATIENCE = 20
#: Tokens whose text templates get by these names, as far as the model has them.
_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
#: Other names under which transformers passes the reasoning of a message to a template.
_REASONING = ("reasoning_content", "thinking", "reasoning")
#: Values of a template that are not variables.
_FIXED = ("messages", "tools", "add_generation_prompt")
#: Keys of messages whose values templates compare with names of their own.
_NAMES = ("role", "type")
_NEEDLE = "needle 4 templates"


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
        special = {key: content(settings.get(key)) for key in _SPECIAL}
        self._special = {key: text for key, text in special.items() if text is not None}
        self._takes_parts: bool | None = None
        self._process: _Process | None = None

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for the assistant's next message.

        Args:
            messages: Oldest first; see `Message`. The texts of a content in parts are joined by
                line breaks, unless the template itself reads parts. Values that are None count as
                missing, as in transformers.
            tools: What the model may call, as JSON schemas; None for nothing.
            variables: Other variables of the template: ``enable_thinking``, ``documents``.
            add_generation_prompt: Whether the beginning of that message belongs to it.

        Raises:
            TamizError: A message has no role or no text; the template is malformed, refuses the
                messages, tries what the sandbox forbids, or takes too much time or memory.
        """
        variables = dict(variables or {})
        if fixed := [name for name in _FIXED if name in variables]:
            raise TamizError(f"{fixed[0]} is no variable of a chat template that can be set")
        checked = [_checked(number, message) for number, message in enumerate(messages)]
        in_parts = [message for message in checked if isinstance(message.get("content"), list)]
        if in_parts and not self._reads_parts():
            for message in in_parts:
                message["content"] = "\n".join(part["text"] for part in message["content"])
        given = {"messages": checked, "tools": tools, "documents": None, **variables}
        return self._render({**given, "add_generation_prompt": add_generation_prompt})

    def _reads_parts(self) -> bool:
        """Whether the template shows the text of a content in parts, and nothing else of it."""
        if self._takes_parts is None:
            parts = [{"type": "text", "text": _NEEDLE}]
            try:
                text = self._render({"messages": [{"role": "user", "content": parts}]})
            except TamizError:
                text = ""
            self._takes_parts = _NEEDLE in text and f"{_NEEDLE}'" not in text
        return self._takes_parts

    def _render(self, values: Mapping[str, Any]) -> str:
        values = {**self._special, "add_generation_prompt": True, **values}
        process, self._process = self._process, None
        try:
            request = json.dumps({"values": values})
            if process is None or not process.alive:
                process = _Process(self._source, self._now)
            text = process.request(request)
        except (TypeError, ValueError, RecursionError) as error:
            raise TamizError(f"a value for the chat template is no JSON: {error}") from error
        except _Refused as error:
            raise TamizError(f"tokenizer_config.json: chat_template: {error}") from None
        finally:
            if process is not None and process.alive:
                self._process = process
        return text


def _checked(number: int, message: Message) -> dict[str, Any]:
    """A message as templates get it from transformers.

    Raises:
        TamizError: It has no role, or neither text nor anything in its place.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TamizError(f"message {number} is {message!r}, expected an object with a role")
    fields = {key: value for key, value in message.items() if value is not None}
    reasoning = next((fields[key] for key in _REASONING if key in fields), None)
    if reasoning is not None:
        fields = {"thinking": reasoning, **fields, "reasoning_content": reasoning}
    text = fields.get("content")
    if isinstance(text, list):
        fields["content"] = [_text_part(number, part) for part in text]
    elif not isinstance(text, str) and (text is not None or not fields.keys() - {"role", "name"}):
        raise TamizError(
            f"message {number}: content is {text!r}, expected a text or a list of parts with text"
        )
    return fields


def _text_part(number: int, part: Any) -> dict[str, str]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str) or part.get("type", "text") != "text":
        raise TamizError(
            f"message {number}: content has the part {part!r}, expected parts with text such as"
            " {'type': 'text', 'text': 'hello'}"
        )
    return {"type": "text", "text": text}


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
        assert self._child.stdout is not None
        self._lines: SimpleQueue[bytes] = SimpleQueue()
        # A thread: Windows waits for a pipe no other way.
        reader = (self._child.stdout, self._lines)
        threading.Thread(target=_read_lines, args=reader, daemon=True).start()
        self.alive = True
        fixed = None if now is None else now.isoformat()
        limits = {"seconds": _SECONDS, "memory": _MEMORY}
        self.request(json.dumps({"source": source, "now": fixed, **limits}))

    def request(self, request: str) -> str:
        """The text of the process' answer to JSON; whatever else happens, the process is ended.

        Raises:
            _Refused: The answer is an error, or the process ended instead.
        """
        answer = None
        try:
            answer = self._exchange(request.encode() + b"\n")
        finally:
            if answer is None:
                self.end()
        if "error" in answer:
            raise _Refused(answer["error"])
        return str(answer["text"])

    def _exchange(self, request: bytes) -> dict[str, Any]:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code says why
            self._child.stdin.write(request)
            self._child.stdin.flush()
        try:
            line = self._lines.get(timeout=_PATIENCE)
        except Empty:
            raise _Refused(f"takes more than {_PATIENCE} s") from None
        if not line:
            raise _Refused(self._reason())
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _reason(self) -> str:
        """Why the process has ended."""
        if (code := self._child.wait()) == OUT_OF_TIME:
            return f"takes more than {_SECONDS:g} s"
        return f"ended the process that renders it (exit code {code})"

    def end(self) -> None:
        """Ends the process."""
        self.alive = False
        self._child.kill()
        self._child.wait()
        if self._child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._child.stdin.close()

    def __del__(self) -> None:
        """Ends the process; where `__init__` failed, there may be none."""
        if getattr(self, "alive", False):
            self.end()


def _read_lines(pipe: IO[bytes], lines: SimpleQueue[bytes]) -> None:
    """Reads whole lines until the process ends, then nothing; closes the pipe."""
    line = bytearray()
    with pipe:
        while part := os.read(pipe.fileno(), 1 << 20):
            line += part
            if line.endswith(b"\n"):
                lines.put(bytes(line))
                line.clear()
    lines.put(b"")


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    control_tokens: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    most: int | None = None,
    *,
    add_generation_prompt: bool = True,
) -> list[int]:
    """Token ids of the prompt for the assistant's next message.

    Args:
        tokenizer: The bundle's tokenizer.
        template: The bundle's chat template, which writes the control tokens.
        messages: See `ChatTemplate.render`.
        control_tokens: The name of a control token inside of a message, a tool or a variable
            becomes that token; by default it stays text.
        tools: See `ChatTemplate.render`.
        variables: See `ChatTemplate.render`.
        most: See `Tokenizer.encode`.
        add_generation_prompt: See `ChatTemplate.render`.

    Raises:
        TamizError: See `ChatTemplate.render` and `Tokenizer.encode`.
    """
    if not control_tokens:
        messages, tools, variables = (
            _protected(tokenizer, value) for value in (messages, tools, variables)
        )
    text = template.render(messages, tools, variables, add_generation_prompt=add_generation_prompt)
    return tokenizer.encode(text, bos=False, control_tokens=True, most=most)


def _protected(tokenizer: Tokenizer, value: Any) -> Any:
    """A value with all its texts protected, see `Tokenizer.protect`."""
    if isinstance(value, str):
        return tokenizer.protect(value)
    if isinstance(value, Mapping):
        return {
            key: part if key in _NAMES else _protected(tokenizer, part)
            for key, part in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_protected(tokenizer, part) for part in value]
    return value
