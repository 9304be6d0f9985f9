"""How fast a server answers: streams, shared prefixes, joining prompts, mixed requests, schemas.

    python -m benchmarks serving-speed --url http://127.0.0.1:8080/v1 [--part NAME]... [--json FILE]

Any server with OpenAI's chat API can be measured.

- ``streams``: tokens per second of 1 and of 8 answers at once, in rounds that take turns; with the
  time of their prompts, and of the tokens after each answer's first;
- ``prefix``: time to the first token of a prompt of about 2,000 tokens, cold and once more with
  another ending;
- ``join``: 95th percentile of the time between tokens of 4 streams, with and without a prompt of
  about 2,000 tokens that joins;
- ``mixed``: 16 requests at once against one after the other; and the share of the latter's time in
  which prompts are read, which takes the same arithmetic at once;
- ``schema``: tokens per second after the first of answers that follow a JSON schema, against free
  ones.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.common import record

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TEXT = Path(__file__).parents[1] / "common" / "prompts.txt"
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "age": {"type": "integer"},
                "email": {"type": "string"},
                "hobbies": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["name", "age", "email", "hobbies"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Timed:
    """When the tokens of an answer came, in seconds from the request on."""

    times: tuple[float, ...]
    tokens: int

    @property
    def gaps(self) -> list[float]:
        """Seconds between tokens."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]

    @property
    def decode_rate(self) -> float:
        """Tokens per second after the first."""
        return (self.tokens - 1) / (self.times[-1] - self.times[0])


class Server:
    """A server that is asked."""

    def __init__(self, client: AsyncOpenAI, model: str) -> None:
        self._client, self._model = client, model

    async def ask(self, prompt: str, tokens: int, **more: Any) -> Timed:
        """Streams an answer."""
        start = time.perf_counter()
        stream = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            **more,
        )
        times, count = [], 0
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                times.append(time.perf_counter() - start)
            if chunk.usage:
                count = chunk.usage.completion_tokens
        return Timed(tuple(times), count)


def words(start: int, count: int) -> str:
    """Words of a text that is long enough for any number of them."""
    all_words = TEXT.read_text("utf-8").split()
    return " ".join(all_words[n % len(all_words)] for n in range(start, start + count))


async def streams(server: Server, rounds: int) -> dict[str, Any]:
    """Tokens per second of one answer and of eight."""
    rates: dict[int, list[float]] = {1: [], 8: []}
    decode: dict[int, list[float]] = {1: [], 8: []}
    for number in range(rounds):
        for count in rates:
            topics = [words(9 * (8 * number + n), 3) for n in range(count)]
            prompts = [f"Write a long Python module about {topic}." for topic in topics]
            start = time.perf_counter()
            answers = await asyncio.gather(*(server.ask(prompt, 128) for prompt in prompts))
            rates[count].append(sum(a.tokens for a in answers) / (time.perf_counter() - start))
            decode[count].append(sum(a.decode_rate for a in answers))
    return {
        "tok_s_1": _spread(rates[1]),
        "tok_s_8": _spread(rates[8]),
        "ratio": _ratios(rates[8], rates[1]),
        "decode_tok_s_1": _spread(decode[1]),
        "decode_tok_s_8": _spread(decode[8]),
        "decode_ratio": _ratios(decode[8], decode[1]),
    }


async def prefix(server: Server, rounds: int) -> dict[str, Any]:
    """Time to the first token, cold and with a cached prefix."""
    cold, warm = list[float](), list[float]()
    for number in range(rounds):
        shared = f"{number} {words(number * 31, 1500)}"
        cold.append((await server.ask(f"{shared} What is this?", 4)).times[0])
        warm.append((await server.ask(f"{shared} Who wrote it?", 4)).times[0])
    return {"cold_s": _spread(cold), "cached_s": _spread(warm), "ratio": _ratios(warm, cold)}


