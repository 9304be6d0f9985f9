"""Whether a server under load and faults gives right answers only, and loses nothing.

    python -m benchmarks serving-load model.gguf --minutes 2
    python -m benchmarks serving-load --url http://127.0.0.1:8080 --minutes 20 [--pid PID]

The first form starts a server of its own. Each of some answers is asked for alone first. Then
clients ask for them at random for some minutes, and misbehave: they leave in mid-answer, read
slowly, send garbage, stop in mid-body. Other connections stay open and ask for the server's health
now and then. At the end the server is idle. The exit code is 1 unless

- ``wrong``: no answer differs from the one that was given alone;
- ``bad_statuses``: no reply has a status of 500 or more, but 503;
- ``lost_tokens``, ``left_running``: all pages of the cache are free again, and nothing runs;
- ``memory_mb``: of the process after a quarter of the time, at most, and at the end, which is at
  most 5 % and 20 MB more than the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from benchmarks.common import record
from benchmarks.serving.own_server import own_server
from benchmarks.serving.server_state import settle, watch
from benchmarks.serving.serving_speed import SCHEMA, words
from tamiz.platforms import raise_open_files

if TYPE_CHECKING:
    import httpx

CHAT = "/v1/chat/completions"
#: What is no request of a chat: bytes of the body.
GARBAGE = (
    b"",
    b"{",
    b"\xff\xfe\x00",
    b"[" * 5000,
    b'{"messages": 1}',
    b'{"messages": []}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": -1}',
    b'{"messages": [{"role": "user", "content": "x"}], "n": 100000}',
    b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"-5": 1}}',
    b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "function"}]}',
    b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema",'
    b' "json_schema": {"name": "x", "schema": {"$ref": "#/nowhere"}}}}',
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
)


@dataclass
class Outcome:
    """What came of a load.

    Attributes:
        asked: Answers that were complete.
        wrong: Those of them that differ from the one alone.
        faults: What clients did, by its name.
        statuses: Replies by their status.
        errors: Connections that failed, by the error's name.
    """

    asked: int = 0
    wrong: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def bad(self) -> int:
        """Replies with a status of 500 or more, but 503."""
        return sum(n for status, n in self.statuses.items() if status >= 500 and status != 503)


class Load:
    """Clients of one server."""

    def __init__(
        self, client: httpx.AsyncClient, url: str, tokens: int, longest: int = 120, seed: int = 0
    ) -> None:
        """Prepares the requests.

        Args:
            client: What sends them.
            url: The server's address, without a path.
            tokens: Largest number of tokens of an answer.
            longest: Words of the longest prompts.
            seed: Of what the clients do.
        """
        self.outcome = Outcome()
        self._client, self._url = client, url
        self._random = random.Random(seed)
        self._cases = [_case(number, tokens, longest) for number in range(24)]
        self._alone: list[str] = []

    async def learn(self) -> None:
        """Asks for each answer alone."""
        for case in self._cases:
            reply = await self._client.post(CHAT, json=case)
            reply.raise_for_status()
            self._alone.append(_text(reply.json()))

    async def run(self, clients: int, idle: int, seconds: float) -> None:
        """Asks and misbehaves for so long, with so many clients and open connections beside."""
        end = time.monotonic() + seconds
        jobs = [self._client_until(end) for _ in range(clients)]
        jobs += [self._stay_open(end) for _ in range(idle)]
        await asyncio.gather(*jobs)

    async def _client_until(self, end: float) -> None:
        acts: list[Callable[[], Awaitable[None]]] = [self._ask, self._respond, self._stream]
        acts += [self._leave, self._read_slowly, self._send_garbage, self._stop_in_body]
        while time.monotonic() < end:
            act = self._random.choice(acts)
            self.outcome.faults[act.__name__.removeprefix("_")] += 1
            try:
                await act()
            except Exception as error:
                self.outcome.errors[type(error).__name__] += 1
                await asyncio.sleep(0.05)

    def _draw(self) -> tuple[int, dict[str, Any]]:
        number = self._random.randrange(len(self._cases))
        return number, self._cases[number]

    def _check(self, number: int, text: str) -> None:
        self.outcome.asked += 1
        self.outcome.wrong += text != self._alone[number]

    def _count(self, status: int) -> bool:
        """Counts a reply; whether it is an answer."""
        self.outcome.statuses[status] += 1
        return status == 200

    async def _ask(self) -> None:
        number, case = self._draw()
        reply = await self._client.post(CHAT, json=case)
        if self._count(reply.status_code):
            self._check(number, _text(reply.json()))
        else:
            await asyncio.sleep(0.2)

    async def _respond(self) -> None:
        """The same answer from the newer API."""
        number, case = self._draw()
        (message,) = case["messages"]
        form = case.get("response_format", {}).get("json_schema")
        body = {
            "input": message["content"],
            "max_output_tokens": case["max_tokens"],
            "temperature": case["temperature"],
            "seed": case["seed"],
            "store": False,
            "text": {"format": {"type": "json_schema", **form} if form else {"type": "text"}},
        }
        reply = await self._client.post("/v1/responses", json=body)
        if self._count(reply.status_code):
            (item,) = reply.json()["output"]
            self._check(number, item["content"][0]["text"])
        else:
            await asyncio.sleep(0.2)

    async def _stream(self, pause: float = 0, most: float = float("inf")) -> None:
        import orjson

        number, case = self._draw()
        text, chunks = "", 0
        async with self._client.stream("POST", CHAT, json=case | {"stream": True}) as reply:
            if not self._count(reply.status_code):
                return
            async for line in reply.aiter_lines():
                if line == "data: [DONE]":
                    return self._check(number, text)
                if not line.startswith("data: "):
                    continue
                chunk = orjson.loads(line[6:])
                text += "".join(c["delta"].get("content") or "" for c in chunk.get("choices", ()))
                chunks += 1
                if chunks > most:
                    return
                await asyncio.sleep(pause)

    async def _leave(self) -> None:
        await self._stream(most=self._random.randrange(6))

    async def _read_slowly(self) -> None:
        await self._stream(pause=self._random.choice([0.02, 0.1, 0.3]))

    async def _send_garbage(self) -> None:
        body = self._random.choice([*GARBAGE, self._random.randbytes(200)])
        path = self._random.choice([CHAT, CHAT, "/v1/completions", "/v1/responses", "/v1/nowhere"])
        reply = await self._client.post(path, content=body)
        self._count(reply.status_code)
        if reply.status_code == 200:
            self.outcome.wrong += 1

    async def _stop_in_body(self) -> None:
        _, writer = await self._connect()
        writer.write(
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 400\r\n\r\n{{".encode("ascii")
        )
        await writer.drain()
        await asyncio.sleep(self._random.random())
        await _close(writer)

    async def _stay_open(self, end: float) -> None:
        """Keeps a connection open, and asks for the server's health every few seconds."""
        await asyncio.sleep(self._random.uniform(0, 5))
        while time.monotonic() < end:
            try:
                reader, writer = await self._connect()
                while time.monotonic() < end:
                    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
                    self.outcome.statuses[int(head.split()[1])] += 1
                    length = next(
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length")
                    )
                    await reader.readexactly(length)
                    left = max(0.0, end - time.monotonic())
                    await asyncio.sleep(min(left, self._random.uniform(5, 20)))
                await _close(writer)
            except Exception as error:
                self.outcome.errors[type(error).__name__] += 1
                await asyncio.sleep(1)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._url)
        return await asyncio.open_connection(parts.hostname, parts.port)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def _case(number: int, tokens: int, longest: int) -> dict[str, Any]:
    """A request: short or long, greedy or with a seed, free or of a schema; prefixes are shared."""
    shared = f"{words(31 * (number % 3), (3, longest // 2, longest)[number % 3])} "
    case = {
        "messages": [{"role": "user", "content": f"{shared}{number}"}],
        "max_tokens": 1 + tokens * (1 + number % 5) // 5,
        "temperature": (0, 0.8)[number % 2],
        "seed": number,
    }
    return case | ({"response_format": SCHEMA} if number % 6 == 5 else {})


