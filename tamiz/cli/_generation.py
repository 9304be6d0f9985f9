"""What `tamiz run` and `tamiz chat` share: options of generation, and stdin."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any, TextIO, TypeVar

import click

from tamiz.cli._counts import Number, Workers
from tamiz.files.errors import TamizError
from tamiz.runtime.speculation.settings import MODES

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--max-new-tokens",
        type=click.IntRange(1),
        help="Largest number of tokens in an answer.  [default: what the context leaves]",
    ),
    click.option(
        "--temperature",
        type=Number(0),
        default=0.0,
        show_default=True,
        help="Divisor of the logits. Higher is more random; 0 always takes the likeliest token.",
    ),
    click.option(
        "--top-k",
        type=click.IntRange(0),
        default=0,
        show_default=True,
        help="Draw from the K likeliest tokens; 0 draws from all.",
    ),
    click.option(
        "--top-p",
        type=Number(0, 1, min_open=True),
        default=1.0,
        show_default=True,
        help="Draw from the likeliest tokens that together have this probability.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(0),
        help="Seed of the random draws; equal seeds give equal answers.",
    ),
    click.option(
        "--stop", multiple=True, help="Text at which an answer ends; may be given several times."
    ),
    click.option(
        "--speculate",
        type=click.Choice(MODES),
        default=MODES[0],
        show_default=True,
        help="Guess the next tokens and verify several in one run of the model. 'ngram' guesses"
        " what followed the last tokens earlier. 'self' guesses with the techniques that --without"
        " names, by default with all, and answers as the bundle does without them. 'auto' picks"
        " what pays and never changes the answer.",
    ),
    click.option("--threads", type=Workers(), help="Number of threads.  [default: physical cores]"),
    click.option(
        "--allow-control-tokens",
        is_flag=True,
        help="Names of control tokens in the prompt (<|im_end|>) become these tokens. By default"
        " they are text, so that nobody can speak for the system or the assistant.",
    ),
)


def stdin() -> TextIO:
    """Standard input; a byte that is not UTF-8 becomes half a character, which encoding refuses.

    Raises:
        TamizError: It is closed.
    """
    if sys.stdin is None:
        raise TamizError("stdin is closed, expected text")
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


def generation_options(function: Function) -> Function:
    """Adds the options of generation to a command."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