async def join(server: Server, rounds: int) -> dict[str, Any]:
    """Time between tokens, with and without a prompt that joins."""
    quiet, joined = list[float](), list[float]()
    for number in range(rounds):
        for found, joins in ((quiet, False), (joined, True)):
            prompts = [f"{number} {n} Tell a long story." for n in range(4)]
            tasks = [asyncio.create_task(server.ask(prompt, 128)) for prompt in prompts]
            await asyncio.sleep(1)
            if joins:
                await server.ask(f"{number} {words(number * 17, 1500)} Summarise.", 2)
            gaps = [gap for task in tasks for gap in (await task).gaps[8:]]
            found.append(statistics.quantiles(gaps, n=20)[-1])
    return {
        "quiet_p95_s": _spread(quiet),
        "joined_p95_s": _spread(joined),
        "ratio": _ratios(joined, quiet),
    }


async def mixed(server: Server, rounds: int) -> dict[str, Any]:
    """Sixteen requests at once, against one after the other."""
    together, single, prompts = list[float](), list[float](), list[float]()
    for number in range(rounds):

        def requests(kind: str, number: int = number) -> list[Awaitable[Timed]]:
            made: list[Awaitable[Timed]] = []
            for n in range(16):
                text = words(40 * n, 80)
                if n % 3 == 0:
                    made.append(server.ask(f"{kind} {number} Repeat this text: {text}", 96))
                elif n % 3 == 1:
                    ask = f"{kind} {number} Describe person {n} as JSON."
                    made.append(server.ask(ask, 96, response_format=SCHEMA))
                else:
                    made.append(server.ask(f"{kind} {number} What does this mean? {text}", 96))
            return made

        start = time.perf_counter()
        answers = [await request for request in requests("single")]
        middle = time.perf_counter()
        await asyncio.gather(*requests("together"))
        together.append(time.perf_counter() - middle)
        single.append(middle - start)
        prompts.append(sum(answer.times[0] for answer in answers))
    return {"ratio": _ratios(together, single), "prompts_share": _ratios(prompts, single)}


async def schema(server: Server, rounds: int) -> dict[str, Any]:
    """Tokens per second with a JSON schema, against none."""
    free, following = list[float](), list[float]()
    for number in range(rounds):
        for found, more in ((free, {}), (following, {"response_format": SCHEMA})):
            ask = f"{number} Describe Ada Lovelace as JSON."
            found.append((await server.ask(ask, 96, **more)).decode_rate)
    return {"ratio": _ratios(following, free)}


PARTS: dict[str, Callable[[Server, int], Awaitable[dict[str, Any]]]] = {
    "streams": streams,
    "prefix": prefix,
    "join": join,
    "mixed": mixed,
    "schema": schema,
}


@click.command()
@click.option("--url", default="http://127.0.0.1:8080/v1", show_default=True)
@click.option("--model", help="Name of the model.  [default: the server's first]")
@click.option("--part", "parts", multiple=True, type=click.Choice(list(PARTS)))
@click.option("--rounds", default=5, show_default=True)
@click.option("--api-key", default="none", help="Key of the server.")
@click.option("--server", default="tamiz", show_default=True, help="Name and version to record.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    url: str,
    model: str | None,
    parts: tuple[str, ...],
    rounds: int,
    api_key: str,
    server: str,
    output: Path | None,
) -> None:
    """Measure a server."""
    results = asyncio.run(_measure(url, model, parts or tuple(PARTS), rounds, api_key))
    if output is not None:
        settings = {"rounds": rounds, "server": server, "model": model}
        record.write(output, "serving-speed", results, settings=settings)


async def _measure(
    url: str, model: str | None, parts: tuple[str, ...], rounds: int, key: str
) -> dict[str, Any]:
    from openai import AsyncOpenAI

    results = {}
    async with AsyncOpenAI(base_url=url, api_key=key, max_retries=0, timeout=3600) as client:
        name = model or (await client.models.list()).data[0].id
        server = Server(client, name)
        await server.ask("Hello", 16)
        for part in parts:
            results[part] = await PARTS[part](server, rounds)
            print(part, results[part], flush=True)
    return results


def _spread(values: list[float]) -> dict[str, float]:
    """Median, and the smallest and largest value."""
    numbers = statistics.median(values), min(values), max(values)
    return dict(zip(("median", "min", "max"), (round(n, 4) for n in numbers), strict=True))


def _ratios(these: list[float], those: list[float]) -> dict[str, float]:
    """The spread of the ratios of rounds."""
    return _spread([a / b for a, b in zip(these, those, strict=True)])


if __name__ == "__main__":
    main()