def _text(reply: dict[str, Any]) -> str:
    return reply["choices"][0]["message"]["content"] or ""


async def measure(
    url: str,
    clients: int,
    idle: int,
    seconds: float,
    tokens: int,
    longest: int,
    pid: int | None,
    key: str,
) -> dict[str, Any]:
    """Loads a server for so long; the results by name."""
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=clients)
    headers = {"Authorization": f"Bearer {key}"}
    readings = list[float]()
    async with httpx.AsyncClient(
        base_url=url, limits=limits, timeout=600, headers=headers
    ) as client:
        load = Load(client, url, tokens, longest)
        await load.learn()
        free = (await settle(client))["free_tokens"]
        watching = asyncio.create_task(watch(pid, readings)) if pid is not None else None
        await load.run(clients, idle, seconds)
        after = await settle(client)
        if watching is not None:
            watching.cancel()
        found = load.outcome
    late = [round(mb) for mb in readings[len(readings) // 4 :]]
    return {
        "answers": found.asked,
        "wrong": found.wrong,
        "bad_statuses": found.bad,
        "statuses": {str(status): n for status, n in sorted(found.statuses.items())},
        "acts": dict(sorted(found.faults.items())),
        "errors": dict(found.errors),
        "lost_tokens": free - after["free_tokens"],
        "left_running": after["running"] + after["waiting"],
        "preempted": after["preempted"],
        "memory_mb": [late[0], max(late), late[-1]] if late else [],
    }


def faults(results: dict[str, Any]) -> list[str]:
    """What a server has not shown, a sentence each."""
    found = [
        f"{name} is {results[name]}, expected 0"
        for name in ("wrong", "bad_statuses", "lost_tokens", "left_running")
        if results[name]
    ]
    if not results["answers"]:
        found.append("answers is 0, expected some: give it more minutes")
    if results["memory_mb"]:
        first, _, last = results["memory_mb"]
        if last > 1.05 * first + 20:
            found.append(f"memory_mb grew from {first} to {last}, expected at most 5 % + 20 MB")
    return found


@click.command()
@click.argument("source", required=False)
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="Without SOURCE.")
@click.option("--minutes", default=20.0, show_default=True, help="How long to load the server.")
@click.option("--clients", default=64, show_default=True, help="Clients that ask and misbehave.")
@click.option("--idle", default=1000, show_default=True, help="Connections that stay open.")
@click.option("--tokens", default=48, show_default=True, help="Most tokens of an answer.")
@click.option(
    "--words", "longest", default=120, show_default=True, help="Words of the longest prompts."
)
@click.option("--pid", type=int, help="Process of the server, whose memory is watched.")
@click.option("--api-key", default="none", help="Key of the server.")
@click.option("--server", default="tamiz", show_default=True, help="Name and version to record.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    source: str | None,
    url: str,
    minutes: float,
    clients: int,
    idle: int,
    tokens: int,
    longest: int,
    pid: int | None,
    api_key: str,
    server: str,
    output: Path | None,
) -> None:
    """Load a server with clients that misbehave, and compare its answers with those alone."""
    raise_open_files()
    with contextlib.ExitStack() as stack:
        if source is not None:
            own = stack.enter_context(own_server(source))
            url, pid = own.url, own.pid
        seconds = 60 * minutes
        results = asyncio.run(measure(url, clients, idle, seconds, tokens, longest, pid, api_key))
    for name, value in results.items():
        print(f"{name:14} {value}")
    found = faults(results)
    if output is not None:
        settings = {"minutes": minutes, "clients": clients, "idle": idle, "server": server}
        record.write(output, "serving-load", results, settings=settings)
    for fault in found:
        print(f"FAULT: {fault}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
