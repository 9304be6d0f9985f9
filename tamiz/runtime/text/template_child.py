"""The process that renders a chat template: ``python -m tamiz.runtime.text.template_child``.

A template is a program that came with a model. jinja2 evaluates constant expressions while it
compiles, and one call into C can run for hours, so compiling and rendering happen here, where the
system ends what takes too long and refuses what takes too much (`tamiz.platforms`).

Protocol: one JSON object per line. Requests: ``{"source", "now", "seconds", "memory"}`` once, then
``{"values"}`` per rendering. ``now`` is a time in ISO 8601, or null for the time of each rendering.
Answers: ``{"text"}`` or ``{"error"}``.
"""

from __future__ import annotations

import datetime
import json
import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from tamiz.platforms import confine, limit_time

#: Longest prompt, in characters.
_LONGEST = 16 << 20


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """jinja2 lets a forbidden attribute pass as undefined until it is used; here it ends all."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuses the attribute."""
        kind = type(obj).__name__
        raise jinja2.exceptions.SecurityError(f"access to {attribute!r} of a {kind} is unsafe")


class _Generation(jinja2.ext.Extension):
    """The tag ``{% generation %}``, which marks what a model is trained on: renders its body."""

    tags = {"generation"}  # noqa: RUF012  # as jinja2 declares it

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """Reads the tag up to ``{% endgeneration %}``."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """Attributes that begin with an underscore belong to Python."""

    def __init__(self, /, *values: Any, **named: Any) -> None:
        """Sets attributes as `dict` does."""
        super().__init__()
        for name, value in dict(*values, **named).items():
            self[name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        """Sets an attribute."""
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"{name!r} of a namespace is unsafe")
        super().__setitem__(name, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Has the arguments of `json.dumps` that transformers gives templates, in its order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _compile(source: str, now: str | None) -> jinja2.Template:
    def strftime_now(form: str) -> str:
        time = datetime.datetime.fromisoformat(now) if now else datetime.datetime.now()
        return time.strftime(form)

    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment.from_string(source)


def _attempt(work: Callable[[], str], seconds: float, memory: int) -> dict[str, str]:
    """The answer to a request; the system ends the process when its time limit is over."""
    limit_time(seconds)
    try:
        text = work()
        if len(text) > _LONGEST:
            return {"error": f"writes {len(text)} characters, expected at most {_LONGEST}"}
        return {"text": text}
    except MemoryError:
        return {"error": f"takes more than {memory >> 20} MB"}
    except RecursionError:
        return {"error": "is nested too deeply"}
    except Exception as error:  # a template can raise anything that its expressions raise
        return {"error": str(error)[:1000] or type(error).__name__}
    finally:
        limit_time(0)


def main() -> None:
    """Compiles the template of the first line and renders the values of every other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the parent
    first = json.loads(sys.stdin.readline())
    seconds, memory = first["seconds"], first["memory"]
    confine(memory)
    compiled: list[jinja2.Template] = []

    def compile_source() -> str:
        compiled.append(_compile(first["source"], first["now"]))
        return ""

    answer = _attempt(compile_source, seconds, memory)
    print(json.dumps(answer), flush=True)
    for line in sys.stdin if compiled else ():
        values = json.loads(line)["values"]
        answer = _attempt(lambda: compiled[0].render(values), seconds, memory)  # noqa: B023
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
