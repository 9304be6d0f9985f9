"""Conversations: chat templates in jinja2's sandbox."""

from __future__ import annotations

import datetime
import json
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.sandbox

from tamiz.files.errors import TamizError
from tamiz.runtime.bounded import bounded
from tamiz.runtime.tokenizer import Tokenizer

Message = dict[str, str]
#: What rendering may take; templates of real models take milliseconds and kilobytes.
_SECONDS, _MEMORY = 5.0, 256 << 20
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


class ChatTemplate:
    """The chat template of a ``tokenizer_config.json``, compiled in a sandbox.

    A template comes with the model, so it is not trusted: jinja2's immutable sandbox refuses
    access to attributes through which Python could be reached, and changes to its arguments; time
    and memory are bounded. The functions and filters are those that transformers gives templates.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """Compiles the template.

        Args:
            settings: Contents of tokenizer_config.json.

        Raises:
            TamizError: There is no template, or it is malformed.
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
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        self._special = {key: _content(settings.get(key)) for key in _SPECIAL}
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TamizError(f"tokenizer_config.json: chat_template: {error}") from error

    def render(self, messages: list[Message]) -> str:
        """The prompt for the assistant's next message.

        Args:
            messages: ``{"role": "system" | "user" | "assistant", "content": …}``, oldest first.

        Raises:
            TamizError: The template refuses the messages, or tries what the sandbox forbids.
        """
        try:
            with bounded("rendering", _SECONDS, _MEMORY):
                return self._template.render(
                    messages=messages, add_generation_prompt=True, **self._special
                )
        except Exception as error:  # a template can raise anything that its expressions raise
            raise TamizError(f"tokenizer_config.json: chat_template: {error}") from error


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


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2 lets a forbidden attribute pass as undefined until it is used; here it ends all."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses the attribute."""
        kind = type(obj).__name__
        raise jinja2.exceptions.SecurityError(f"access to {attribute!r} of a {kind} is unsafe")


def _content(token: Any) -> str:
    """Text of a special token, which transformers writes as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
