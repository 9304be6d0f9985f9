"""What a server is doing, as its metrics and the system tell."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


async def gauges(client: httpx.AsyncClient) -> dict[str, float]:
    """The gauges of the server's first engine."""
    lines = (await client.get("/metrics")).text.splitlines()
    found: dict[str, float] = {}
    for line in lines:
        if line.startswith("tamiz_engine_"):
            name, value = line.removeprefix("tamiz_engine_").split()
            found.setdefault(name.partition("{")[0], float(value))
    return found


async def settle(client: httpx.AsyncClient) -> dict[str, float]:
    """The gauges as soon as nothing runs and nothing waits, or as they are after a minute."""
    end = time.monotonic() + 60
    while True:
        found = await gauges(client)
        busy = found["running"] + found["waiting"]
        if not busy or time.monotonic() > end:
            return found
        await asyncio.sleep(0.1)


async def watch(pid: int, readings: list[float]) -> None:
    """Adds the memory of a process, in MB, every two seconds."""
    import psutil

    process = psutil.Process(pid)
    while True:
        readings.append(process.memory_info().rss / 1e6)
        await asyncio.sleep(2)
