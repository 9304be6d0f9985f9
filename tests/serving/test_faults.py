"""Clients that misbehave, killed servers, full disks: answers stay right, and nothing is lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.serving.server_state import settle
from benchmarks.serving.serving_load import Load

pytestmark = pytest.mark.slow

ASK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "one two three " * 8}],
    "max_tokens": 12,
    "temperature": 0.8,
    "seed": 3,
}


def test_clients_that_misbehave_change_no_answer(url: str) -> None:
    async def run() -> tuple[Load, dict[str, float], dict[str, float]]:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            load = Load(client, url, 12, longest=20)
            await load.learn()
            before = await settle(client)
            await load.run(clients=16, idle=40, seconds=8)
            return load, before, await settle(client)

    load, before, after = asyncio.run(run())
    assert load.outcome.asked > 0
    assert load.outcome.wrong == load.outcome.bad == 0
    assert after["free_tokens"] == before["free_tokens"]
    assert after["running"] == after["waiting"] == 0


class Process:
    """`tamiz serve` in a process of its own."""

    def __init__(self, bundle: Path, *flags: str, limits: dict[int, int]) -> None:
        def bounded() -> None:
            for kind, limit in limits.items():
                resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))

        self.process = subprocess.Popen(
            [sys.executable, "-m", "tamiz", "serve", f"tiny={bundle}", "--port=0", *flags],
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=bounded,
        )
        self.url = self.wait_for(r"serving at (\S+)")
        self.wait_for("tiny: ready")

    def wait_for(self, pattern: str) -> str:
        """The first group of the line of the log that matches."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(pattern, line):
                return found[found.re.groups]
        raise AssertionError(f"the server ended without {pattern!r}")

    def ask(self, **more: object) -> dict[str, Any]:
        """The reply to a request, which must be an answer."""
        reply = httpx.post(f"{self.url}/v1/chat/completions", json=ASK | more, timeout=120)
        assert reply.status_code == 200, reply.text
        found: dict[str, Any] = reply.json()
        return found

    def end(self, number: int) -> str:
        """Sends a signal, and waits; the rest of the log."""
        self.process.send_signal(number)
        return self.process.communicate(timeout=60)[1]


Start = Callable[..., Process]


@pytest.fixture
def start(tiny: Path) -> Iterator[Start]:
    made: list[Process] = []

    def begin(*flags: str, limits: dict[int, int] | None = None) -> Process:
        made.append(Process(tiny, *flags, limits=limits or {}))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def text(reply: dict[str, Any]) -> str:
    found: str = reply["choices"][0]["message"]["content"]
    return found


def test_a_killed_server_leaves_a_cache_that_is_right(start: Start, tmp_path: Path) -> None:
    flags = (f"--cache-dir={tmp_path / 'cache'}",)
    first = start(*flags)
    expected = text(first.ask())

    async def ask_and_kill() -> None:
        async with httpx.AsyncClient(base_url=first.url, timeout=60) as client:
            prompts = [f"{n} " + "word " * 20 for n in range(16)]
            jobs = [
                client.post(
                    "/v1/chat/completions",
                    json=ASK | {"messages": [{"role": "user", "content": prompt}]},
                )
                for prompt in prompts
            ]
            running = asyncio.gather(*jobs, return_exceptions=True)
            await asyncio.sleep(0.3)
            first.process.kill()
            await running

    asyncio.run(ask_and_kill())
    first.process.communicate(timeout=60)
    reply = start(*flags).ask()
    assert text(reply) == expected
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_a_full_disk_switches_the_cache_off(start: Start, tmp_path: Path) -> None:
    # No file may be longer than a page of the log: writing one fails as on a full disk.
    server = start(f"--cache-dir={tmp_path / 'cache'}", limits={resource.RLIMIT_FSIZE: 4096})
    expected = text(server.ask())
    assert text(server.ask()) == expected
    log = server.end(signal.SIGTERM)
    assert "pages are not written any more" in log
    assert not list((tmp_path / "cache").rglob("*.page"))


def test_connections_are_bounded_by_the_system_alone(start: Start) -> None:
    server = start(limits={resource.RLIMIT_NOFILE: 100})
    address = server.url.removeprefix("http://")
    opened = [http.client.HTTPConnection(address, timeout=60) for _ in range(200)]
    for connection in opened:
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
    assert text(server.ask())
    for connection in opened:
        connection.close()


def test_sigterm_lets_answers_end(start: Start) -> None:
    server = start("--drain=60")
    with httpx.stream(
        "POST",
        f"{server.url}/v1/chat/completions",
        json=ASK | {"stream": True, "max_tokens": 200, "stop": ["\0"]},
        timeout=120,
    ) as reply:
        lines = reply.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    server.process.communicate(timeout=60)
    assert server.process.returncode in (0, 128 + signal.SIGTERM)
