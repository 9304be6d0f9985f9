"""What `tamiz run` and `tamiz chat` share: options of generation, and stdin."""

from __future__ import annotations

import functools
import io
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from tamiz.cli._options import PATH, Number, threads
from tamiz.files.errors import TamizError
from tamiz.files.text_file import check_characters, read_text
from tamiz.runtime.speculation.settings import MODES

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle
    from tamiz.runtime.sampling import Sampling

#: Options that are fields of `Sampling`; None where they are not given.
_SAMPLERS = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "repeat_last_n",
)


@dataclass(frozen=True)
class Generation:
    """What the options of generation say.

    Attributes:
        max_new_tokens: Largest number of tokens of an answer; None for what the context leaves.
        stop: Strings that end an answer.
        speculate: Mode of `tamiz.runtime.speculation.settings.Speculation`.
        system: System prompt; None for none.
        template_vars: Variables of the chat template.
        tools: What the model may call; None for nothing.
        allow_control_tokens: Whether names of control tokens in prompts become these tokens.
        samplers: Fields of `Sampling` that were given.
        source: Where the others come from: `default` or `model`.
    """

    max_new_tokens: int | None = None
    stop: tuple[str, ...] = ()
    speculate: str = MODES[0]
    system: str | None = None
    template_vars: Mapping[str, Any] = field(default_factory=dict)
    tools: Sequence[Mapping[str, Any]] | None = None
    allow_control_tokens: bool = False
    samplers: Mapping[str, Any] = field(default_factory=dict)
    source: str = "default"

    @property
    def of_the_template(self) -> str | None:
        """A given option that needs the chat template; None if none is given."""
        given = {
            "--system": self.system is not None,
            "--template-var": bool(self.template_vars),
            "--tools": self.tools is not None,
        }
        return next((option for option in given if given[option]), None)

    def sampling(self, bundle: Bundle) -> Sampling:
        """How tokens are drawn.

        Raises:
            TamizError: See `tamiz.runtime.recommended.recommended_sampling`.
        """
        from tamiz.runtime.sampling import Sampling

        base = Sampling()
        if self.source == "model":
            from tamiz.runtime.recommended import recommended_sampling

            base = recommended_sampling(bundle)
        bias = {**base.logit_bias, **self.samplers.get("logit_bias", {})}
        return replace(base, **{**self.samplers, "logit_bias": bias})


def _assignment(given: str) -> tuple[str, Any]:
    """``NAME=VALUE``, the value as JSON if it is JSON, and else as text."""
    name, equals, text = given.partition("=")
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{given!r} is no NAME=VALUE such as enable_thinking=false")
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text


def _logit_bias(given: str) -> tuple[int, float]:
    """A token's id and what is added to its logit: ``15043+1``, ``15043-inf``, ``15043=2.5``."""
    parts = re.fullmatch(r"(\d{1,18})=?([+-]?(?:inf|[\d.]+(?:e[+-]?\d+)?))", given)
    try:
        if parts is None or given[len(parts[1])] not in "=+-":
            raise ValueError
        return int(parts[1]), float(parts[2])
    except ValueError:
        message = f"{given!r} is no bias of a token such as 15043+1 or 15043-inf"
        raise click.BadParameter(message) from None


