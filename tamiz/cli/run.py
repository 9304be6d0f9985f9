"""``tamiz run``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from tamiz.cli._generation import generation_options, stdin
from tamiz.cli._output import print_json


@click.command("run")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--prompt", required=True, help="What to answer; - reads it from stdin.")
@click.option("--system", help="System prompt, where the chat template takes one.")
@click.option("--raw", is_flag=True, help="Continue the prompt as it is, without chat template.")
@generation_options
@click.option("--json", "as_json", is_flag=True, help="Print the answer and its speed as JSON.")
def command(
    directory: Path,
    prompt: str,
    system: str | None,
    raw: bool,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    threads: int | None,
    as_json: bool,
) -> None:
    """Answer one prompt with the bundle DIR."""
    from tamiz.runtime.chat import ChatTemplate, Message
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.text import generate_text
    from tamiz.runtime.tokenizer import Tokenizer

    if raw and system is not None:
        raise click.UsageError("--system needs the chat template, which --raw switches off")
    sampling = Sampling(temperature, top_k, top_p, seed)
    if prompt == "-":
        prompt = stdin().read()
    model = Model.load(directory, threads)
    tokenizer = Tokenizer(model.bundle)
    if raw:
        ids = tokenizer.encode(prompt)
    else:
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if system is not None:
            messages.insert(0, {"role": "system", "content": system})
        ids = tokenizer.encode(ChatTemplate(tokenizer.settings).render(messages), bos=False)
    start = time.perf_counter()
    pieces = generate_text(model, tokenizer, ids, sampling, max_new_tokens, stop)
    if as_json:
        text = "".join(pieces)
        seconds = time.perf_counter() - start
        print_json({"text": text, "prompt_tokens": len(ids), "seconds": round(seconds, 3)})
        return
    for piece in pieces:
        click.echo(piece, nl=False)
    click.echo()
