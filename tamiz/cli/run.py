"""``tamiz run``."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._generation import generation_options, stdin
from tamiz.cli._metrics import RunMetrics, metrics_options
from tamiz.cli._output import print_answer, print_json
from tamiz.cli._switches import GainsOutput, without_option

if TYPE_CHECKING:
    from tamiz.runtime.text.stream import Speed


@click.command("run")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--prompt", "prompt_option", metavar="TEXT", help="Same as PROMPT.")
@click.option("--system", help="System prompt. The chat template must support one.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as plain text, without chat template.")
@generation_options
@without_option
@metrics_options
@click.pass_context
@click.option("--json", "as_json", is_flag=True, help="Print the answer and its speed as JSON.")
def command(
    ctx: click.Context,
    directory: Path,
    prompt: str | None,
    prompt_option: str | None,
    system: str | None,
    raw: bool,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    speculate: str,
    threads: int | None,
    allow_control_tokens: bool,
    without: tuple[str, ...],
    metrics: bool,
    metrics_by_layer: bool,
    as_json: bool,
) -> None:
    """Answer one prompt.

    DIR is the bundle. PROMPT is the text to answer; - reads the prompt from stdin.
    """
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.speculation.settings import Speculation
    from tamiz.runtime.speculation.statistics import SpeculationStatistics
    from tamiz.runtime.text.chat_template import ChatTemplate, Message, encode_chat
    from tamiz.runtime.text.stream import Speed, generate_text
    from tamiz.runtime.text.tokenizer import Tokenizer

    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw switches off")
    sampling = Sampling(temperature, top_k, top_p, seed)
    text = prompt_option if prompt is None else prompt
    if text is None:
        raise click.UsageError("Missing argument 'PROMPT': the text to answer, or - for stdin")
    if prompt is not None and prompt_option is not None:
        raise click.UsageError("--prompt and the argument PROMPT exclude each other")
    if text == "-":
        text = stdin().read()
    model = Model.load(directory, threads, without)
    tokenizer = Tokenizer(model.bundle)
    if raw:
        ids = tokenizer.encode(text, control_tokens=allow_control_tokens)
    else:
        messages: list[Message] = [{"role": "user", "content": text}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        template = ChatTemplate(tokenizer.settings)
        ids = encode_chat(tokenizer, template, messages, allow_control_tokens)
    speed, statistics, gains = Speed(), SpeculationStatistics(), GainsOutput(model.gains)
    start = time.perf_counter()
    pieces = generate_text(
        model,
        tokenizer,
        ids,
        sampling,
        max_new_tokens,
        stop,
        speed=speed,
        speculation=Speculation(speculate),
        statistics=statistics,
    )
    if as_json:
        answer = "".join(pieces)
        seconds = time.perf_counter() - start
        gains.print()
        measured = {**_speed(speed, seconds), "speculation": asdict(statistics), **gains.json()}
        if metrics or metrics_by_layer:
            measured |= RunMetrics(ctx, model.bundle, model.counts()).json(metrics_by_layer)
        print_json({"text": answer, "prompt_tokens": len(ids), **measured})
        return
    print_answer(pieces)
    gains.print()
    if metrics or metrics_by_layer:
        RunMetrics(ctx, model.bundle, model.counts()).print(metrics_by_layer)


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
