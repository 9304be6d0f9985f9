"""Whether a server gives one answer to one request: alone, among others, cached, beside prompts.

    python -m benchmarks exactness --url http://127.0.0.1:8080/v1 [--json FILE]

Any server with OpenAI's chat API can be asked. Each prompt is answered greedily and with a seed:

- ``alone``: one request at a time, the reference;
- ``again``: the same once more, so that its prefix may be cached;
- ``among 8``: eight requests at a time, in another order;
- ``beside prompts``: the same while long prompts join.

A condition counts the answers whose text is that of the reference, and those whose logprobs are
the same numbers.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.common import record

if TYPE_CHECKING:
    pass

TEXT = Path(__file__).parents[1] / "common" / "prompts.txt"
PROMPTS, TOGETHER = 32, 8


@dataclass(frozen=True)
class Answer:
    """Text and logprobs of an answer; servers without logprobs give none."""

    text: str
    logprobs: tuple[float, ...]


Ask = Callable[[str], Awaitable[Answer]]


@click.command()
@click.option("--url", default="http://127.0.0.1:8080/v1", show_default=True)
@click.option("--model", help="Name of the model.  [default: the server's first]")
@click.option("--tokens", default=48, show_default=True, help="Tokens of an answer.")
@click.option("--api-key", default="none", help="Key of the server.")
@click.option("--server", default="tamiz", show_default=True, help="Name and version to record.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    url: str, model: str | None, tokens: int, api_key: str, server: str, output: Path | None
) -> None:
    """Compare the answers of a server under load with those that it gives alone."""
    results = asyncio.run(_measure(url, model, tokens, api_key))
    for sampling, conditions in results.items():
        for condition, counts in conditions.items():
            print(f"{sampling:8} {condition:15} {counts}")
    if output is not None:
        settings = {"prompts": PROMPTS, "tokens": tokens, "server": server}
        record.write(output, "exactness", results, settings=settings)


async def _measure(url: str, model: str | None, tokens: int, key: str) -> dict[str, Any]:
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0) as client:
        name = model or (await client.models.list()).data[0].id
        results = {}
        for label, temperature in (("greedy", 0.0), ("seeded", 0.8)):

            async def ask(prompt: str, temperature: float = temperature) -> Answer:
                reply = await client.chat.completions.create(
                    model=name,
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=tokens,
                    temperature=temperature,
                    seed=7,
                    logprobs=True,
                )
                (choice,) = reply.choices
                content = (choice.logprobs and choice.logprobs.content) or ()
                return Answer(choice.message.content or "", tuple(t.logprob for t in content))

            results[label] = await _conditions(ask)
        return results


async def _conditions(ask: Ask) -> dict[str, dict[str, int]]:
    prompts = _prompts()
    alone = [await ask(prompt) for prompt in prompts]
    again = [await ask(prompt) for prompt in prompts]
    among = await _together(ask, prompts)
    long = asyncio.create_task(_join(ask))
    beside = await _together(ask, prompts)
    long.cancel()
    return {
        name: {
            "answers": len(alone),
            "equal_texts": sum(a.text == b.text for a, b in zip(alone, answers, strict=True)),
            "equal_logprobs": sum(a == b for a, b in zip(alone, answers, strict=True)),
        }
        for name, answers in (("again", again), ("among 8", among), ("beside prompts", beside))
    }


async def _together(ask: Ask, prompts: list[str]) -> list[Answer]:
    """Answers of requests of which eight run at a time, in an order of their own."""
    places = asyncio.Semaphore(TOGETHER)
    order = list(range(len(prompts)))
    random.Random(1).shuffle(order)

    async def one(index: int) -> tuple[int, Answer]:
        async with places:
            return index, await ask(prompts[index])

    answers = dict(await asyncio.gather(*(one(index) for index in order)))
    return [answers[index] for index in range(len(prompts))]


async def _join(ask: Ask) -> None:
    """Long prompts, one after the other, none like another."""
    for number in range(1000):
        await ask(f"{number} {_words(number * 97, 600)}")


def _prompts() -> list[str]:
    """Prompts of 4 to 160 words of a text."""
    return [f"Continue: {_words(37 * n, 4 + 5 * n)}" for n in range(PROMPTS)]


def _words(start: int, count: int) -> str:
    """Words of the text, which is read again from its beginning where it ends."""
    words = TEXT.read_text("utf-8").split()
    return " ".join(words[n % len(words)] for n in range(start, start + count))


if __name__ == "__main__":
    main()
