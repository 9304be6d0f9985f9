"""``tamiz run``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._generation import Generation, generation_options, stdin
from tamiz.cli._output import print_answer, print_json
from tamiz.cli._running import GainsOutput, Running, running_options
from tamiz.cli._sources import bundle_at, source

if TYPE_CHECKING:
    from tamiz.runtime.text.stream import Speed


@click.command("run")
@source
@click.argument("prompt", required=False)
@click.option("--prompt", "prompt_option", metavar="TEXT", help="Same as PROMPT.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as plain text, without chat template.")
@generation_options
@running_options
@click.pass_context
@click.option("--json", "as_json", is_flag=True, help="Print the answer and its speed as JSON.")
def command(
    ctx: click.Context,
    path: Path,
    prompt: str | None,
    prompt_option: str | None,
    raw: bool,
    generation: Generation,
    threads: int | None,
    running: Running,
    as_json: bool,
) -> None:
    """Answer one prompt.

    MODEL is a bundle, a .gguf file or a folder that 'tamiz export' reads; one that is no bundle is
    built once, as 'tamiz serve' does it. PROMPT is the text to answer; - reads the prompt from
    stdin.
    """
    from tamiz.inference.language_model import LanguageModel

    if raw and (option := generation.of_the_template):
        raise click.UsageError(f"{option} needs the chat template, which --raw switches off")
    text = _prompt(prompt, prompt_option)
    door = LanguageModel.load(
        bundle_at(path), threads=threads, without=running.without, speculation=generation.speculate
    )
    model, gains = door.parts, GainsOutput(door.parts.gains)
    messages = [{"role": "user", "content": text}]
    if generation.system is not None:
        messages.insert(0, {"role": "system", "content": generation.system})
    stream = door.stream(
        text if raw else messages,
        raw=raw,
        control_tokens=generation.allow_control_tokens,
        tools=generation.tools,
        template_vars=generation.template_vars,
        sampling=generation.sampling(model.bundle),
        max_new_tokens=generation.max_new_tokens,
        stop=generation.stop,
    )
    start = time.perf_counter()
    if as_json:
        answer = stream.complete()
        seconds = time.perf_counter() - start
        gains.print()
        measured = {
            **_speed(answer.speed, seconds),
            "speculation": asdict(answer.speculation),
            **gains.json(),
        }
        if counted := running.counted(ctx, model.bundle, model.counts()):
            measured |= counted.json()
        print_json({"text": answer.text, "prompt_tokens": answer.usage.prompt_tokens, **measured})
        return
    print_answer(stream)
    gains.print()
    if counted := running.counted(ctx, model.bundle, model.counts()):
        counted.print()


def _prompt(argument: str | None, option: str | None) -> str:
    """The text to answer, from where it is given."""
    if argument is not None and option is not None:
        raise click.UsageError("--prompt and the argument PROMPT exclude each other")
    text = option if argument is None else argument
    if text is None:
        raise click.UsageError("Missing argument 'PROMPT': the text to answer, or - for stdin")
    return stdin().read() if text == "-" else text


def _speed(speed: Speed, seconds: float) -> dict[str, float | int | None]:
    """The keys of ``--json`` about speed; `decode_tok_s` is null for fewer than two tokens."""
    rate = speed.decode_tok_s
    return {
        "tokens": speed.tokens,
        "prompt_seconds": round(speed.prompt_seconds, 4),
        "decode_seconds": round(speed.decode_seconds, 4),
        "decode_tok_s": None if rate is None else round(rate, 2),
        "seconds": round(seconds, 3),
    }
