"""``tamiz chat``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from tamiz.cli._generation import generation_options, stdin


@click.command("chat")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--system", help="System prompt, where the chat template takes one.")
@generation_options
def command(
    directory: Path,
    system: str | None,
    max_new_tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    seed: int | None,
    stop: tuple[str, ...],
    threads: int | None,
) -> None:
    """Talk with the bundle DIR, one line a turn; end of input (Ctrl-D) ends it."""
    from tamiz.runtime.chat import ChatTemplate, Message
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.text import generate_text
    from tamiz.runtime.tokenizer import Tokenizer

    sampling = Sampling(temperature, top_k, top_p, seed)
    model = Model.load(directory, threads)
    tokenizer = Tokenizer(model.bundle)
    template = ChatTemplate(tokenizer.settings)
    sequence = model.sequence()
    messages: list[Message] = []
    if system is not None:
        messages.append({"role": "system", "content": system})
    for line in _lines():
        messages.append({"role": "user", "content": line})
        ids = tokenizer.encode(template.render(messages), bos=False)
        answer = ""
        for piece in generate_text(model, tokenizer, ids, sampling, max_new_tokens, stop, sequence):
            click.echo(piece, nl=False)
            answer += piece
        click.echo()
        # A model may well write NUL, which no tokenizer reads back.
        messages.append({"role": "assistant", "content": answer.replace("\0", "\ufffd")})


def _lines() -> Iterator[str]:
    """What the user types, line by line, without empty ones."""
    question = "> " if stdin().isatty() else ""
    while True:
        try:
            line = input(question)
        except EOFError:
            return
        if line.strip():
            yield line