_OPTIONS = (
    click.option("--system", help="System prompt. The chat template must support one."),
    click.option(
        "--template-var",
        "template_vars",
        type=_assignment,
        multiple=True,
        metavar="NAME=VALUE",
        help="Variable of the chat template, as in enable_thinking=false; may be given several"
        " times. A VALUE that is JSON is read as JSON.",
    ),
    click.option(
        "--tools",
        type=PATH,
        help="JSON file with a list of tools that the model may call, for the chat template. Calls"
        " are printed, not executed.",
    ),
    click.option(
        "--max-new-tokens",
        type=click.IntRange(1),
        help="Largest number of tokens in an answer; the context may leave fewer.  [default: what"
        " the context leaves]",
    ),
    click.option(
        "--sampling",
        "source",
        type=click.Choice(("default", "model")),
        default="default",
        show_default=True,
        help="Source of the options of sampling that are not given: the defaults below, or the"
        " model's generation_config.json, which 'tamiz inspect' shows.",
    ),
    click.option(
        "--temperature",
        type=Number(0),
        help="Divisor of the logits. Higher is more random; 0 always takes the likeliest token. "
        " [default: 0]",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(0),
        help="Draw from the K likeliest tokens; 0 draws from all.  [default: 0]",
    ),
    click.option(
        "--top-p",
        type=Number(0, 1, min_open=True),
        help="Draw from the likeliest tokens that together have this probability, before the"
        " temperature.  [default: 1]",
    ),
    click.option(
        "--min-p",
        type=Number(0, 1),
        help="Draw from tokens that are at least this many times as likely as the likeliest one,"
        " before the temperature; 0 for all.  [default: 0]",
    ),
    click.option(
        "--repeat-penalty",
        type=Number(0, min_open=True),
        help="Penalty of tokens that the text has: divides their positive logits and multiplies"
        " their negative ones. 1 for none.  [default: 1]",
    ),
    click.option(
        "--frequency-penalty",
        type=Number(),
        help="Number that is subtracted from a token's logit for each time that the text has the"
        " token.  [default: 0]",
    ),
    click.option(
        "--presence-penalty",
        type=Number(),
        help="Number that is subtracted from a token's logit if the text has the token. "
        " [default: 0]",
    ),
    click.option(
        "--repeat-last-n",
        type=click.IntRange(-1),
        help="Number of last tokens, the prompt's included, that the three penalties look at; 0"
        " for none, -1 for all.  [default: 64]",
    ),
    click.option(
        "--logit-bias",
        type=_logit_bias,
        multiple=True,
        metavar="ID±BIAS",
        help="Add BIAS to the logit of the token with this id, as in 15043+1; 15043-inf is never"
        " drawn. May be given several times.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="Seed of the random draws; equal seeds give equal answers.",
    ),
    click.option(
        "--ignore-eos",
        is_flag=True,
        help="Never draw a token that ends an answer: every answer is as long as --max-new-tokens"
        " or the context allows.",
    ),
    click.option(
        "--stop",
        multiple=True,
        help="Text at which an answer ends; may be given several times. A name of a control token"
        " in it, such as <|im_start|>, is also found where the model writes that token.",
    ),
    click.option(
        "--speculate",
        type=click.Choice(MODES),
        default=MODES[0],
        show_default=True,
        help="Guess the next tokens and verify several in one run of the model. 'ngram' guesses"
        " the tokens that followed when the last tokens came before. 'self' guesses with the"
        " techniques that --without names, by default with all, and answers as the bundle does"
        " without them. 'auto' uses the fastest way and never changes the answer.",
    ),
    threads,
    click.option(
        "--allow-control-tokens",
        is_flag=True,
        help="Names of control tokens in the prompt (<|im_end|>) become these tokens. By default"
        " they are text, so that nobody can speak for the system or the assistant.",
    ),
)


def generation_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options of generation to a command, which gets them as `generation`, and threads."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        samplers = {name: options.pop(name) for name in _SAMPLERS}
        given = {name: value for name, value in samplers.items() if value is not None}
        from tamiz.runtime.sampling import Sampling

        given["logit_bias"] = dict(options.pop("logit_bias"))
        given["ignore_eos"] = options.pop("ignore_eos")
        tools = options.pop("tools")
        generation = Generation(
            samplers=given,
            tools=None if tools is None else _read_tools(tools),
            template_vars=dict(options.pop("template_vars")),
            **{name: options.pop(name) for name in _FIELDS},
        )
        Sampling(**given)  # refuses what is out of range before a model is loaded
        command(generation=generation, **options)

    for option in reversed(_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


_FIELDS = ("max_new_tokens", "stop", "speculate", "system", "allow_control_tokens", "source")


def _read_tools(path: Path) -> list[dict[str, Any]]:
    try:
        tools = json.loads(read_text(path))
        check_characters(tools)
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise TamizError(f"{path}: expected a JSON list of objects, one for each tool")
    return tools


def stdin() -> TextIO:
    """Standard input: UTF-8 without byte order mark, any line break as ``\\n``.

    A byte that is not UTF-8 becomes half a character, which encoding refuses.

    Raises:
        TamizError: It is closed.
    """
    if sys.stdin is None:
        raise TamizError("stdin is closed, expected text")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape", newline=None)
    return sys.stdin
